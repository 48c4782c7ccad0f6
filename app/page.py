"""A page of the live component, as data: panels, the queries they read, and the head above them. app/panels.py has them all. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd
import plotly.graph_objects as go

from app.charts.load import Lines
from app.status import Objectives, Row, Tile, Verdict
from app.theme import Theme

Rows = Mapping[str, Sequence[Row]]


@dataclass(frozen=True, slots=True)
class Given:
    """What a panel draws. frames: by the name of the query, with `signals` (gaps shown) and `decisions`; lines: workers with their own."""

    frames: Mapping[str, pd.DataFrame]
    objectives: Objectives
    theme: Theme
    lines: Lines | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart, or with `draw` None only what the page's head says under its key. `named`: the regimes behind it carry their names."""

    key: str
    title: str
    hint: str
    draw: Callable[[Given], go.Figure] | None
    named: bool = False


@dataclass(frozen=True, slots=True)
class Head:
    """The sentence on top, the numbers below it, and sentences to stand in panels, by their key."""

    verdict: Verdict
    tiles: list[Tile]
    said: Mapping[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    """queries: read for the charts beside `signals` and `decisions`, each with deployment, from and step_s.

    latest: read each second for the head, which gets their rows of the last two minutes, oldest first, each with `at` (Unix s), and the age
    of the newest signals in seconds. The first of them is what the tiles show: a row of it comes every `every_s`.
    """

    name: str
    panels: tuple[Panel, ...]
    head: Callable[[Rows, float | None, Objectives], Head]
    queries: tuple[str, ...] = ()
    latest: tuple[str, ...] = ("signals",)
    every_s: float = 1.0


def trends(page: Page, rows: Sequence[Row], objectives: Objectives) -> dict[str, list[float | None]]:
    """For each tile its last sixty points, oldest first. rows: of the first query of `latest`."""
    found: dict[str, list[float | None]] = {}
    for end in range(max(1, len(rows) - 59), len(rows) + 1):
        alone = dict.fromkeys(page.latest, rows[:0]) | {page.latest[0]: rows[max(0, end - 1) : end]}
        for tile in page.head(alone, 0.0, objectives).tiles:
            found.setdefault(tile.key, []).append(tile.point)
    return found
