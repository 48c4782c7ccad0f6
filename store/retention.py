"""Retention: what is kept how long. A turn is a few bounded steps, each one transaction between two appends.

Raw rows go by age and by size, rollups and what people did later. A raw row is never the only trace of itself: its rollup was written with
it. The file does not shrink: DuckDB writes new rows into the blocks that deleted ones leave. `poascope compact` writes it anew.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import duckdb

from poascope.errors import PoascopeError
from store import rollups
from store.database import Store

# Raw table -> the column that says how old a row is.
RAW = {
    "kv_events": "ts",
    "workers": "ts",
    "metric_samples": "ts",
    "histogram_samples": "ts",
    "game_loads": "ts",
    "requests": "arrived_at",
    "signals": "ts",
}
# What is small, and what people did or were told.
KEPT = {"decisions": "ts", "gaps": '"from"', "incidents": '"to"', "games": "ts", "alarms": "ts"}
LATE = timedelta(minutes=2)  # after this a bin is joined; what comes later still is joined anew
COMPACT_BINS = 60
SLICE = timedelta(hours=6)
YOUNGEST = timedelta(hours=1)  # never deleted for want of room
GB = 1e9


@dataclass(frozen=True, slots=True)
class Limits:
    """Ages in days, size in GB (of blocks in use, not of the file)."""

    raw_days: float
    raw_gb: float
    rollup_days: float


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn did. `raw_from`: raw rows before it are gone; None: all are there."""

    joined: int
    deleted: int
    raw_from: datetime | None
    used_bytes: int


class Retention:
    """`turn` is called now and then by whoever writes the store, on the writing thread."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store, self._limits = store, limits

    def turn(self, now: datetime) -> Turn:
        """Join the parts of some bins, delete a slice of what is too old. Raises PoascopeError; what was done before stays done."""
        store, limits = self._store, self._limits
        joined = store.change("joining rollups", lambda c: rollups.compact(c, now - LATE, COMPACT_BINS))
        used = self._used()
        oldest = self._oldest()
        cutoff = now - timedelta(days=limits.raw_days)
        if oldest is not None and used > limits.raw_gb * GB:
            # A twenty-fourth of the raw rows' span: what that frees is measured before the next slice goes.
            cutoff = max(cutoff, min(oldest + (now - oldest) / 24, now - YOUNGEST))
        deleted = 0
        if oldest is not None and oldest < cutoff:
            end = min(cutoff, oldest + SLICE).replace(second=0, microsecond=0)  # no bin of a rollup is half covered
            deleted = store.change("deleting raw rows", lambda c: _delete_raw(c, end))
        deleted += store.change("deleting rollups", lambda c: _delete_kept(c, now, limits.rollup_days))
        if deleted:
            self._checkpoint()
        with store.cursor() as cursor:
            (raw_from,) = cursor.execute("SELECT raw_from FROM retention").fetchone() or (None,)
        return Turn(joined, deleted, raw_from, used)

    def _used(self) -> int:
        with self._store.cursor() as cursor:
            found = cursor.execute("SELECT block_size * used_blocks FROM pragma_database_size()").fetchone()
        return int(found[0]) if found else 0

    def _oldest(self) -> datetime | None:
        with self._store.cursor() as cursor:
            ends = [cursor.execute(f"SELECT min({column}) FROM {table}").fetchone() for table, column in RAW.items()]
        found: list[datetime] = [end[0] for end in ends if end and end[0] is not None]
        return min(found, default=None)

    def _checkpoint(self) -> None:
        """Give the blocks of deleted rows back to the file. DuckDB refuses while a reader is at work; its own checkpoint does it later."""
        try:
            with self._store.cursor() as cursor:
                cursor.execute("CHECKPOINT")
        except duckdb.TransactionException:
            return


def _delete_raw(cursor: duckdb.DuckDBPyConnection, end: datetime) -> int:
    deleted = sum(_delete(cursor, table, f"{column} < $end", end) for table, column in RAW.items())
    cursor.execute("UPDATE retention SET raw_from = greatest(coalesce(raw_from, $end), $end)", {"end": end})
    return deleted


def _delete_kept(cursor: duckdb.DuckDBPyConnection, now: datetime, days: float) -> int:
    ends = {10: now - timedelta(days=days / 10), 60: now - timedelta(days=days)}
    deleted = sum(
        _delete(cursor, table, f"step_s = {step_s} AND ts < $end", end) for table in rollups.TABLES for step_s, end in ends.items()
    )
    return deleted + sum(_delete(cursor, table, f"{column} < $end", ends[60]) for table, column in KEPT.items())


def _delete(cursor: duckdb.DuckDBPyConnection, table: str, where: str, end: datetime) -> int:
    done = cursor.execute(f"DELETE FROM {table} WHERE {where}", {"end": end}).fetchone()
    return int(done[0]) if done else 0


def compact(path: str) -> tuple[int, int]:
    """Write a closed store anew without its free blocks; the old file is replaced when the new one is whole. Bytes before and after.

    Raises PoascopeError: somebody has it open, or there is no room for the copy.
    """
    file, part = Path(path), Path(f"{path}.compact")
    if not file.is_file():
        raise PoascopeError(f"store: {path} - no such file")
    Store.open(file).close()  # what is no store, or in use, is said so
    before = file.stat().st_size
    part.unlink(missing_ok=True)
    try:
        with duckdb.connect() as connection:
            connection.execute(f"ATTACH '{_quoted(file)}' AS was (READ_ONLY)")
            connection.execute(f"ATTACH '{_quoted(part)}' AS anew")
            connection.execute("COPY FROM DATABASE was TO anew")
            connection.execute("DETACH anew")
            part.replace(file)  # while the old one is still held: nobody may open and write it in between
    except (duckdb.Error, OSError) as error:
        raise PoascopeError(f"store: {path} - not compacted, and left as it was ({str(error).splitlines()[0]})") from error
    finally:
        part.unlink(missing_ok=True)
    return before, file.stat().st_size


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
