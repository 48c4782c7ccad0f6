"""Regimes as bands behind every time chart, overrides as strips above, decisions as marks."""

from collections.abc import Mapping
from datetime import UTC, datetime
from textwrap import wrap
from typing import Any

import pandas as pd

from app.charts.frame import label, number, time_ms
from app.theme import LIGHT, Theme

ABOVE = 1.08  # a little higher than the plot, so that the regime's name stands above the lines
WRAP_AT, LONGEST = 64, 320  # characters of a reason on hover: a line, and altogether
TRAFFIC = ("inflight", "arrivals_per_s", "finished_per_s")


def spans(frame: pd.DataFrame) -> list[tuple[str, int, int]]:
    """(regime, from, to) in Unix ms for each stretch of equal regime. An empty row ends a stretch; without requests the stretch says so."""
    found: list[tuple[str, int, int]] = []
    if not len(frame) or "regime" not in frame:
        return found
    traffic = frame[[c for c in TRAFFIC if c in frame]].apply(pd.to_numeric)
    silent = (traffic.fillna(0).to_numpy() == 0).all(axis=1) & traffic.notna().to_numpy().any(axis=1)
    blank = traffic.isna().to_numpy().all(axis=1) & frame["regime"].isna().to_numpy()
    previous: str | None = None
    for ts, regime, none, empty in zip(time_ms(frame), frame["regime"], silent, blank, strict=True):
        kind = None if empty else "no requests" if none else regime if isinstance(regime, str) else "unknown"
        if kind is not None and kind == previous:
            found[-1] = (kind, found[-1][1], ts)
        elif kind is not None:
            if previous is not None:
                found[-1] = (previous, found[-1][1], ts)
            found.append((kind, ts, ts))
        previous = kind
    return found


def shapes(frame: pd.DataFrame, theme: Theme = LIGHT) -> list[dict[str, Any]]:
    """The spans as Plotly shapes named `band:<regime>`, the plot's height and a little more, under the data."""
    return [
        {
            "type": "rect",
            "name": f"band:{kind}",
            "layer": "below",
            "xref": "x",
            "yref": "paper",
            "x0": x0,
            "x1": x1,
            "y0": 0,
            "y1": ABOVE,
            "line": {"width": 0},
            "fillcolor": theme.band.get(kind, theme.band["unknown"]),
            "label": {
                "text": "" if kind == "below" else kind,
                "textposition": "top left",
                "font": {"size": 10, "color": theme.muted},
                "padding": 2,
            },
        }
        for kind, x0, x1 in spans(frame)
    ]


def overrides(frame: pd.DataFrame, theme: Theme = LIGHT) -> list[dict[str, Any]]:
    """Where an operator's parameters were in force, as strips named `over:<mode>` along the upper edge."""
    found: list[dict[str, Any]] = []
    if not len(frame) or "mode" not in frame:
        return found
    previous: str | None = None
    for ts, said in zip(time_ms(frame), frame["mode"], strict=True):
        mode = said if isinstance(said, str) and said != "auto" else None
        if previous is not None:
            found[-1]["x1"] = ts
        if mode is not None and mode != previous:
            strip = {"type": "rect", "name": f"over:{mode}", "xref": "x", "yref": "paper", "x0": ts, "x1": ts, "y0": 0.985, "y1": 1}
            found.append(strip | {"line": {"width": 0}, "fillcolor": theme.warn, "opacity": 0.6, "label": {"text": ""}})
        previous = mode
    return found


LINED = ("intent", "armed", "disarmed", "expiry", "target", "ack")  # the others are told on hover and draw no line


def marks(decisions: pd.DataFrame, theme: Theme = LIGHT) -> list[dict[str, Any]]:
    """Decisions as thin upright lines named `mark:<kind>`, with who and why in `hover` as lines of escaped text.

    Not marked: targets that moved neither τ nor ω, acknowledgements without an error. Refusals, holds and dry runs have no line.
    """
    found = []
    for ts, row in zip(time_ms(decisions), decisions.to_dict("records"), strict=True):
        kind, failed = str(row["kind"]), isinstance(row.get("error"), str)
        moved = (row["tau"], row["omega"]) != (row["from_tau"], row["from_omega"])
        if (kind == "target" and not moved) or (kind == "ack" and not failed):
            continue
        what = told(row)
        found.append(
            {
                "type": "line",
                "name": f"mark:{kind}",
                "hover": hover(ts, row, what),
                "xref": "x",
                "yref": "paper",
                "x0": ts,
                "x1": ts,
                "y0": 0,
                "y1": 0.9 if kind in LINED else 0,
                "line": {"color": theme.mark, "width": 1, "dash": "dot" if kind == "target" else "solid"},
                "label": {
                    "text": label(kind if what == kind else f"{kind}: {what}") if kind in LINED else "",
                    "textposition": "end",
                    "textangle": 0,
                    "xanchor": "left",
                    "yanchor": "top",
                    "font": {"size": 10, "color": theme.muted},
                },
            }
        )
    return found


def told(row: Mapping[Any, Any]) -> str:
    """What a decision says in a few words: its mode and parameters, or that it failed."""
    tau, omega = number(row.get("tau")), number(row.get("omega"))
    mode = row.get("mode")
    parts = ["failed" if isinstance(row.get("error"), str) else "", mode if isinstance(mode, str) else ""]
    parts.append(f"τ {tau:g} ω {omega:g}" if tau is not None and omega is not None else "")
    return " ".join(part for part in parts if part) or str(row["kind"])


def hover(ts_ms: int, row: Mapping[Any, Any], what: str) -> str:
    """Who, what and why, wrapped, as Plotly's hover takes it: markup of others is text."""
    at = datetime.fromtimestamp(ts_ms / 1e3, UTC)
    who = next((v for v in (row.get("actor"), row.get("replica")) if isinstance(v, str)), "unknown")
    why = next((v for v in (row.get("error"), row.get("why")) if isinstance(v, str)), "")
    head = f"{at:%H:%M:%S} {label(who, 40)}: {row['kind']}" + ("" if what == row["kind"] else f", {label(what)}")
    lines = wrap(why[:LONGEST] + ("…" if len(why) > LONGEST else ""), WRAP_AT)
    return "<br>".join([head, *(label(line, WRAP_AT) for line in lines)])
