"""The three games over time: what each costs, loads against the optimum, hits that could be had, what a worker more would bring."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.charts.frame import number, time_ms, values, with_gaps
from app.charts.load import Lines, workers
from app.charts.lost import PARTS
from app.charts.panel import axis, figure, line
from app.theme import LIGHT, Theme

EVERY_S = 5.0
COSTS = {"imbalance_s": "routing (imbalance)", "cache_miss_s": "cache (misses)", "prefill_queue_s": "resources (prefill queue)"}


def _gapped(frame: pd.DataFrame) -> pd.DataFrame:
    step = float(np.median(np.diff(time_ms(frame)))) / 1e3 if len(frame) > 1 else EVERY_S
    return with_gaps(frame, max(EVERY_S, step))


def _over(signals: pd.DataFrame | None) -> pd.DataFrame:
    return pd.DataFrame() if signals is None else signals


def costs(frame: pd.DataFrame, signals: pd.DataFrame | None = None, *, slo_s: float | None = None, theme: Theme = LIGHT) -> go.Figure:
    """Seconds that each game costs a finished request. Reads `games_binned`; the bands are those of `signals`. `slo_s` is not used."""
    frame = _gapped(frame)
    x, dash = time_ms(frame), {part.column: part.dash for part in PARTS}
    traces = [
        line(
            f"{column}_each",
            name,
            x,
            values(frame, column.replace("_s", "_each_s")),
            theme.colour[column],
            unit="s a request",
            line={"dash": dash[column], "width": 2},
        )
        for column, name in COSTS.items()
    ]
    return figure(_over(signals), traces, theme, yaxis=axis(theme, "cost (s a request)", rangemode="tozero"))


def loads(
    frame: pd.DataFrame,
    signals: pd.DataFrame | None = None,
    *,
    lines: Lines | None = None,
    slo_s: float | None = None,
    theme: Theme = LIGHT,
) -> go.Figure:
    """Requests present on each worker, and for each pool the load that every worker would have in the cheapest placement (dotted)."""
    drawn = workers(frame, signals, lines=lines, theme=theme)
    for role, rows in frame.groupby("role", sort=True) if len(frame) else ():
        even = rows.groupby("ts")["optimum"].mean().reset_index()
        colour = (theme.prefill if role == "prefill" else theme.decode)[0]
        style = {"dash": "dot", "width": 2.4}
        drawn.add_trace(
            line(f"optimum/{role}", f"{role} optimum", time_ms(even), values(even, "optimum"), colour, unit="at best", line=style)
        )
    drawn.layout.annotations = () if drawn.data else drawn.layout.annotations
    drawn.layout.yaxis.title.text = "requests present"
    return drawn


def shares(frame: pd.DataFrame, signals: pd.DataFrame | None = None, *, slo_s: float | None = None, theme: Theme = LIGHT) -> go.Figure:
    """Share of prompt blocks that some worker held, that the chosen one held, and that were not computed, in percent."""
    frame = _gapped(frame)
    x, colour = time_ms(frame), theme.colour
    traces = [
        line("possible", "possible", x, values(frame, "hit_possible_ratio", 100), colour["kv_possible"], unit="%", line={"dash": "dash"}),
        line("chosen", "chosen", x, values(frame, "hit_chosen_ratio", 100), colour["kv_hit"], unit="%", line={"width": 2}),
        line("realised", "realised", x, values(frame, "hit_realised_ratio", 100), colour["kv_realised"], unit="%", line={"dash": "dot"}),
    ]
    return figure(_over(signals), traces, theme, yaxis=axis(theme, "prompt blocks (%)", range=[0, 102]))


def busy(frame: pd.DataFrame, signals: pd.DataFrame | None = None, *, slo_s: float | None = None, theme: Theme = LIGHT) -> go.Figure:
    """How much of the most that each pool could serve it serves, in percent."""
    frame = _gapped(frame)
    x = time_ms(frame)
    traces = [
        line("prefill_busy", "prefill", x, values(frame, "prefill_busy_ratio", 100), theme.prefill[0], unit="%", line={"width": 2}),
        line("decode_busy", "decode", x, values(frame, "decode_busy_ratio", 100), theme.decode[0], unit="%", line={"dash": "5px,2px"}),
    ]
    return figure(_over(signals), traces, theme, yaxis=axis(theme, "of the most it could serve (%)", rangemode="tozero"))


def waits(frame: pd.DataFrame, signals: pd.DataFrame | None = None, *, slo_s: float | None = None, theme: Theme = LIGHT) -> go.Figure:
    """Mean wait for prefill as measured, and as M/G/k predicts it for these arrivals; no prediction where more arrives than is served."""
    frame = _gapped(frame)
    x, colour = time_ms(frame), theme.colour
    traces = [
        line("wait", "measured", x, values(frame, "wait_s"), colour["prefill_queue_s"], unit="s", line={"width": 2}),
        line("wait_predicted", "M/G/k", x, values(frame, "wait_predicted_s"), colour["knee"], unit="s", line={"dash": "dash"}),
    ]
    return figure(_over(signals), traces, theme, yaxis=axis(theme, "prefill wait (s)", rangemode="tozero"))


def gains(frame: pd.DataFrame, signals: pd.DataFrame | None = None, *, slo_s: float | None = None, theme: Theme = LIGHT) -> go.Figure:
    """What one more worker would take off: of prefill off TTFT (s), of decode off ITL (ms)."""
    frame = _gapped(frame)
    x = time_ms(frame)
    itl = [number(v, 1e3) for v in frame["itl_gain_s"]] if "itl_gain_s" in frame else [None] * len(x)
    return figure(
        _over(signals),
        [
            line("ttft_gain", "prefill worker", x, values(frame, "ttft_gain_s"), theme.prefill[0], unit="s TTFT", line={"width": 2}),
            line("itl_gain", "decode worker", x, itl, theme.decode[0], unit="ms ITL", line={"dash": "5px,2px"}, yaxis="y2"),
        ],
        theme,
        yaxis=axis(theme, "TTFT (s)", rangemode="tozero", domain=[0.56, 1], nticks=4),
        yaxis2=axis(theme, "ITL (ms)", rangemode="tozero", domain=[0, 0.45], anchor="x", nticks=4),
        time_axis={"anchor": "y2"},
    )
