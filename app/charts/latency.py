"""Latency over time: TTFT and ITL."""

import pandas as pd
import plotly.graph_objects as go

from app.charts.frame import time_ms, values
from app.charts.panel import axis, figure, line, log_axis, slo
from app.theme import LIGHT, Theme


def ttft(frame: pd.DataFrame, *, slo_s: float | None = None, theme: Theme = LIGHT) -> go.Figure:
    """TTFT in seconds: P50, P90, P99 of the requests answered, P99 with those still waiting (censored), and Prometheus' P99."""
    x, colour = time_ms(frame), theme.colour
    return figure(
        frame,
        [
            line("ttft_p50", "P50", x, values(frame, "ttft_p50_s"), colour["ttft_p50"], unit="s"),
            line("ttft_p90", "P90", x, values(frame, "ttft_p90_s"), colour["ttft_p90"], unit="s"),
            line(
                "ttft_p99_prometheus",
                "P99 Prometheus",
                x,
                values(frame, "ttft_p99_prometheus_s"),
                colour["ttft_prometheus"],
                unit="s",
                line={"dash": "dot"},
            ),
            line(
                "ttft_p99_censored",
                "P99 censored",
                x,
                values(frame, "ttft_p99_censored_s"),
                colour["ttft_censored"],
                unit="s",
                line={"dash": "5px,2px"},
            ),
            line("ttft_p99", "P99", x, values(frame, "ttft_p99_s"), colour["ttft_p99"], unit="s", line={"width": 2}),
        ],
        theme,
        yaxis=log_axis(theme, "TTFT (s, log)"),
        shapes=slo(slo_s, f"SLO {slo_s:g} s" if slo_s else "", theme),
    )


def itl(frame: pd.DataFrame, *, slo_s: float | None = None, theme: Theme = LIGHT) -> go.Figure:
    """Inter-token latency P50 and P99 in milliseconds, from zero: a flat ITL should look flat."""
    x, colour = time_ms(frame), theme.colour
    slo_ms = slo_s * 1e3 if slo_s else None
    return figure(
        frame,
        [
            line("itl_p50", "P50", x, values(frame, "itl_p50_s", 1e3), colour["itl_p50"], unit="ms"),
            line("itl_p99", "P99", x, values(frame, "itl_p99_s", 1e3), colour["itl_p99"], unit="ms", line={"width": 2}),
        ],
        theme,
        yaxis=axis(theme, "ITL (ms)", rangemode="tozero"),
        shapes=slo(slo_ms, f"SLO {slo_ms:g} ms" if slo_ms else "", theme),
    )
