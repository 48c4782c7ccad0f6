"""PoA-hat over time."""

import pandas as pd
import plotly.graph_objects as go

from app.charts.frame import time_ms, values, where
from app.charts.panel import figure, line, log_axis
from app.theme import LIGHT, Theme


def poa(frame: pd.DataFrame, *, slo_s: float | None = None, theme: Theme = LIGHT) -> go.Figure:
    """Calibrated PoA-hat with its 90 % interval, PoA-hat of TTFT alone, and the papers' frozen estimator; hollow where withheld.

    Reads `poa_hat, poa_low, poa_high, poa_withheld, poa_ttft, poa_frozen` (ratios) of `signals`. `slo_s` has no meaning here: no objective
    is set on a ratio.
    """
    x, hat = time_ms(frame), values(frame, "poa_hat")
    reasons = [r if isinstance(r, str) and r else None for r in frame["poa_withheld"]] if "poa_withheld" in frame else [None] * len(x)
    sound = [r is None for r in reasons]
    low, high = values(frame, "poa_low"), values(frame, "poa_high")
    spread = [
        (v, a, b) if v is not None and a is not None and b is not None else (0.0, 0.0, 0.0) for v, a, b in zip(hat, low, high, strict=True)
    ]
    colour, hollow = theme.colour, where(hat, [not s for s in sound])
    return figure(
        frame,
        [
            line("poa_frozen", "frozen", x, values(frame, "poa_frozen"), colour["poa_frozen"], unit="×", line={"width": 1.1}),
            line("poa_ttft", "TTFT alone", x, values(frame, "poa_ttft"), colour["poa_ttft"], unit="×", line={"dash": "5px,2px"}),
            line(
                "poa_hat",
                "calibrated",
                x,
                where(hat, sound),
                colour["poa"],
                unit="×",
                line={"width": 2},
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": [max(b - v, 0.0) for v, _, b in spread],
                    "arrayminus": [max(v - a, 0.0) for v, a, _ in spread],
                    "width": 0,
                    "thickness": 1,
                    "color": colour["poa"],
                },
            ),
            line(
                "poa_withheld",
                "withheld",
                x,
                hollow,
                colour["poa"],
                unit="×",
                line={"width": 6},
                meta="hollow",
                text=[r or "" for r in reasons],
                hovertemplate="%{y:.4~g} × withheld: %{text}<extra></extra>",
            ),
            # The inside of the hollow line: Plotly has no outlined stroke.
            line(
                "poa_core",
                "withheld, inside",
                x,
                hollow,
                theme.panel,
                unit="×",
                line={"width": 3},
                showlegend=False,
                hoverinfo="skip",
                hovertemplate=None,
            ),
        ],
        theme,
        # Below 1 no ratio to an optimum means anything: a withheld estimate near zero must not squeeze the rest.
        yaxis=log_axis(theme, "PoA-hat (×, log)", autorangeoptions={"clipmin": 0.5}),
    )
