"""Named queries: one file in sql/ and one function here, by the same name. All take a DuckDB cursor and return a pyarrow.Table.

Times are `datetime` (naive is UTC), Unix seconds or ISO-8601 text, and bound the rows as from <= t < to; None is no bound.
Columns, units and order stand in the head of each file. An empty table means that nothing was stored in that span.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from poascope.errors import Misconfigured
from queries.effects import effects as estimate_effects

SQL = Path(__file__).parent / "sql"
BATCH_ROWS = 20_000
Time = datetime | float | str | None
# Queries that answer with what an estimator makes of their file's rows.
ESTIMATED: Mapping[str, Callable[[pa.Table], pa.Table]] = {"effects": estimate_effects}
_PARAMETER = re.compile(r"^-- \$(\w+) (VARCHAR|TIMESTAMP|DOUBLE)( required)?: (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    type: str
    required: bool
    help: str


@dataclass(frozen=True, slots=True)
class Query:
    name: str
    purpose: str
    sql: str
    parameters: tuple[Parameter, ...]


@cache
def catalogue() -> dict[str, Query]:
    """Every query by name, with its parameters as its file declares them."""
    found = {}
    for file in sorted(SQL.glob("*.sql")):
        text = file.read_text()
        parameters = tuple(Parameter(name, kind, bool(required), help) for name, kind, required, help in _PARAMETER.findall(text))
        found[file.stem] = Query(file.stem, text.splitlines()[0].removeprefix("-- "), text, parameters)
    return found


def read(cursor: duckdb.DuckDBPyConnection, name: str, given: Mapping[str, Any]) -> pa.RecordBatchReader:
    """Rows of the named query in batches, as they come. Raises Misconfigured: which name or parameter is wrong, and which are known."""
    query = catalogue().get(name)
    if query is None:
        raise Misconfigured(f"query: {name} - no such query; known: {', '.join(catalogue())}")
    rows = cursor.sql(query.sql, params=bind(query, given)).to_arrow_reader(BATCH_ROWS)
    estimate = ESTIMATED.get(name)
    return estimate(rows.read_all()).to_reader(BATCH_ROWS) if estimate else rows


def bind(query: Query, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the query's own types, None for what is not given."""
    known = {parameter.name: parameter for parameter in query.parameters}
    for name in given:
        if name not in known:
            takes = f"known: {', '.join(known)}" if known else "it takes none"
            raise Misconfigured(f"query {query.name}: {name} - no such parameter; {takes}")
    bound = {name: None if given.get(name) is None else _value(query.name, known[name], given[name]) for name in known}
    for name, parameter in known.items():
        if parameter.required and bound[name] is None:
            raise Misconfigured(f"query {query.name}: {name} - missing; {parameter.help}")
    return bound


def _value(query: str, parameter: Parameter, value: Any) -> Any:
    if parameter.type == "VARCHAR":
        return str(value)
    if parameter.type == "TIMESTAMP":
        moment = _moment(value)
        if moment is None:
            raise Misconfigured(f"query {query}: {parameter.name}: {value!r} - not a time; give ISO-8601 (UTC) or Unix seconds")
        return moment
    number = _number(value)
    if number is None or not 1e-3 <= number <= 1e9:
        raise Misconfigured(f"query {query}: {parameter.name}: {value!r} - not a number of seconds between 0.001 and 1e9")
    return number


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if isfinite(number) else None


def _moment(value: Any) -> datetime | None:
    """Naive UTC, as the tables hold it."""
    try:
        seconds = None if isinstance(value, datetime) else _number(value)
        if seconds is not None:
            moment = datetime.fromtimestamp(seconds, UTC)
        else:
            moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def deployments(cursor: duckdb.DuckDBPyConnection) -> pa.Table:
    """Every deployment the store knows: deployment, first_at, last_at, regime (the latest, NULL before the first signals)."""
    return read(cursor, "deployments", {}).read_all()


