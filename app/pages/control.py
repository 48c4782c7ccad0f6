"""The Control page: what the loop sees and would do, what is in force, the override, and the log of it all."""

import streamlit as st

from app import live, override
from app.pages.watch import charts, toolbar
from app.panels import CONTROL

KINDS = ["intent", "target", "ack", "armed", "disarmed", "expiry", "refusal", "hold", "dry run"]
SINCE = {"1 h": 3600.0, "24 h": 86400.0, "7 d": 604800.0, "all": None}


def render() -> None:
    bar = toolbar()
    if bar.deployment is None:
        charts(CONTROL, bar)  # says what is missing
        return
    with st.container(key="desk"):
        loop, chain, form = st.columns([1, 1, 1], gap="large")
        with loop:
            st.html('<h2 class="po-title">Loop</h2>')
            live.board()
        with chain:
            st.html('<h2 class="po-title">In force</h2>')
            override.chain(bar.deployment)
        with form:
            st.html('<h2 class="po-title">Override</h2>')
            override.form(bar.deployment)
    charts(CONTROL, bar)
    st.html('<h2 class="po-title">Audit log</h2>')
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="filters"):
        since = st.segmented_control("Time", list(SINCE), default="24 h", required=True, key="since", bind="query-params")
        kinds = st.multiselect("Kind", KINDS, key="kind", bind="query-params", placeholder="all", width=260)
        who = st.text_input("Who", key="who", bind="query-params", width=160)
        text = st.text_input("Text", key="text", bind="query-params", width=220)
    live.log(deployment=bar.deployment, since_s=SINCE[since or "24 h"], kinds=kinds, who=who or "", text=text or "")
