"""What all time charts have in common: axes with units, quiet grid, bands behind, the SLO line, and a sentence when there is nothing."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from app.charts import bands
from app.theme import FONT, LIGHT, Theme


def line(uid: str, name: str, x: Sequence[int], y: Sequence[float | None], colour: str, *, unit: str, **more: Any) -> go.Scatter:
    """One quantity over time. SVG on purpose: WebGL loses its drag layer where there is no GPU."""
    style = {"color": colour, "width": 1.6} | more.pop("line", {})
    return go.Scatter(
        uid=uid,
        name=name,
        x=list(x),
        y=list(y),
        mode=more.pop("mode", "lines"),
        line=style,
        connectgaps=False,
        hovertemplate=more.pop("hovertemplate", f"%{{y:.4~g}} {unit}<extra>{name}</extra>"),
        **more,
    )


def axis(theme: Theme, title: str, **more: Any) -> dict[str, Any]:
    return {
        "title": {"text": title, "font": {"size": 11, "color": theme.muted}, "standoff": 8},
        "gridcolor": theme.grid,
        "zeroline": False,
        "tickfont": {"size": 11, "color": theme.muted},
        "fixedrange": True,
        "automargin": False,
        "nticks": 6,
    } | more


def log_axis(theme: Theme, title: str, **more: Any) -> dict[str, Any]:
    return axis(theme, title, type="log", dtick="D2", exponentformat="none", minor={"showgrid": False}, **more)


def slo(value: float | None, text: str, theme: Theme, yref: str = "y") -> list[dict[str, Any]]:
    """The objective as a line across the chart; None draws nothing."""
    if value is None:
        return []
    line = {"type": "line", "xref": "paper", "yref": yref, "x0": 0, "x1": 1}
    return [
        line
        | {
            "name": "slo",
            "y0": value,
            "y1": value,
            "line": {"color": theme.alarm, "width": 1, "dash": "dash"},
            "label": {"text": text, "textposition": "start", "yanchor": "bottom", "font": {"size": 10, "color": theme.alarm}},
        },
        # Unseen: shapes count for the range of an axis, and so the objective never lies on the frame.
        line | {"name": "slo:room", "y0": value * 1.3, "y1": value * 1.3, "opacity": 0},
    ]


def figure(
    frame: pd.DataFrame,
    traces: Sequence[go.Scatter],
    theme: Theme = LIGHT,
    *,
    yaxis: dict[str, Any],
    shapes: Sequence[dict[str, Any]] = (),
    time_axis: dict[str, Any] | None = None,
    **layout: Any,
) -> go.Figure:
    """The traces on a UTC time axis with the regime bands of `frame` behind. Says "no data" when no trace has a point."""
    nothing = not any(v is not None for trace in traces for v in (trace.y or ()))
    notice = [
        {
            "name": "nothing",
            "text": "no data",
            "showarrow": False,
            "xref": "paper",
            "yref": "paper",
            "x": 0.5,
            "y": 0.5,
            "font": {"size": 13},
        }
    ]
    return go.Figure(
        data=list(traces),
        layout={
            "template": {},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": FONT, "size": 12, "color": theme.muted},
            "margin": {"l": 52, "r": 8, "t": 24, "b": 38},
            "hovermode": "x unified",
            "hoverlabel": {"bgcolor": theme.panel, "bordercolor": theme.rule, "font": {"color": theme.ink, "size": 12, "family": FONT}},
            "dragmode": "zoom",
            "uirevision": "live",
            "legend": {
                "orientation": "h",
                "x": 0,
                "xanchor": "left",
                "y": 1.0,
                "yanchor": "bottom",
                "bgcolor": "rgba(0,0,0,0)",
                "font": {"size": 11, "color": theme.muted},
                "itemwidth": 30,
                "entrywidth": 0,
                "entrywidthmode": "pixels",
            },
            "xaxis": {
                "type": "date",
                "title": {"text": "time (UTC)", "font": {"size": 11, "color": theme.muted}, "standoff": 4},
                "gridcolor": theme.grid,
                "zeroline": False,
                "tickfont": {"size": 11, "color": theme.muted},
                "nticks": 6,
                "tickformatstops": [
                    {"dtickrange": [None, 59_999], "value": "%H:%M:%S"},
                    {"dtickrange": [60_000, 3_599_999], "value": "%H:%M"},
                    {"dtickrange": [3_600_000, None], "value": "%H:%M\n%b %-d"},
                ],
                "hoverformat": "%H:%M:%S",
                "showspikes": True,
                "spikethickness": 1,
                "spikecolor": theme.rule,
                "spikedash": "solid",
                "spikemode": "across",
                "showline": True,
                "linecolor": theme.rule,
            }
            | (time_axis or {}),
            "yaxis": yaxis,
            "shapes": [*bands.shapes(frame, theme), *shapes],
            "annotations": notice if nothing else [],
            "showlegend": True,
        }
        | layout,
    )
