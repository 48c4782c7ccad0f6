"""The components in the browser: a live page (live.js), the same driven by the past (player.js on top of it), the chain of
an override and the board of the loop (chain.js) fed by the live page's poll, and the audit log (log.js)."""

from pathlib import Path

import streamlit as st

from app.page import Page
from app.theme import DARK, LIGHT, variables

_HERE = Path(__file__).parent
_DOM = (_HERE / "dom.js").read_text()
_COLOURS = f".pw {{{variables(LIGHT)}}} .pw[data-theme=dark] {{{variables(DARK)}}}\n"


def _component(name: str, on: str = "") -> "st.components.v2.types.ComponentRenderer":
    # Not isolated: a shadow root would keep Plotly's own stylesheet out. `on`: a component that this one extends, since each is one script.
    script, style = (_HERE / f"{name}.js").read_text(), (_HERE / f"{name}.css").read_text()
    if on:
        script = (_HERE / f"{on}.js").read_text().partition("export default")[0] + script
        style = (_HERE / f"{on}.css").read_text() + style
    return st.components.v2.component(f"poascope.{name}", js=_DOM + script, css=_COLOURS + style, isolate_styles=False)


_live, _chain, _player, _log = _component("live"), _component("chain"), _component("player", on="live"), _component("log")


Span = tuple[float, float]  # Unix s


def _panels(page: Page) -> list[dict[str, object]]:
    return [{"key": p.key, "title": p.title, "hint": p.hint, "chart": p.draw is not None, "named": p.named} for p in page.panels]


def _span(picked: list[float] | None) -> Span | None:
    return None if picked is None else (picked[0] / 1e3, picked[1] / 1e3)


def live(page: Page, *, deployment: str | None, deployments: list[str], range_s: int, paused: bool, plotly: str) -> Span | None:
    """Mount the page, or tell the mounted one what to show now: these few values, no more. The answer is a span just marked, if any."""
    told = {"deployment": deployment, "deployments": deployments, "range_s": range_s, "paused": paused, "plotly": plotly}
    more = {"page": page.name, "every_s": page.every_s, "panels": _panels(page)}
    return _span(_live(key=page.name, data=told | more, on_deployments_change=lambda: None, on_span_change=lambda: None).span)


def past(page: Page, *, deployment: str, span: Span, at: float, anew: bool, plotly: str) -> Span | None:
    """Mount the panels of a page over a span of the past, at one moment of it. A span just marked on it."""
    told = {"deployment": deployment, "start": span[0] * 1e3, "end": span[1] * 1e3, "at": at * 1e3, "anew": anew, "plotly": plotly}
    key = f"past-{page.name}"
    return _span(_player(key=key, data=told | {"page": page.name, "panels": _panels(page)}, on_span_change=lambda: None).span)


def chain() -> int | None:
    """Mount the chain. The revision of the intent that this viewer is looking at, None before the first answer."""
    revision = _chain(key="chain", data={"note": None}, on_revision_change=lambda: None).revision
    return None if revision is None else int(revision)


def board() -> None:
    """Mount the board of the loop."""
    _chain(key="board", data={"note": None, "board": True}, on_revision_change=lambda: None)


def log(*, deployment: str, since_s: float | None, kinds: list[str], who: str, text: str) -> None:
    """Mount the audit log, or tell it what to leave out: entries of other kinds (none: all), and those without `who` or `text`."""
    _log(key="log", data={"deployment": deployment, "since": since_s, "kinds": kinds, "who": who, "text": text})


def note(text: str, kind: str = "", key: str = "note") -> None:
    """Lines of text from anywhere, shown as text and nothing else."""
    if text:
        _chain(key=key, data={"note": text, "kind": kind}, on_revision_change=lambda: None)
