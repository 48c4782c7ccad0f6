"""`experiment`: what the alarm's signals and the regime's sources would have done on recordings, by the client's own clock.

The recordings take the way of live messages: the same core, the same windows, `alarm.step` and `judge` themselves. The truth does not come
from poascope but from the load generator (`testbed load --out`), or from the `client` lines of a recording.
"""

import gzip
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from collectors.capture import Reader
from collectors.core import Core
from collectors.importer import ROWS_PER_TAKE, feed
from poascope.errors import Misconfigured, PoascopeError
from poascope.settings import Settings
from queries.estimators.alarm import MIN_QUIET_S, PROVEN_AFTER_S, RECOVERED_S, SIGNALS, Alarm, Said, level, of_row, record, step
from queries.estimators.quantiles import quantile
from queries.estimators.regime import REGIMES, THRESHOLDS_S, Regime
from queries.signals import Row, is_silent, judge
from queries.window import Floats, Window

SOURCES = ("censored", "events", "prometheus")
NEXT_S = 5.0  # a moment is slow if the median of those sent in the next 5 s is
LASTS_S = 10.0
EARLY_S = 30.0
Span = tuple[float, float]


class _Outcome(msgspec.Struct):
    sent: float
    first: float | None = None
    src: str = "client"


@dataclass(frozen=True, slots=True)
class Client:
    """When requests were sent and when their first token came (NaN: never), by the client's clock, in order of sending. Unix seconds."""

    sent: Floats
    first: Floats

    def p99_s(self, at: float, window_s: float) -> float | None:
        """TTFT P99 of the first tokens of the window; None without one."""
        seen = (self.first > at - window_s) & (self.first <= at)
        return quantile((self.first - self.sent)[seen], 0.99).value

    def slow(self, limit_s: float) -> list[Span]:
        """Spans in which the median TTFT passed the limit for 10 s and more, from the first request that met it to the last.

        The median, because a few users more are a burst: it lifts the P99 of 5 s, rightly, and is over before anyone could act.
        """
        ttft = np.where(np.isnan(self.first), np.inf, self.first - self.sent)
        ends = np.searchsorted(self.sent, self.sent + NEXT_S, "left")
        over = np.array([float(np.median(ttft[i:j])) > limit_s for i, j in enumerate(ends)], dtype=np.bool_)
        spans: list[Span] = []
        for at in self.sent[over]:
            if spans and at - spans[-1][1] <= LASTS_S:
                spans[-1] = (spans[-1][0], float(at))
            else:
                spans.append((float(at), float(at)))
        return [s for s in spans if s[1] - s[0] >= LASTS_S]


def read_client(paths: Sequence[Path]) -> Client:
    """The truth from `--out` files, or from recordings with `client` lines. Raises PoascopeError."""
    decoder, found = msgspec.json.Decoder(_Outcome), []
    for path in paths:
        if not path.is_file():
            raise Misconfigured(f"client: {path} - no such file")
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for text in file:
                try:
                    outcome = decoder.decode(text)
                except msgspec.DecodeError:
                    continue
                found.append((outcome.sent, outcome.first if outcome.first is not None else float("nan")))
    if not found:
        raise PoascopeError(f"client: {', '.join(map(str, paths))} - no request in it; give the files that `testbed load --out` wrote")
    table = np.array(sorted(found))
    return Client(table[:, 0], table[:, 1])


@dataclass(frozen=True, slots=True)
class Played:
    """A recording as the core saw it: rows of signals, and the regime by each source at each second (`ts`, name)."""

    path: Path
    rows: list[Row]
    regimes: dict[str, list[tuple[float, str]]]
    truncated: str | None


def preset_of(settings: Settings) -> str:
    """Thresholds that stand before anything was seen: learnt ones would differ from source to source."""
    return settings.preset if settings.preset in THRESHOLDS_S else "70b"


def play(path: Path, settings: Settings) -> Played:
    """Through a core of its own, as `import` does, without a store. Raises PoascopeError unless it is of one deployment."""
    core, states = Core(settings), {source: Regime() for source in SOURCES}
    played = Played(path, [], {source: [] for source in SOURCES}, None)
    names = set()

    def look(window: Window) -> None:
        names.add(window.deployment)
        for source in SOURCES:
            states[source] = judge(states[source], window, preset_of(settings), is_silent(window), source)
            played.regimes[source].append((window.end, states[source].name))

    core.seen = look
    reader = Reader(path)
    for line in reader:
        played.rows.extend(core.advance(line.t))
        feed(core, line)
        if len(core.rows) >= ROWS_PER_TAKE:
            core.take()
    if len(names) != 1:
        raise PoascopeError(f"experiment: {path} - {len(names)} deployments in it, and it takes one")
    return replace(played, truncated=reader.truncated)


def stretches(rows: list[Row], p99: Callable[[Row], float | None], slo_s: float) -> list[list[Row]]:
    """Rows in runs that kept the objective; half a minute after a breach a run begins."""
    over = [r["ts"] for r in rows if (p99(r) or 0.0) > slo_s]
    edges = [-np.inf, *over, np.inf]
    runs = []
    for before, after in pairwise(edges):
        if after - before > RECOVERED_S:
            runs.append([r for r in rows if before + RECOVERED_S < r["ts"] < after])
    return runs


