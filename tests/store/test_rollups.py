"""Rollups: parts of any split merge to the whole, a quantile keeps its bound, and nothing is rolled up twice or lost."""

import math
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queries import named
from store import Store, rollups

START = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)

EIGHTHS = st.integers(0, 4000).map(lambda n: n / 8)  # their sums are exact, in whatever order


def table(store: Store, name: str, rows: list[dict[str, Any]]) -> pa.Table:
    with store.cursor() as cursor:
        schema = cursor.sql(f"SELECT * FROM {name} LIMIT 0").to_arrow_table().schema
    return pa.Table.from_pylist(rows, schema=schema)


def second(i: int, **given: Any) -> dict[str, Any]:
    return {"ts": START + timedelta(seconds=i), "deployment": "d", "quality": [f"q{i % 3}"]} | given


def request(i: int, at_s: float, ttft_s: float) -> dict[str, Any]:
    came = START + timedelta(seconds=at_s)
    first = came + timedelta(seconds=ttft_s)
    ended = {"finished_at": first + timedelta(seconds=5), "outcome": "finished"}
    return {"deployment": "d", "request_id": str(i), "arrived_at": came, "first_token_at": first} | ended


def joined(store: Store) -> dict[str, list[dict[str, Any]]]:
    """What the rollups come to once every bin is one row."""
    while store.change("joining", lambda c: rollups.compact(c, START + timedelta(days=2), 10_000)):
        pass
    found = {}
    with store.cursor() as cursor:
        for name in rollups.TABLES:
            found[name] = cursor.sql(f"SELECT * EXCLUDE (merged) FROM {name} ORDER BY ALL").to_arrow_table().to_pylist()
    return found


@pytest.fixture(scope="module")
def stores() -> Iterator[tuple[Store, Store]]:
    with Store.open(":memory:") as whole, Store.open(":memory:") as split:
        yield whole, split


def empty(*stores: Store) -> None:
    for store in stores:
        for name in (*rollups.TABLES, "signals", "workers", "requests"):
            store.change("emptying", lambda c, name=name: c.execute(f"DELETE FROM {name}").fetchone())


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    load=st.lists(st.tuples(st.integers(0, 150), st.none() | EIGHTHS, st.none() | st.integers(1, 10**6)), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=3),
    ttft=st.lists(EIGHTHS, min_size=1, max_size=40),
)
def test_the_rollup_of_any_split_is_that_of_the_whole(
    stores: tuple[Store, Store], load: list[tuple[int, float | None, int | None]], cuts: list[int], ttft: list[float]
) -> None:
    """However rows are cut into appends, and in whatever order these come, the joined bins are those of one append."""
    whole, split = stores
    empty(whole, split)
    at = {i: (inflight, poa) for i, inflight, poa in load}
    hats = dict.fromkeys(p for _, p in at.values() if p is not None)  # equal peaks would leave their companions to chance
    seconds = [
        second(i, inflight=inflight, poa_hat=poa and poa + i / 1e3, poa_n=i if poa in hats else None, regime="below" if i % 2 else None)
        for i, (inflight, poa) in at.items()
    ]
    workers = [
        {
            "ts": row["ts"],
            "deployment": "d",
            "component": "c",
            "worker_id": 2**64 - 1 - i % 2,
            "source": "events",
            "inflight": i,
            "role": "decode",
        }
        for i, row in enumerate(seconds)
    ]
    served = [request(i, i * 3, seconds_) for i, seconds_ in enumerate(ttft)]
    rows = {"signals": seconds, "workers": workers, "requests": served}
    whole.append_all({name: table(whole, name, some) for name, some in rows.items()})
    for name, some in rows.items():
        bounds = sorted({0, len(some), *(cut for cut in cuts if cut < len(some))})
        for begin, end in reversed(list(pairwise(bounds))):
            split.append(name, table(split, name, some[begin:end]))
    assert joined(split) == joined(whole)


def test_a_store_without_rollups_is_covered_in_slices(stores: tuple[Store, Store]) -> None:
    """However few rows are covered at a time, and where rows were deleted between, the joined bins are those of the appends."""
    whole, _ = stores
    empty(whole)
    rows = {"signals": [second(i, inflight=i, poa_hat=i / 8) for i in range(90)], "requests": [request(i, i, 0.125) for i in range(90)]}
    whole.append_all({name: table(whole, name, some) for name, some in rows.items()})
    appended = joined(whole)
    for name in rollups.TABLES:
        whole.change("forgetting", lambda c, name=name: c.execute(f"DELETE FROM {name}").fetchone())
    whole.change("covering", lambda c: rollups.cover(c, slice_rows=7))
    assert joined(whole) == appended


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ttft=st.lists(st.floats(1e-5, 1000), min_size=1, max_size=200))
def test_a_quantile_of_a_histogram_is_within_its_bound(stores: tuple[Store, Store], ttft: list[float]) -> None:
    """P50, P90 and P99 of latency_binned lie within 2.4 % of the sample of that rank; count, mean and maximum are exact."""
    store, _ = stores
    empty(store)
    store.append("requests", table(store, "requests", [request(i, 0, seconds) for i, seconds in enumerate(ttft)]))
    with store.cursor() as cursor:
        bins = named.latency_binned(cursor, 86_400, from_=START - timedelta(hours=1)).to_pylist()
    (row,) = [row for row in bins if row["kind"] == "ttft"]
    exact = sorted(round(seconds * 1e6) / 1e6 for seconds in ttft)
    assert row["n"] == len(exact) and row["max_s"] == exact[-1] and row["mean_s"] == pytest.approx(sum(exact) / len(exact))
    for name, q in (("p50_s", 0.5), ("p90_s", 0.9), ("p99_s", 0.99)):
        sample = exact[max(0, math.ceil(q * len(exact) - 1e-9) - 1)]
        assert abs(row[name] / sample - 1) <= rollups.QUANTILE_ERROR * (1 + 1e-9)


