"""Today's estimators laid over what was stored: dotted lines of the same quantity. Pure."""

import pandas as pd
import plotly.graph_objects as go

from app.charts.frame import time_ms, values
from app.charts.panel import line
from app.theme import Theme

# panel -> (column, uid, name, unit)
LINES = {
    "poa": (("poa_hat", "poa_again", "recomputed", "×"),),
    "ttft": (("ttft_p99_s", "ttft_again", "P99 recomputed", "s"),),
}


def again(panel: str, figure: go.Figure, frame: pd.DataFrame, theme: Theme) -> go.Figure:
    """The figure of a panel with the recomputed quantities of `frame` (`ts` and columns of RECOMPUTED) dotted over it."""
    x = time_ms(frame)
    added = [
        line(uid, name, x, values(frame, column), theme.alarm, unit=unit, line={"dash": "dot", "width": 2})
        for column, uid, name, unit in LINES.get(panel, ())
    ]
    return go.Figure(data=[*figure.data, *added], layout=figure.layout) if added else figure
