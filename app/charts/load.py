"""Load over time: throughput, what waits, and who is hot."""

from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from app.charts.frame import label, time_ms, values
from app.charts.panel import axis, figure, line
from app.theme import LIGHT, Theme

OWN_LINES = 12


def throughput(frame: pd.DataFrame, *, slo_s: float | None = None, theme: Theme = LIGHT) -> go.Figure:
    """Requests arriving and finishing per second above; requests in flight, queued, and the knee below. `slo_s` is not used."""
    x, colour = time_ms(frame), theme.colour
    return figure(
        frame,
        [
            line("arrivals", "arriving", x, values(frame, "arrivals_per_s"), colour["arrivals"], unit="req/s"),
            line("finished", "finishing", x, values(frame, "finished_per_s"), colour["finished"], unit="req/s", line={"width": 2}),
            line("inflight", "in flight", x, values(frame, "inflight"), colour["inflight"], unit="requests", yaxis="y2"),
            line("queued", "queued", x, values(frame, "queued"), colour["queued"], unit="requests", yaxis="y2", line={"dash": "5px,2px"}),
            line(
                "knee",
                "knee",
                x,
                values(frame, "knee_inflight"),
                colour["knee"],
                unit="requests",
                yaxis="y2",
                line={"dash": "dot", "width": 1.2},
            ),
        ],
        theme,
        yaxis=axis(theme, "req/s", rangemode="tozero", domain=[0.56, 1], nticks=4),
        yaxis2=axis(theme, "requests", rangemode="tozero", domain=[0, 0.45], anchor="x", nticks=4),
        time_axis={"anchor": "y2"},
    )


def short_ids(ids: list[str]) -> dict[str, str]:
    """The shortest tails (six digits or more) that still tell every id apart."""
    for digits in range(6, 21):
        tails = {i: i if len(i) <= digits else f"…{i[-digits:]}" for i in ids}
        if len(set(tails.values())) == len(set(ids)):
            return tails
    return {i: i for i in ids}


Key = tuple[str, str, int]  # component, worker id, data-parallel rank


@dataclass(frozen=True, slots=True)
class Lines:
    """Which workers have a line of their own, and which are drawn as one sum."""

    own: frozenset[Key] = frozenset()
    others: frozenset[Key] = frozenset()


def _known(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.dropna(subset=["worker_id"]).assign(
        worker_id=lambda f: f["worker_id"].astype(str), rank=lambda f: f["dp_rank"].fillna(0).astype(int)
    )


def choose(frame: pd.DataFrame, before: Lines | None = None) -> Lines:
    """The `OWN_LINES` workers with the most in flight at their peak. `before`: lines of a frame that this one goes on from; they stay."""
    if not len(frame):
        return before or Lines()
    peaks = _known(frame).groupby(["component", "worker_id", "rank"])["inflight"].max().reset_index().to_dict("records")
    ranked = sorted((-p["inflight"], (str(p["component"]), str(p["worker_id"]), int(p["rank"]))) for p in peaks)
    busiest: list[Key] = [key for _, key in ranked]
    own, others = (before.own, before.others) if before else (frozenset[Key](), frozenset[Key]())
    fresh = [key for key in busiest if key not in own and key not in others]
    room = 0 if others else OWN_LINES - len(own)
    return Lines(own | frozenset(fresh[:room]), others | frozenset(fresh[room:]))


def workers(
    frame: pd.DataFrame,
    signals: pd.DataFrame | None = None,
    *,
    lines: Lines | None = None,
    slo_s: float | None = None,
    theme: Theme = LIGHT,
) -> go.Figure:
    """Requests in flight on each worker: prefill solid, decode dashed; beyond the busiest a sum. The bands are those of `signals`.

    `lines`: as `choose` says, which is the default.
    Reads `ts, role, component, worker_id, dp_rank, inflight` of `worker_inflight`, with `worker_id` as text. `slo_s` is not used.
    """
    traces: list[go.Scatter] = []
    backdrop = signals if signals is not None else pd.DataFrame()
    if len(frame):
        drawn, known = lines or choose(frame), _known(frame)
        keys = pd.MultiIndex.from_frame(known[["component", "worker_id", "rank"]])
        is_other = keys.isin(list(drawn.others)) if drawn.others else [False] * len(known)
        rest = known[is_other].groupby("ts")["inflight"].sum().reset_index()
        known = known[[not other for other in is_other]]
        tails = short_ids(sorted(known["worker_id"].unique()))
        several = known.groupby("worker_id")["rank"].nunique().max() > 1 if len(known) else False
        seen = {"prefill": 0, "decode": 0}
        for key, rows in known.groupby(["component", "worker_id", "rank"], sort=True):
            component, worker, rank = str(key[0]), str(key[1]), str(key[2])
            role = next((r for r in rows["role"] if isinstance(r, str)), None)
            family = "prefill" if role == "prefill" else "decode"
            palette = theme.prefill if family == "prefill" else theme.decode
            colour = palette[seen[family] % len(palette)]
            seen[family] += 1
            suffix = f" dp{rank}" if several else ""
            name = f"{label(role or component, 16)} {tails[worker]}{suffix}"
            traces.append(
                line(
                    f"{component}/{worker}/{rank}",
                    name,
                    time_ms(rows),
                    values(rows, "inflight"),
                    colour,
                    unit="in flight",
                    line={"dash": "solid" if family == "prefill" else "5px,2px", "width": 1.8 if family == "prefill" else 1.5},
                    hovertemplate=f"%{{y}} in flight<extra>{label(component, 24)} {worker}{suffix}</extra>",
                )
            )
        if len(drawn.others):
            name = f"others ({len(drawn.others)} workers)"
            # The number is part of the uid: where it changes, the page asks for the figure anew, and with it the name.
            uid = f"others/{len(drawn.others)}"
            traces.append(line(uid, name, time_ms(rest), values(rest, "inflight"), theme.muted, unit="in flight", line={"dash": "dot"}))
    return figure(backdrop, traces, theme, yaxis=axis(theme, "requests in flight", rangemode="tozero"))