def test_long_ranges_answer_the_same_from_rollups(tmp_path: Path) -> None:
    """signals_binned and worker_inflight give for steps of 30 s and 2 min what their raw rows give, also at ends that cut a bin."""
    with Store.open(tmp_path / "s.duckdb") as store:
        rows = [
            second(
                i,
                inflight=float(i % 7),
                ttft_p99_s=(i * 37 % 101) / 100,
                poa_hat=1 + (i * 53 % 997) / 1e3,
                poa_n=i,
                regime="below",
                tau=i / 10,
            )
            for i in range(1000)
        ]
        store.append("signals", table(store, "signals", rows))
        held = [
            {"ts": row["ts"], "deployment": "d", "component": "c", "worker_id": i % 3, "source": "events", "inflight": i % 11}
            for i, row in enumerate(rows)
        ]
        store.append("workers", table(store, "workers", held))
        span = {"from_": START + timedelta(seconds=33.5), "to": START + timedelta(seconds=777)}
        with store.cursor() as cursor:
            exact = named.signals(cursor, **span).to_pylist()
            for step_s in (30, 120):
                bins = {row["ts"]: row for row in named.signals_binned(cursor, step_s, **span).to_pylist()}
                groups: dict[datetime, list[dict[str, Any]]] = {}
                for row in exact:
                    groups.setdefault(START + timedelta(seconds=(row["ts"] - START).seconds // step_s * step_s), []).append(row)
                assert bins.keys() == groups.keys() and len(bins) > 5
                for ts, group in groups.items():
                    worst = max(group, key=lambda row: row["poa_hat"])
                    assert bins[ts]["inflight"] == pytest.approx(sum(row["inflight"] for row in group) / len(group))
                    assert bins[ts]["ttft_p99_s"] == max(row["ttft_p99_s"] for row in group)
                    assert (bins[ts]["poa_hat"], bins[ts]["poa_n"]) == (worst["poa_hat"], worst["poa_n"])
                    assert (bins[ts]["tau"], bins[ts]["quality"]) == (
                        group[-1]["tau"],
                        sorted({q for row in group for q in row["quality"]}),
                    )
                present = named.worker_inflight(cursor, step_s, **span).to_pylist()
                begin, end = START + timedelta(seconds=240), START + timedelta(seconds=240 + step_s)
                of_bin = [row["inflight"] for row in held if row["worker_id"] == 1 and begin <= row["ts"] < end]
                (row,) = [row for row in present if row["worker_id"] == 1 and row["ts"] == begin]
                assert len(present) == 3 * len(bins)
                assert row["inflight"] == pytest.approx(sum(of_bin) / len(of_bin))


def test_every_column_of_signals_has_a_rule() -> None:
    """Whatever column of signals a long range shows says how it merges, or where raw rows are gone it would be lost."""
    ruled = {*rollups.MEANS, *rollups.WORST, *rollups.LAST, *rollups.PEAK, *rollups.PEAK_OR_LAST, "ts", "deployment", "quality"}
    with Store.open(":memory:") as store, store.cursor() as cursor:
        assert set(named.signals_binned(cursor, 60).column_names) == ruled <= set(named.signals(cursor).column_names)


def test_a_store_from_before_rollups_gets_those_of_its_rows(tmp_path: Path) -> None:
    """The migration covers what is there already, once."""
    path = tmp_path / "s.duckdb"
    with Store.open(path) as store:
        store.append("signals", table(store, "signals", [second(i, inflight=1.0) for i in range(60)]))

        def back(cursor: Any) -> None:
            for name in (*rollups.TABLES, "retention"):
                cursor.execute(f"DROP TABLE {name}")
            for name in ("bin_after", "bin_before", "bin_width"):
                cursor.execute(f"DROP MACRO {name}")
            cursor.execute("DELETE FROM schema_migrations WHERE number = 7")

        store.change("going back", back)
    for _ in range(2):
        with Store.open(path) as store, store.cursor() as cursor:
            assert cursor.execute("SELECT sum(inflight_n) FROM signals_rollups WHERE step_s = 60").fetchall() == [(60,)]


def test_a_kill_loses_no_rollup_and_doubles_none(tmp_path: Path) -> None:
    """After a SIGKILL amid appends and joins, rollups of both widths count exactly the raw rows."""
    path = tmp_path / "s.duckdb"
    code = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_rollups import START, second, table
        from datetime import timedelta
        from store import Store, rollups
        store = Store.open({str(path)!r})
        for i in range(10**9):
            store.append("signals", table(store, "signals", [second(10 * i + k, inflight=1.0) for k in range(10)]))
            if i % 3 == 2:
                store.change("joining", lambda c: rollups.compact(c, START + timedelta(seconds=10 * i), 100))
                print("joined", flush=True)
    """)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout
    for _ in range(4):
        assert child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with Store.open(path) as store, store.cursor() as cursor:
        (raw,) = cursor.execute("SELECT count(*) FROM signals").fetchone() or (0,)
        counted = cursor.execute("SELECT sum(inflight_n), sum(inflight) FROM signals_rollups GROUP BY step_s").fetchall()
        merged = cursor.execute("SELECT count(*) FROM signals_rollups WHERE merged").fetchone()
    assert raw >= 120 and counted == [(raw, raw)] * 2 and merged and merged[0] > 0