def signals(cursor: duckdb.DuckDBPyConnection, deployment: str | None = None, from_: Time = None, to: Time = None) -> pa.Table:
    """One row a second and deployment, in order of ts; columns as the table `signals`."""
    return read(cursor, "signals", {"deployment": deployment, "from": from_, "to": to}).read_all()


def signals_binned(
    cursor: duckdb.DuckDBPyConnection, step_s: float, deployment: str | None = None, from_: Time = None, to: Time = None
) -> pa.Table:
    """The same columns in bins of `step_s`: the worst latency and PoA, mean rates and counts, the last regime."""
    return read(cursor, "signals_binned", {"deployment": deployment, "from": from_, "to": to, "step_s": step_s}).read_all()


def requests(cursor: duckdb.DuckDBPyConnection, deployment: str | None = None, from_: Time = None, to: Time = None) -> pa.Table:
    """Requests that arrived in the span, in order of arrival; columns as the table `requests`."""
    return read(cursor, "requests", {"deployment": deployment, "from": from_, "to": to}).read_all()


def request(cursor: duckdb.DuckDBPyConnection, request_id: str, deployment: str | None = None) -> pa.Table:
    """The request of that id (one row, more if deployments share it); columns as the table `requests`."""
    return read(cursor, "request", {"deployment": deployment, "request_id": request_id}).read_all()


def requests_like(cursor: duckdb.DuckDBPyConnection, prefix: str, deployment: str | None = None) -> pa.Table:
    """At most 50 requests whose id begins with `prefix`, the newest first: deployment, request_id, arrived_at, outcome, ttft_s, e2e_s."""
    return read(cursor, "requests_like", {"deployment": deployment, "prefix": prefix}).read_all()


def slowest(cursor: duckdb.DuckDBPyConnection, deployment: str | None = None, from_: Time = None, to: Time = None) -> pa.Table:
    """The 50 requests of the span with the longest TTFT, the slowest first: ids, times in seconds, workers, queue and blocks found."""
    return read(cursor, "slowest", {"deployment": deployment, "from": from_, "to": to}).read_all()


def worker_inflight(
    cursor: duckdb.DuckDBPyConnection, step_s: float, deployment: str | None = None, from_: Time = None, to: Time = None
) -> pa.Table:
    """ts, deployment, role, component, worker_id, dp_rank, inflight (mean requests in flight over `step_s`), by time."""
    return read(cursor, "worker_inflight", {"deployment": deployment, "from": from_, "to": to, "step_s": step_s}).read_all()


def latency_binned(
    cursor: duckdb.DuckDBPyConnection, step_s: float, deployment: str | None = None, from_: Time = None, to: Time = None
) -> pa.Table:
    """ts, deployment, kind (ttft, itl, e2e), n, mean_s, p50_s, p90_s, p99_s, max_s from histograms, by time; within 2.4 % of exact."""
    return read(cursor, "latency_binned", {"deployment": deployment, "from": from_, "to": to, "step_s": step_s}).read_all()


def workers(cursor: duckdb.DuckDBPyConnection, deployment: str | None = None, from_: Time = None, to: Time = None) -> pa.Table:
    """Load samples of workers by time; columns as the table `workers`."""
    return read(cursor, "workers", {"deployment": deployment, "from": from_, "to": to}).read_all()


def decisions(cursor: duckdb.DuckDBPyConnection, deployment: str | None = None, from_: Time = None, to: Time = None) -> pa.Table:
    """Intents, targets, acknowledgements, expiries, refusals and holds by time; columns as the table `decisions`."""
    return read(cursor, "decisions", {"deployment": deployment, "from": from_, "to": to}).read_all()


def effects(cursor: duckdb.DuckDBPyConnection, deployment: str | None = None, from_: Time = None, to: Time = None) -> pa.Table:
    """What each change of τ and ω did, a row a change and measure, by time: before, after, ratio with its 90 % interval, doubts."""
    return read(cursor, "effects", {"deployment": deployment, "from": from_, "to": to}).read_all()


