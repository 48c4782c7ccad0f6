"""The components in the browser: the live page (live.js) and, in the sidebar, the chain of an override (chain.js) fed by the same poll."""

from pathlib import Path

import streamlit as st

from app.page import Page
from app.theme import DARK, LIGHT, variables

_HERE = Path(__file__).parent
_COLOURS = f".pw {{{variables(LIGHT)}}} .pw[data-theme=dark] {{{variables(DARK)}}}\n"


def _component(name: str) -> "st.components.v2.types.ComponentRenderer":
    # Not isolated: a shadow root would keep Plotly's own stylesheet out.
    script, style = (_HERE / f"{name}.js").read_text(), (_HERE / f"{name}.css").read_text()
    return st.components.v2.component(f"poascope.{name}", js=script, css=_COLOURS + style, isolate_styles=False)


_live, _chain = _component("live"), _component("chain")


def live(page: Page, *, deployment: str | None, deployments: list[str], range_s: int, paused: bool, plotly: str) -> None:
    """Mount the page, or tell the mounted one what to show now. Only these few values pass through Streamlit."""
    panels = [{"key": p.key, "title": p.title, "hint": p.hint, "chart": p.draw is not None, "named": p.named} for p in page.panels]
    told = {"deployment": deployment, "deployments": deployments, "range_s": range_s, "paused": paused, "panels": panels, "plotly": plotly}
    _live(key=page.name, data=told | {"page": page.name, "every_s": page.every_s}, on_deployments_change=lambda: None)


def chain() -> int | None:
    """Mount the chain. The revision of the intent that this viewer is looking at, None before the first answer."""
    revision = _chain(key="chain", data={"note": None}, on_revision_change=lambda: None).revision
    return None if revision is None else int(revision)


def note(text: str, kind: str = "") -> None:
    """A line of text from anywhere, shown as text and nothing else."""
    if text:
        _chain(key="note", data={"note": text, "kind": kind}, on_revision_change=lambda: None)
