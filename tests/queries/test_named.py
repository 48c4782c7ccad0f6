import inspect
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from poascope.errors import Misconfigured
from queries import named
from store import Store

T0 = 1_767_225_600.0  # 2026-01-01T00:00:00Z


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open(":memory:") as store:
        yield store


def when(*offsets_s: float) -> pa.Array:
    return pa.array([datetime.fromtimestamp(T0 + s, UTC).replace(tzinfo=None) for s in offsets_s], pa.timestamp("us"))


@pytest.mark.parametrize("name", named.catalogue())
def test_every_file_prepares_and_is_used(store: Store, name: str) -> None:
    """Each file runs against the empty schema, declares the parameters it uses, and has a function of its name that binds them."""
    query = named.catalogue()[name]
    body = re.sub(r"^--.*$", "", query.sql, flags=re.MULTILINE)
    declared = {p.name for p in query.parameters}
    assert set(re.findall(r"\$(\w+)", body)) == declared
    function = getattr(named, name)
    taken = {p.rstrip("_"): p for p in list(inspect.signature(function).parameters)[1:]}
    assert set(taken) == declared
    with store.cursor() as cursor:
        needed = {taken[p.name]: 5.0 for p in query.parameters if p.required}
        assert function(cursor, **needed).num_rows == (1 if name == "resume" else 0)


def test_spans_are_half_open_and_take_any_spelling_of_time(store: Store) -> None:
    """from <= t < to, whether given as Unix seconds, ISO text, or datetime."""
    store.append("signals", pa.table({"ts": when(0, 1, 2, 3), "deployment": ["b", "a", "a", "a"]}))
    with store.cursor() as cursor:
        spellings = [
            (T0 + 1, T0 + 3),
            (str(T0 + 1), str(T0 + 3)),
            ("2026-01-01T00:00:01Z", "2026-01-01T01:00:03+01:00"),
            ("2026-01-01 00:00:01", datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC)),
        ]
        for from_, to in spellings:
            assert named.signals(cursor, from_=from_, to=to)["ts"].equals(pa.chunked_array([when(1, 2)]))
        assert named.signals(cursor, deployment="b").num_rows == 1
        assert named.deployments(cursor)["deployment"].to_pylist() == ["a", "b"]


def test_a_bin_keeps_the_worst_second_and_says_so_of_it(store: Store) -> None:
    """PoA and latency of a bin are its worst, with that second's interval; loads are means, the regime the last; no data stays NULL."""
    store.append(
        "signals",
        pa.table(
            {
                "ts": when(0, 1, 2, 10),
                "deployment": ["d"] * 4,
                "inflight": [10.0, 20.0, 30.0, None],
                "ttft_p99_s": [0.1, 5.0, 0.2, None],
                "poa_hat": [1.0, 3.0, 2.0, None],
                "poa_low": [0.9, 2.5, 1.9, None],
                "poa_n": pa.array([10, 11, 12, 2], pa.uint32()),
                "poa_withheld": [None, None, None, "n=2 < 8"],
                "regime": ["below", "below", "transition", None],
                "quality": [["gap"], None, ["gap", "aged"], ["quiet"]],
            }
        ),
    )
    with store.cursor() as cursor:
        first, second = named.signals_binned(cursor, 10).to_pylist()
        one_a_second = named.signals_binned(cursor, 1).select(named.signals(cursor).column_names)
        assert one_a_second["poa_hat"].equals(named.signals(cursor)["poa_hat"])
    assert first["ts"] == when(0)[0].as_py()
    assert (first["inflight"], first["ttft_p99_s"], first["poa_hat"], first["poa_low"], first["poa_n"]) == (20, 5, 3, 2.5, 11)
    assert (first["regime"], first["quality"], first["poa_withheld"]) == ("transition", ["aged", "gap"], None)
    assert (second["poa_hat"], second["inflight"], second["regime"], second["poa_withheld"]) == (None, None, None, "n=2 < 8")


def test_workers_that_differ_in_the_last_digit_stay_apart(store: Store) -> None:
    """In-flight counts are kept by the full u64, from the events only."""
    ids = [16882743587675780000, 16882743587675780001, 16882743587675780001, 7]
    store.append(
        "workers",
        pa.table(
            {
                "ts": when(0, 0, 1, 0),
                "deployment": ["d"] * 4,
                "component": ["backend"] * 4,
                "role": ["decode"] * 4,
                "source": ["events", "events", "events", "worker"],
                "worker_id": pa.array(ids, pa.uint64()),
                "inflight": pa.array([1, 2, 4, 9], pa.uint32()),
            }
        ),
    )
    with store.cursor() as cursor:
        rows = named.worker_inflight(cursor, 10).to_pylist()
    assert [(row["worker_id"], row["inflight"]) for row in rows] == [(ids[0], 1.0), (ids[1], 3.0)]


def test_gaps_that_overlap_the_span_are_in_it(store: Store) -> None:
    """A gap that began before, or has not ended, still concerns the span."""
    store.append(
        "gaps",
        pa.table(
            {
                "source": ["a", "b", "c"],
                "kind": ["disconnected"] * 3,
                "from": when(0, 0, 50),
                "to": when(5, 20, 60).take(pa.array([0, 1, None])),
            }
        ),
    )
    with store.cursor() as cursor:
        assert named.gaps(cursor, from_=T0 + 10, to=T0 + 30)["source"].to_pylist() == ["b"]
        assert named.gaps(cursor, from_=T0 + 90)["source"].to_pylist() == ["c"]


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("nonsense", {}, "nonsense - no such query; known: .*signals"),
        ("signals", {"deploymnet": "d"}, "deploymnet - no such parameter; known: deployment, from, to"),
        ("deployments", {"x": "1"}, "it takes none"),
        ("signals", {"from": "yesterday"}, "from: 'yesterday' - not a time"),
        ("signals", {"to": "1e300"}, "to: '1e300' - not a time"),
        ("signals_binned", {}, "step_s - missing"),
        ("signals_binned", {"step_s": "0"}, "step_s: '0' - not a number of seconds"),
        ("signals_binned", {"step_s": "nan"}, "step_s: 'nan' - not a number of seconds"),
    ],
)
def test_errors_name_the_parameter_and_what_is_known(store: Store, name: str, given: dict[str, str], says: str) -> None:
    """A wrong name or value is refused by name before any SQL runs."""
    with store.cursor() as cursor, pytest.raises(Misconfigured, match=says):
        named.read(cursor, name, given)


def test_a_value_is_never_sql(store: Store) -> None:
    """Quotes and statements in a value are only text to compare with."""
    store.append("signals", pa.table({"ts": when(0), "deployment": ["d"]}))
    with store.cursor() as cursor:
        assert named.signals(cursor, deployment="d' OR '1'='1").num_rows == 0
        assert named.signals(cursor, deployment="'; DROP TABLE signals; --").num_rows == 0
        assert named.signals(cursor).num_rows == 1
