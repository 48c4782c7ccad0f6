"""KV cache hits over time."""

import pandas as pd
import plotly.graph_objects as go

from app.charts.frame import time_ms, values
from app.charts.panel import axis, figure, line
from app.theme import LIGHT, Theme


def kv_hit(frame: pd.DataFrame, *, slo_s: float | None = None, theme: Theme = LIGHT) -> go.Figure:
    """Share of prompt blocks already held by the worker chosen, in percent, on the whole scale from 0 to 100. `slo_s` is not used."""
    return figure(
        frame,
        [
            line(
                "kv_hit",
                "KV hit rate",
                time_ms(frame),
                values(frame, "kv_hit_ratio", 100),
                theme.colour["kv_hit"],
                unit="%",
                line={"width": 2},
            )
        ],
        theme,
        yaxis=axis(theme, "KV hit rate (%)", range=[0, 102]),
    )
