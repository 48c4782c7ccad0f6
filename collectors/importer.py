"""`import`: a recording through the same core as live messages, or another tool's trace, into a store, whole or not at all."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from collectors import foreign
from collectors.capture import Line, Reader
from collectors.core import Core
from poascope.errors import PoascopeError
from poascope.settings import Settings
from store import Store

ROWS_PER_TAKE = 20_000  # far below what the core keeps before it refuses rows: a line of metrics alone brings hundreds


@dataclass(slots=True)
class Imported:
    """What an import did. `rows` a table; `open_requests` were still under way when the recording ended and are in no table."""

    path: Path
    sha256: str
    already: bool = False
    truncated: str | None = None
    format: str = "recording"
    lacks: str = ""
    rows: Counter[str] = field(default_factory=Counter)
    counts: dict[str, int] = field(default_factory=dict)
    open_requests: int = 0


def import_capture(path: Path, store: Store, settings: Settings, now: datetime, deployment: str | None = None) -> Imported:
    """Import one recording, or a trace of AIPerf or Dynamo, told by what is in it. The second time it changes nothing; a broken end costs
    nothing but what is broken. `deployment`: under which name a trace is stored that tells none, by default that of its file.

    Raises PoascopeError when nothing in the file can be read, or its schema is not known.
    """
    reader = Reader(path)
    known = foreign.recognise(path, foreign.first_line(path))
    done = Imported(path, reader.sha256())
    with store.cursor() as cursor:
        done.already = bool(cursor.execute("SELECT 1 FROM imports WHERE sha256 = $sha256", {"sha256": done.sha256}).fetchone())
    if not done.already:
        parts: dict[str, list[pa.Table]] = {}
        tables = _tables(reader, settings, done, now) if known is None else _foreign(reader.path, known, deployment, done, now)
        for table, rows in tables:
            parts.setdefault(table, []).append(rows)
        store.append_all({table: pa.concat_tables(rows) for table, rows in parts.items()})
    return done


def _tables(reader: Reader, settings: Settings, done: Imported, now: datetime) -> Iterator[tuple[str, pa.Table]]:
    core = Core(settings)
    used = 0
    for line in reader:
        core.advance(line.t)
        feed(core, line)
        used += 1
        if len(core.rows) >= ROWS_PER_TAKE:
            yield from _taken(core, done)
    done.truncated = reader.truncated
    if not used:
        raise PoascopeError(
            f"capture: {reader.path} - no line of it is a recorded message ({reader.counts['lines']} lines); is it a recording?"
        )
    done.open_requests = core.finish()
    yield from _taken(core, done)
    done.counts = {**core.counts(), **reader.counts}
    yield _record(done, now)


def _foreign(path: Path, known: foreign.Format, deployment: str | None, done: Imported, now: datetime) -> Iterator[tuple[str, pa.Table]]:
    read = foreign.read(path, known, deployment or path.name.split(".")[0])
    if not read.tables:
        raise PoascopeError(f"import: {path} - no request in its {read.counts['lines']} lines of {known.name}")
    done.format, done.lacks, done.truncated, done.counts = known.name, known.lacks, read.truncated, dict(read.counts)
    for rows in read.tables:
        done.rows["requests"] += rows.num_rows
        yield "requests", rows
    yield _record(done, now)


def _record(done: Imported, now: datetime) -> tuple[str, pa.Table]:
    record = {"sha256": done.sha256, "name": done.path.name, "imported_at": now, "lines": done.counts.get("lines", 0)}
    schema = pa.schema({"sha256": pa.string(), "name": pa.string(), "imported_at": pa.timestamp("us"), "lines": pa.uint64()})
    return "imports", pa.Table.from_pylist([record], schema)


def _taken(core: Core, done: Imported) -> Iterator[tuple[str, pa.Table]]:
    for table, rows in core.take().items():
        done.rows[table] += rows.num_rows
        yield table, rows


def feed(core: Core, line: Line) -> None:
    """One recorded line into the core."""
    if line.src == "nats" and line.subject is not None and line.data is not None:
        core.feed_nats(line.t, line.subject, line.data)
    elif line.src == "metrics" and line.target is not None and line.body is not None:
        core.feed_metrics(line.t, line.target, line.body)
    elif line.src == "gap" and line.target is not None and line.since is not None:
        core.gap(line.target, line.kind or "unknown", line.since, line.until, line.count)
    else:
        core.count(line.src, "error in the recording" if line.error else "incomplete line")


# Counters of what went as it should; everything else is worth a line of its own.
_ORDINARY = ("messages:", "scrapes:", "copies:", "lines")


def summary(done: Imported) -> dict[str, Any]:
    """What to tell whoever asked for the import."""
    return {
        "capture": str(done.path),
        "sha256": done.sha256,
        "format": done.format,
        "lacks": done.lacks,
        "already": done.already,
        "truncated": done.truncated,
        "rows": dict(sorted(done.rows.items())),
        "open_requests": done.open_requests,
        "lines": done.counts.get("lines", 0),
        "notable": {name: n for name, n in sorted(done.counts.items()) if n and not name.startswith(_ORDINARY)},
        "counts": dict(sorted(done.counts.items())),
    }
