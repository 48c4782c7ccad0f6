"""A page of the live component: range and pause above, the component below, what is in force in the sidebar."""

from dataclasses import dataclass

import streamlit as st

from app import here, incidents, live, override
from app.page import Page

RANGES = {"5 min": 300, "15 min": 900, "1 h": 3600, "6 h": 21600, "24 h": 86400}


@dataclass(frozen=True, slots=True)
class Bar:
    """What is chosen above a page."""

    deployment: str | None
    range_s: int
    paused: bool


def toolbar() -> Bar:
    """Range, pause and deployment, all in the URL."""
    feed = here.get().feed
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
    return Bar(deployment, RANGES[chosen or "5 min"], mode == "paused")


def charts(page: Page, bar: Bar) -> None:
    """The live component: it renews itself, and tells when a span of time was marked on it."""
    known = here.get()
    span = live.live(
        page,
        deployment=bar.deployment,
        deployments=known.feed.deployments,
        range_s=bar.range_s,
        paused=bar.paused,
        plotly=known.plotly,
    )
    if span and bar.deployment:
        incidents.dialog(bar.deployment, span)


def watch(page: Page) -> None:
    """Everything of a page that a second does not change."""
    bar = toolbar()
    charts(page, bar)
    with st.sidebar:
        override.summary(bar.deployment)
