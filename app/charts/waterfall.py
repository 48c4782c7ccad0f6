"""The life of one request as a waterfall."""

import plotly.graph_objects as go

from app.charts.frame import label, number
from app.theme import FONT, LIGHT, Theme
from queries.life import Life

# Stages that a colour of the lost seconds stands for keep it.
COLOUR = {
    "prefill queue": "prefill_queue_s",
    "prefill": "ttft_p90",
    "prefill and its queue": "prefill_queue_s",
    "transfer": "transfer_s",
    "first step": "ttft_p50",
    "decode": "ttft_p99",
}


def waterfall(life: Life | None, *, slo_s: float | None = None, theme: Theme = LIGHT) -> go.Figure:
    """One bar a stage over seconds since the request was routed, first stage on top; a stage that no event tells of has no bar and says
    so. `slo_s`: the TTFT objective, as a line."""
    figure = go.Figure()
    stages = life.stages if life else ()
    zero = next((s.start for s in stages if s.start is not None), 0.0)
    ticks: list[str] = []
    for stage in stages:
        name = label(stage.name)
        ticks.append(name)
        known = stage.start is not None and stage.end is not None
        seconds = stage.seconds if known and stage.seconds is not None else None
        where = f"{stage.worker[0]}, rank {stage.worker[1]}" if stage.worker else ""
        figure.add_bar(
            uid=stage.name,
            name=name,
            orientation="h",
            y=[name],
            base=[number(stage.start - zero)] if known and stage.start is not None else [0.0],
            x=[number(seconds)],
            text=[_seconds(seconds) if seconds is not None else "not reported"],
            textposition="outside",
            textfont={"color": theme.ink if known else theme.muted, "size": 12},
            cliponaxis=False,
            marker={"color": theme.colour[COLOUR.get(stage.name, "other_s")], "line": {"width": 0}},
            hovertext=[label("<br>".join(filter(None, [where, stage.note])), 200)] if where or stage.note else None,
            hovertemplate=f"{name}: %{{text}}<br>%{{hovertext}}<extra></extra>",
            showlegend=False,
        )
    shapes = []
    if slo_s is not None and stages:
        shapes = [
            {
                "type": "line",
                "xref": "x",
                "yref": "paper",
                "x0": slo_s,
                "x1": slo_s,
                "y0": 0,
                "y1": 1,
                "line": {"color": theme.alarm, "width": 1, "dash": "dash"},
                "label": {
                    "text": f"SLO {slo_s:g} s",
                    "textposition": "start",
                    "textangle": 0,
                    "xanchor": "left",
                    "yanchor": "bottom",
                    "font": {"size": 11, "color": theme.alarm},
                },
            }
        ]
    unknown = [
        {
            "x": 0,
            "y": label(s.name),
            "text": "not reported",
            "showarrow": False,
            "xanchor": "left",
            "font": {"size": 11, "color": theme.muted},
        }
        for s in stages
        if s.start is None or s.end is None
    ]
    nothing = [
        {
            "text": "No request chosen.",
            "showarrow": False,
            "xref": "paper",
            "yref": "paper",
            "x": 0.5,
            "y": 0.5,
            "font": {"color": theme.muted},
        }
    ]
    end = max((s.end - zero for s in stages if s.end is not None), default=1.0)
    figure.update_layout(
        barmode="overlay",
        bargap=0.35,
        height=60 + 34 * max(3, len(stages)),
        margin={"l": 8, "r": 24, "t": 8, "b": 40},
        paper_bgcolor=theme.panel,
        plot_bgcolor=theme.panel,
        font={"family": FONT, "color": theme.ink, "size": 12},
        xaxis={
            "title": {"text": "since it was routed (s)", "font": {"size": 11, "color": theme.muted}},
            "range": [0, end * 1.14 or 1.0],
            "gridcolor": theme.grid,
            "zeroline": False,
            "tickfont": {"size": 11, "color": theme.muted},
            "visible": bool(stages),
        },
        yaxis={
            "autorange": "reversed",
            "categoryorder": "array",
            "categoryarray": ticks,
            "automargin": True,
            "visible": bool(stages),
            "ticksuffix": " ",
        },
        shapes=shapes,
        annotations=unknown if stages else nothing,
    )
    return figure


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
