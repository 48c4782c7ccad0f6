"""Regime bands: what lies behind every time chart."""

from typing import Any

import pandas as pd

from app.charts.frame import label, number, time_ms
from app.theme import LIGHT, Theme

ABOVE = 1.08  # a little higher than the plot, so that the regime's name stands above the lines
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


def marks(decisions: pd.DataFrame, theme: Theme = LIGHT) -> list[dict[str, Any]]:
    """Decisions as thin upright lines named `mark:<kind>`: intents, expiries, and targets that moved τ or ω."""
    found = []
    for ts, row in zip(time_ms(decisions), decisions.to_dict("records"), strict=True):
        moved = (row["tau"], row["omega"]) != (row["from_tau"], row["from_omega"])
        if row["kind"] not in ("intent", "expiry") and not (row["kind"] == "target" and moved):
            continue
        tau, omega = number(row["tau"]), number(row["omega"])
        parameters = f" τ {tau:g} ω {omega:g}" if tau is not None and omega is not None else ""
        what = row["mode"] if isinstance(row["mode"], str) else row["kind"]
        found.append(
            {
                "type": "line",
                "name": f"mark:{row['kind']}",
                "xref": "x",
                "yref": "paper",
                "x0": ts,
                "x1": ts,
                "y0": 0,
                "y1": 0.9,
                "line": {"color": theme.mark, "width": 1, "dash": "dot" if row["kind"] == "target" else "solid"},
                "label": {
                    "text": label(f"{row['kind']}: {what}{parameters}"),
                    "textposition": "end",
                    "textangle": 0,
                    "xanchor": "left",
                    "yanchor": "top",
                    "font": {"size": 10, "color": theme.muted},
                },
            }
        )
    return found
