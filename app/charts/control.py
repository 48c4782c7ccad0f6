"""The loop over time: what the controller smooths against its thresholds, and the parameters under which requests were routed."""

import pandas as pd
import plotly.graph_objects as go

from app.charts.frame import time_ms, values
from app.charts.panel import axis, figure, line, log_axis
from app.theme import LIGHT, Theme


def smoothed(frame: pd.DataFrame, *, theta_s: tuple[float, float] | None = None, theme: Theme = LIGHT) -> go.Figure:
    """TTFT P99 and its EWMA in seconds, and its thresholds. `theta_s` None: they are learnt, and differ from hour to hour."""
    x, colour = time_ms(frame), theme.colour
    limit = {"dash": "dot", "width": 1.2}
    limits = [] if theta_s is None else list(zip(("transition", "saturated"), theta_s, (theme.warn, theme.alarm), strict=True))
    return figure(
        frame,
        [
            line("p99", "P99", x, values(frame, "ttft_p99_censored_s"), colour["ttft_p50"], unit="s"),
            *(line(name, f"θ {name}", x, [theta] * len(x), shade, unit="s", line=limit) for name, theta, shade in limits),
            line("ewma", "smoothed", x, values(frame, "ttft_ewma_s"), colour["ttft_p99"], unit="s", line={"width": 2}),
        ],
        theme,
        yaxis=log_axis(theme, "TTFT (s, log)"),
    )


def in_force(frame: pd.DataFrame, *, slo_s: float | None = None, theme: Theme = LIGHT) -> go.Figure:
    """τ and ω under which requests were routed, as steps; a gap where that is not known or mixed. `slo_s` is not used."""
    x, colour = time_ms(frame), theme.colour
    steps = {"shape": "hv", "width": 2}
    return figure(
        frame,
        [
            line("tau", "τ", x, values(frame, "tau"), colour["poa_ttft"], unit="", line=steps),
            line("omega", "ω", x, values(frame, "omega"), colour["kv_hit"], unit="", line=steps | {"dash": "5px,2px"}),
        ],
        theme,
        yaxis=axis(theme, "τ, ω in force", rangemode="tozero"),
    )
