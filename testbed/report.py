"""What the client measured, summed up: quantiles by phase, and every failure. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table

from testbed.scenario import Phase

PER_TABLE = 7
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(slots=True)
class Tally:
    """What one phase's requests came to. Times in seconds, by the client's clock; ITL gaps from every chunk of every answer."""

    phase: Phase
    seconds: float = 0.0
    sent: int = 0
    finished: int = 0
    ttft_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    itl_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


def quantiles(values: Sequence[float]) -> tuple[float | None, ...]:
    """P50, P90, P99 by linear interpolation; None where there are no values."""
    return tuple(float(q) for q in np.quantile(values, QUANTILES)) if len(values) else (None,) * len(QUANTILES)


def as_data(tallies: Sequence[Tally]) -> list[dict[str, Any]]:
    """One JSON-ready row for each phase; a quantile without data is null."""
    rows = []
    for number, tally in enumerate(tallies, 1):
        row: dict[str, Any] = {
            "phase": number,
            "users": tally.phase.users,
            "rate_per_s": tally.phase.rate,
            "seconds": round(tally.seconds, 3),
        }
        row |= {"sent": tally.sent, "finished": tally.finished, "failed": tally.errors.total()}
        row |= {"finished_per_s": round(tally.finished / tally.seconds, 3) if tally.seconds else None}
        for name, values in (("ttft", tally.ttft_s), ("itl", tally.itl_s), ("e2e", tally.e2e_s)):
            for quantile, value in zip(QUANTILES, quantiles(values), strict=True):
                row[f"{name}_p{quantile * 100:.0f}_s"] = None if value is None else round(value, 6)
        row["errors"] = dict(tally.errors)
        rows.append(row)
    return rows


def _show(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.0f} ms"


def table(title: str, tallies: Sequence[Tally]) -> Group:
    """A column for each phase; a terminal of 80 has room for seven, so the eighth begins a table below."""
    parts = [tallies[i : i + PER_TABLE] for i in range(0, len(tallies), PER_TABLE)]
    return Group(*(_table(title if n == 0 else "", part) for n, part in enumerate(parts)))


def _table(title: str, tallies: Sequence[Tally]) -> Table:
    result = Table(title=title, title_justify="left")
    result.add_column("phase", no_wrap=True)
    for tally in tallies:
        result.add_column(str(tally.phase), justify="right", no_wrap=True)
    result.add_row("seconds", *(f"{t.seconds:.0f}" for t in tallies))
    result.add_row("sent", *(str(t.sent) for t in tallies))
    result.add_row("finished", *(str(t.finished) for t in tallies))
    result.add_row("failed", *(str(t.errors.total()) for t in tallies))
    result.add_row("finished/s", *(f"{t.finished / t.seconds:.1f}" if t.seconds else "–" for t in tallies), end_section=True)
    for name in ("TTFT", "ITL", "E2E"):
        columns = [quantiles({"TTFT": t.ttft_s, "ITL": t.itl_s, "E2E": t.e2e_s}[name]) for t in tallies]
        for index, quantile in enumerate(QUANTILES):
            result.add_row(f"{name} P{quantile * 100:.0f}", *(_show(column[index]) for column in columns))
    return result


def error_lines(tallies: Sequence[Tally]) -> list[str]:
    """One line for each kind of failure of each phase."""
    return [f"phase {number}: {count} × {what}" for number, tally in enumerate(tallies, 1) for what, count in tally.errors.most_common()]
