"""Where the lost seconds go: what each part of PoA's excess costs a request, and which lever moves it."""

from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from app.charts.frame import number, time_ms
from app.charts.panel import axis, figure, line
from app.theme import LIGHT, Theme


@dataclass(frozen=True, slots=True)
class Part:
    """A column of `signals` in request-seconds. `lever` says what moves it, for a sentence that starts with its name."""

    column: str
    name: str
    lever: str
    dash: str


PARTS = (
    Part("prefill_queue_s", "prefill queue", "prefill capacity or less load helps, τ and ω do not", "solid"),
    Part("imbalance_s", "imbalance", "a higher τ spreads it", "dash"),
    Part("cache_miss_s", "cache misses", "a higher ω follows the cache", "dot"),
    Part("transfer_s", "transfer", "the KV transfer between the pools is the lever, τ and ω are not", "dashdot"),
    Part("other_s", "other", "no lever is known for it", "dot"),
)


def lost(frame: pd.DataFrame, *, slo_s: float | None = None, theme: Theme = LIGHT) -> go.Figure:
    """Seconds over the optimum for each finished request of the window, by cause. `slo_s` is not used."""
    x = time_ms(frame)
    finished = frame["poa_n"] if "poa_n" in frame else pd.Series(dtype=float)
    traces = []
    for part in PARTS:
        seconds = frame[part.column] if part.column in frame else pd.Series([None] * len(frame), dtype=object)
        y = [number(s / n) if pd.notna(s) and pd.notna(n) and n > 0 else None for s, n in zip(seconds, finished, strict=True)]
        traces.append(line(part.column, part.name, x, y, theme.colour[part.column], unit="s a request", line={"dash": part.dash}))
    return figure(frame, traces, theme, yaxis=axis(theme, "lost (s a request)", rangemode="tozero"))