def games(cursor: duckdb.DuckDBPyConnection, deployment: str | None = None, from_: Time = None, to: Time = None) -> pa.Table:
    """The cost of each of the three games every 5 s, and the sentence on top; columns as the table `games`."""
    return read(cursor, "games", {"deployment": deployment, "from": from_, "to": to}).read_all()


def games_binned(
    cursor: duckdb.DuckDBPyConnection, step_s: float, deployment: str | None = None, from_: Time = None, to: Time = None
) -> pa.Table:
    """The games' numbers in bins of `step_s`: costs in seconds a finished request, the rest as means."""
    return read(cursor, "games_binned", {"deployment": deployment, "from": from_, "to": to, "step_s": step_s}).read_all()


def game_loads(
    cursor: duckdb.DuckDBPyConnection, step_s: float, deployment: str | None = None, from_: Time = None, to: Time = None
) -> pa.Table:
    """ts, deployment, role, component, worker_id, dp_rank, inflight and optimum (requests present, mean over `step_s`), by time."""
    return read(cursor, "game_loads", {"deployment": deployment, "from": from_, "to": to, "step_s": step_s}).read_all()


def gaps(cursor: duckdb.DuckDBPyConnection, from_: Time = None, to: Time = None) -> pa.Table:
    """What is missing: source, kind, from, to, count, deployment; gaps that overlap the span, by their start."""
    return read(cursor, "gaps", {"from": from_, "to": to}).read_all()


def events(cursor: duckdb.DuckDBPyConnection, deployment: str | None = None, from_: Time = None, to: Time = None) -> pa.Table:
    """ts, until, deployment, kind, what, who, why: changes of regime, overrides, switches, lost workers and gaps, by time."""
    return read(cursor, "events", {"deployment": deployment, "from": from_, "to": to}).read_all()


def incidents(cursor: duckdb.DuckDBPyConnection, deployment: str | None = None, from_: Time = None, to: Time = None) -> pa.Table:
    """Marked incidents and excursions into saturated that touch the span, newest first, with their worst TTFT P99 and peak PoA-hat."""
    return read(cursor, "incidents", {"deployment": deployment, "from": from_, "to": to}).read_all()


def kv_events(cursor: duckdb.DuckDBPyConnection, deployment: str | None = None, from_: Time = None, to: Time = None) -> pa.Table:
    """KV cache events, each once, by time; columns as the table `kv_events`."""
    return read(cursor, "kv_events", {"deployment": deployment, "from": from_, "to": to}).read_all()


def metric_samples(cursor: duckdb.DuckDBPyConnection, name: str | None = None, from_: Time = None, to: Time = None) -> pa.Table:
    """ts, target, name, labels (JSON), value of counters and gauges, by time."""
    return read(cursor, "metric_samples", {"name": name, "from": from_, "to": to}).read_all()


def histogram_samples(cursor: duckdb.DuckDBPyConnection, name: str | None = None, from_: Time = None, to: Time = None) -> pa.Table:
    """ts, target, name, labels (JSON), le (bounds), counts (cumulative), total of histograms, by time."""
    return read(cursor, "histogram_samples", {"name": name, "from": from_, "to": to}).read_all()


def alarms(cursor: duckdb.DuckDBPyConnection, deployment: str | None = None, from_: Time = None, to: Time = None) -> pa.Table:
    """What the early warning said, by time; columns as the table `alarms`."""
    return read(cursor, "alarms", {"deployment": deployment, "from": from_, "to": to}).read_all()


def alarm_record(cursor: duckdb.DuckDBPyConnection, deployment: str | None = None, from_: Time = None, to: Time = None) -> pa.Table:
    """State and track record of the early warning, one row for each deployment and signal; the one that spoke last at the end."""
    return read(cursor, "alarm_record", {"deployment": deployment, "from": from_, "to": to}).read_all()


def resume(cursor: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row: signals_at and control_at, up to when the store already has signals and the control bucket's entries; NULL for none."""
    return read(cursor, "resume", {}).read_all()
