"""A page of the live component: range and pause above, the component below, the override in the sidebar."""

import streamlit as st

from app import here, live, override
from app.page import Page

RANGES = {"5 min": 300, "15 min": 900, "1 h": 3600, "6 h": 21600, "24 h": 86400}


def watch(page: Page) -> None:
    """Everything of the page that a second does not change; the component below renews itself."""
    known = here.get()
    feed = known.feed
    deployment = feed.choose(None)
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="left", gap="small", key="toolbar"):
        chosen = st.segmented_control(
            "Range", list(RANGES), default="5 min", required=True, key="range", bind="query-params", label_visibility="collapsed"
        )
        mode = st.segmented_control(
            "Refresh", ["live", "paused"], default="live", required=True, key="refresh", bind="query-params", label_visibility="collapsed"
        )
        if len(feed.deployments) > 1:
            deployment = st.selectbox(
                "Deployment", feed.deployments, key="deployment", bind="query-params", label_visibility="collapsed", width=220
            )
    live.live(
        page,
        deployment=deployment,
        deployments=feed.deployments,
        range_s=RANGES[chosen or "5 min"],
        paused=mode == "paused",
        plotly=known.plotly,
    )
    with st.sidebar:
        override.render(deployment)
