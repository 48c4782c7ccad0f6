"""Retention: what is old goes in bounded slices, what it was stays in rollups, and what is in use can be bounded."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from poascope.errors import PoascopeError
from queries import named
from store import Store
from store.retention import KEPT, RAW, SLICE, Limits, Retention, Turn, compact
from tests.store.test_rollups import START, request, second, table

DAY = 86_400


def fill(store: Store, days: int, every_s: int = 600) -> int:
    """Signals and requests every `every_s` seconds; how many of each."""
    n = days * DAY // every_s
    store.append("signals", table(store, "signals", [second(i * every_s, inflight=1.0, regime="below") for i in range(n)]))
    store.append("requests", table(store, "requests", [request(i, i * every_s, 0.1) for i in range(n)]))
    return n


def turns(store: Store, limits: Limits, now: datetime) -> list[Turn]:
    retention, done = Retention(store, limits), []
    for _ in range(200):
        done.append(retention.turn(now))
        if not done[-1].deleted and not done[-1].joined:
            return done
    raise AssertionError("retention finds no end")


def test_old_rows_go_by_slices_and_their_rollups_stay() -> None:
    """Rows past their age are deleted, at most six hours of them a turn; every bin they had still answers, younger rows are all there."""
    with Store.open(":memory:") as store:
        n = fill(store, 4)
        now = START + timedelta(days=4)
        with store.cursor() as cursor:
            before = named.signals_binned(cursor, 3600).to_pylist(), named.latency_binned(cursor, 3600).to_pylist()
        done = turns(store, Limits(1, 1000, 400), now)
        assert max(turn.deleted for turn in done) <= 2 * SLICE.total_seconds() / 600 + 2
        assert done[-1].raw_from == now - timedelta(days=1)
        with store.cursor() as cursor:
            assert named.signals(cursor).num_rows == named.requests(cursor).num_rows == n // 4
            after = named.signals_binned(cursor, 3600).to_pylist(), named.latency_binned(cursor, 3600).to_pylist()
            assert named.signals_binned(cursor, 5).num_rows == n  # a step for raw rows: where these are gone, bins of 10 s stand in
        assert after[0] == before[0] and len(after[0]) == 96
        assert [(r["ts"], r["kind"], r["n"], r["p99_s"]) for r in after[1]] == [(r["ts"], r["kind"], r["n"], r["p99_s"]) for r in before[1]]


def test_rollups_and_decisions_go_later() -> None:
    """Bins of 10 s go at a tenth of the age of those of 1 min; decisions and gaps stay as long as the latter."""
    with Store.open(":memory:") as store:
        fill(store, 2)
        store.append("decisions", table(store, "decisions", [{"ts": START, "deployment": "d", "kind": "intent"}]))

        def left(now: datetime) -> list[tuple[object, ...]]:
            turns(store, Limits(1, 1000, 20), now)
            with store.cursor() as cursor:
                widths = cursor.execute("SELECT step_s, count(*) > 0 FROM signals_rollups GROUP BY step_s ORDER BY step_s").fetchall()
                return [*widths, named.decisions(cursor).num_rows]

        assert left(START + timedelta(days=2)) == [(10, True), (60, True), 1]
        assert left(START + timedelta(days=5)) == [(60, True), 1]
        assert left(START + timedelta(days=30)) == [0]


def test_past_its_size_the_oldest_rows_go_first(tmp_path: Path) -> None:
    """A file with more in use than allowed loses old raw rows, a slice a turn, and never those of the last hour."""
    with Store.open(tmp_path / "s.duckdb") as store:
        fill(store, 1, 60)
    with Store.open(tmp_path / "s.duckdb") as store:
        now = START + timedelta(days=1)
        retention = Retention(store, Limits(30, 1e-6, 400))
        first = retention.turn(now)
        assert 0 < first.deleted < 400 and first.used_bytes > 1000
        for _ in range(110):
            retention.turn(now)
        with store.cursor() as cursor:
            (oldest,) = cursor.execute("SELECT min(ts) FROM signals").fetchone() or (None,)
            assert now - timedelta(hours=1, minutes=3) <= oldest <= now - timedelta(hours=1)


def test_every_table_has_an_age() -> None:
    """No table of raw rows is forgotten: it would grow for ever."""
    aside = {"imports", "retention", "schema_migrations", "signals_rollups", "worker_rollups", "latency_rollups"}
    with Store.open(":memory:") as store, store.cursor() as cursor:
        tables = {name for (name,) in cursor.execute("SELECT table_name FROM duckdb_tables() WHERE NOT internal").fetchall()}
    assert tables - aside == {*RAW, *KEPT}


def test_a_store_is_written_anew_without_what_was_deleted(tmp_path: Path) -> None:
    """`compact` gives the room of deleted rows back and keeps every other row; a store in use, or none, is refused and left as it was."""
    path = tmp_path / "s'1.duckdb"
    with Store.open(path) as store:
        for _ in range(3):
            fill(store, 30, 60)
        store.change("deleting", lambda c: c.execute("DELETE FROM requests").fetchone())
        store.change("deleting", lambda c: c.execute("DELETE FROM latency_rollups").fetchone())
        with store.cursor() as cursor:
            kept = named.signals_binned(cursor, 3600).to_pylist()
    before, after = compact(str(path))
    assert after < before and path.stat().st_size == after
    with Store.open(path) as store, store.cursor() as cursor:
        assert named.signals_binned(cursor, 3600).to_pylist() == kept
        store.append("signals", table(store, "signals", [second(1)]))
    (tmp_path / "junk").write_text("junk" * 1000)
    with pytest.raises(PoascopeError, match="junk"):
        compact(str(tmp_path / "junk"))
    with pytest.raises(PoascopeError, match="no such file"):
        compact(str(tmp_path / "absent"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["junk", "s'1.duckdb"]