def early_warning(rows: list[Row], client: Client, settings: Settings) -> list[dict[str, Any]]:
    """A row for each signal: lead over the breach of the TTFT objective, misses, false alarms.

    The limits are learnt on the first half of the longest quiet stretch, if that is enough, and judged on everything else; else learnt on
    the way, as a new deployment does.
    """
    truth = {r["ts"]: client.p99_s(r["ts"], settings.window_s) for r in rows}
    quiet = max(stretches(rows, lambda r: truth[r["ts"]], settings.slo_ttft_s), key=len, default=[])
    half = quiet[: len(quiet) // 2]
    lesson = half if len(half) >= MIN_QUIET_S + PROVEN_AFTER_S else []
    learnt_until = {r["ts"] for r in lesson}
    table = []
    for signal in SIGNALS:
        alarm = Alarm(signal)
        for row in lesson:
            alarm = step(alarm, row["ts"], of_row(signal, row), truth[row["ts"]], settings.slo_ttft_s)
        alarm = Alarm(signal, "armed" if alarm.baseline else "learning", baseline=alarm.baseline, quiet=alarm.quiet)
        first = alarm.baseline
        said: list[Said] = []
        for row in rows:
            if row["ts"] not in learnt_until:
                alarm = step(alarm, row["ts"], of_row(signal, row), truth[row["ts"]], settings.slo_ttft_s)
                said.extend(alarm.said)
        seen = record(said)
        table.append(
            {
                "signal": signal,
                "breaches": seen.breaches,
                "missed": seen.missed,
                "untested": seen.untested,
                "lead_s": float(np.median(seen.leads_s)) if seen.leads_s else None,
                "lead_low_s": min(seen.leads_s, default=None),
                "lead_high_s": max(seen.leads_s, default=None),
                "false_alarms": seen.false_alarms,
                "false_per_hour": seen.false_per_hour,
                "watched_h": seen.watched_s / 3600,
                "limit_from": level(signal, first.reference) if first else None,
                "learnt_s": len(lesson),
            }
        )
    return table


def detection(played: Sequence[Played], client: Client, settings: Settings) -> list[dict[str, Any]]:
    """A row for each source and regime: delay from the onset, time in the regime without cause, switches and returns.

    Onset: the client's median TTFT passes the threshold of the regime. A switch up to 30 s before counts as a negative delay; who is
    there for longer is `already` there, which is no detection. False: a switch outside the slow spans. Oscillations: returns within one.
    """
    table = []
    for number, (name, limit_s) in enumerate(zip(REGIMES[1:], THRESHOLDS_S[preset_of(settings)], strict=True), 1):
        spans = client.slow(limit_s)
        for source in SOURCES:
            delays, recoveries, already, missed, returns, false, wrong_s, calm_s = [], [], 0, 0, 0, 0, 0, 0
            for one in played:
                states = one.regimes[source]
                there = [(at, at_least(state, number)) for at, state in states]
                up = [b[0] for a, b in pairwise(there) if b[1] and not a[1]]
                mine = [s for s in spans if there and there[0][0] <= s[0] <= there[-1][0]]
                for start, end in mine:
                    inside = [at for at in up if start - EARLY_S < at <= end]
                    there_before = any(on for at, on in there if start - EARLY_S - 1 <= at <= start - EARLY_S)
                    if there_before:
                        already += 1
                    elif not inside:
                        missed += 1
                    else:
                        delays.append(inside[0] - start)
                    # The first time is the detection; for who was there already each one is a return.
                    returns += len(inside) if there_before else max(0, len(inside) - 1)
                    over = next((at for at, on in there if at > end and not on), None)
                    if over is not None:
                        recoveries.append(over - end)
                false += sum(not any(start - EARLY_S < at <= end for start, end in mine) for at in up)
                outside = [on for at, on in there if not any(start - EARLY_S < at <= end + EARLY_S for start, end in mine)]
                wrong_s, calm_s = wrong_s + sum(outside), calm_s + len(outside)
            table.append(
                {
                    "regime": name,
                    "source": source,
                    "onsets": len(delays) + already + missed,
                    "delay_s": float(np.median(delays)) if delays else None,
                    "delay_low_s": min(delays, default=None),
                    "delay_high_s": max(delays, default=None),
                    "already": already,
                    "missed": missed,
                    "oscillations": returns,
                    "recovery_s": float(np.median(recoveries)) if recoveries else None,
                    "false_switches": false,
                    "false_per_hour": false * 3600 / calm_s if calm_s else None,
                    "wrong_ratio": wrong_s / calm_s if calm_s else None,
                    "calm_h": calm_s / 3600,
                }
            )
    return table


def at_least(state: str, number: int) -> bool:
    """Whether a regime is this one or a worse one; `unknown` is not."""
    return state in REGIMES[number:]


def run(name: str, recordings: Sequence[Path], client_files: Sequence[Path], settings: Settings) -> dict[str, Any]:
    """The table of one experiment, and what it was computed on."""
    played = [play(path, settings) for path in recordings]
    for (one, first), (other, second) in pairwise(sorted(zip(recordings, played, strict=True), key=lambda p: p[1].rows[0]["ts"])):
        if second.rows[0]["ts"] <= first.rows[-1]["ts"]:
            raise Misconfigured(f"experiment: {one} and {other} - overlap in time; give recordings of one cluster, one after another")
    played.sort(key=lambda p: float(p.rows[0]["ts"]))
    rows = [row for one in played for row in one.rows]
    client = read_client(client_files or recordings)
    table = early_warning(rows, client, settings) if name == "early-warning" else detection(played, client, settings)
    on = {
        "recordings": [str(p) for p in recordings],
        "truncated": [str(one.path) for one in played if one.truncated],
        "seconds": len(rows),
        "requests": len(client.sent),
        "slo_ttft_s": settings.slo_ttft_s,
        "preset": preset_of(settings),
    }
    return {"experiment": name, "on": on, "table": table}


def lines(table: list[dict[str, Any]]) -> Iterator[str]:
    """The table for reading: a header, then a line a row."""
    if not table:
        return
    cells = [[*table[0]], *[[_cell(v) for v in row.values()] for row in table]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    for row in cells:
        yield "  ".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True)))


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
