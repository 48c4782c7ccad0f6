"""What the live component is told: figures once, then points. Pure."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import pandas as pd
import plotly.graph_objects as go

from app.charts import bands
from app.page import Given, Page
from app.theme import Theme

# range in seconds -> bin in seconds: at most 720 points a line
RANGES: Mapping[int, int] = {300: 1, 900: 2, 3600: 5, 21600: 30, 86400: 120}
POINTS = 720
COMMON = ("band:", "over:", "mark:")


def step_s(span_s: float) -> int:
    """Seconds of a bin for any span: a range's own, and beyond them whole minutes, which rollups answer."""
    return next((step for longest, step in RANGES.items() if span_s <= longest), 60 * math.ceil(span_s / POINTS / 60))


def figures(page: Page, given: Given) -> dict[str, go.Figure]:
    return {panel.key: panel.draw(given) for panel in page.panels if panel.draw}


def _arrays(trace: Mapping[str, Any], shared: dict[tuple[int, ...], int]) -> dict[str, Any]:
    """The arrays of a trace. `x` becomes an index into the list of distinct time axes, since most traces share one."""
    found: dict[str, Any] = {"x": shared.setdefault(tuple(trace["x"]), len(shared)), "y": list(trace["y"])}
    if trace.get("text") is not None:
        found["text"] = list(trace["text"])
    if "error_y" in trace:
        found["array"], found["arrayminus"] = list(trace["error_y"]["array"]), list(trace["error_y"]["arrayminus"])
    return found


def common(signals: pd.DataFrame, decisions: pd.DataFrame, theme: Theme) -> list[dict[str, Any]]:
    return [*bands.shapes(signals, theme), *bands.overrides(signals, theme), *bands.marks(decisions, theme)]


def parts(drawn: Mapping[str, go.Figure], *, whole: bool) -> dict[str, Any]:
    """`{"xs": [[ms]], "points": {panel: {uid: arrays}}}`, and with `whole` the figures they belong to, without their data."""
    shared: dict[tuple[int, ...], int] = {}
    plain = {key: figure.to_plotly_json() for key, figure in drawn.items()}
    points = {key: {t["uid"]: _arrays(t, shared) for t in figure["data"]} for key, figure in plain.items()}
    found: dict[str, Any] = {"points": points, "xs": [list(x) for x in shared]}
    if whole:
        for figure in plain.values():
            layout = figure["layout"]
            layout["shapes"] = [s for s in layout.get("shapes", ()) if not s["name"].startswith(COMMON)]
            figure["data"] = [{k: v for k, v in t.items() if k not in ("x", "y", "text")} for t in figure["data"]]
        found["figures"] = plain
    return found


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value)
