from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queries.window import HISTORY_N, Requests, from_table, join, newest_event, window_at

T0 = 1_800_000_000.0


def when(*seconds: float | None) -> pa.Array:
    return pa.array([None if s is None else datetime.fromtimestamp(T0 + s, UTC).replace(tzinfo=None) for s in seconds], pa.timestamp("us"))


def table(n: int = 3) -> pa.Table:
    """Rows of `requests`, newest first: one finished, one decoding, one lost before it was routed to decode."""
    return pa.table(
        {
            "request_id": ["c", "b", "a"],
            "prefill_worker": pa.array([2**64 - 1, 2**64 - 1, 7], pa.uint64()),
            "prefill_dp_rank": pa.array([None, 0, 0], pa.uint32()),
            "decode_worker": pa.array([None, 2**64 - 2, 2**64 - 2], pa.uint64()),
            "decode_dp_rank": pa.array([None, 1, 1], pa.uint32()),
            "arrived_at": when(2, 1, 0),
            "prefill_done_at": when(None, 1.5, 0.5),
            "decode_started_at": when(None, 1.5, 0.5),
            "first_token_at": when(None, 1.6, 0.6),
            "finished_at": when(None, 9, 5),
            "prefill_inflight": pa.array([1, 0, 0], pa.uint32()),
            "decode_inflight": pa.array([None, 1, 0], pa.uint32()),
            "input_blocks": pa.array([None, 8, 8], pa.uint32()),
            "overlap_blocks": pa.array([None, 4, 0], pa.uint32()),
            "outcome": ["lost", "finished", "finished"],
        }
    )


def test_rows_become_arrays_in_order_of_arrival() -> None:
    """Times are Unix seconds to the microsecond, unknowns NaN or −1, workers exact u64 pairs."""
    r = from_table(table())
    assert list(r.request_id) == ["a", "b", "c"]
    assert r.arrived_at.tolist() == [T0, T0 + 1, T0 + 2]
    assert r.first_token_at[1] == pytest.approx(T0 + 1.6, abs=1e-6)
    assert [r.workers[j] for j in r.prefill] == [(7, 0), (2**64 - 1, 0), (2**64 - 1, 0)]
    assert (r.workers[r.decode[0]], r.decode[2]) == ((2**64 - 2, 1), -1)
    assert np.isnan(r.input_blocks[2]) and np.isnan(r.finished_at[2])
    assert r.lost.tolist() == [False, False, True]


def test_no_rows_are_no_requests() -> None:
    """An empty table gives empty arrays and an empty window."""
    nothing = from_table(table().slice(0, 0))
    assert len(nothing) == 0 and nothing.workers == ()
    assert newest_event(nothing) is None
    assert len(window_at(nothing, T0, 30.0).recent) == 0


def test_a_window_knows_nothing_of_the_future() -> None:
    """At 1.2 s: a decodes, b prefills and has no decode worker yet, c has not come; nothing is finished."""
    w = window_at(from_table(table()), T0 + 1.2, 30.0)
    assert list(w.recent.request_id) == ["a", "b"]
    assert np.isnan(w.recent.finished_at).all()
    assert w.recent.decode.tolist()[1] == -1 and np.isnan(w.recent.decode_inflight[1])
    assert len(w.history) == 0
    assert w.events_as_of == T0 + 1


def test_a_window_holds_the_just_finished_and_the_open() -> None:
    """At 8 s with 2 s to look back: a (ended at 5 s) is history only, b is open."""
    w = window_at(from_table(table()), T0 + 8, 2.0)
    assert [i for i in w.recent.request_id if i != "c"] == ["b"]
    assert list(w.history.request_id) == ["a"]
    assert w.recent.open_at(T0 + 8)[list(w.recent.request_id).index("b")]


def test_history_is_bounded_to_the_newest() -> None:
    """Of 3,000 finished requests the 2,000 that finished last."""
    r = from_table(table().take([2])).take(np.zeros(3000, dtype=np.int64))
    finished = T0 + np.arange(3000) / 100
    many = Requests(**{f: getattr(r, f) for f in r.__slots__ if f != "finished_at"}, finished_at=finished)
    history = window_at(many, T0 + 100, 30.0).history
    assert len(history) == HISTORY_N
    assert history.finished_at.min() == finished[1000]


def test_best_overlaps_survive_taking_and_joining() -> None:
    """Where only one side knows them, the other's are NaN; where nobody does they stay None."""
    r = from_table(table())
    known = replace(r, best_overlap_blocks=np.array([1.0, 2.0, 3.0]))
    assert join(r, r).best_overlap_blocks is None
    both = join(r, known.take(np.array([False, True, True]))).best_overlap_blocks
    assert both is not None and np.isnan(both[:3]).all() and both[3:].tolist() == [2, 3]


@given(st.permutations(range(3)))
def test_join_makes_the_workers_agree(order: list[int]) -> None:
    """Two sets of requests that number their workers differently: each request keeps its own workers."""
    a, shuffled = from_table(table()), from_table(table())
    workers = tuple(a.workers[j] for j in order)
    moved = np.array([*np.argsort(order), -1])
    b = Requests(
        **{f: getattr(shuffled, f) for f in a.__slots__ if f not in ("workers", "prefill", "decode")},
        prefill=moved[shuffled.prefill],
        decode=moved[shuffled.decode],
        workers=workers,
    )
    both = join(a, b)
    assert [both.workers[j] for j in both.prefill] == [a.workers[j] for j in a.prefill] * 2
    assert both.decode.tolist()[:3] == both.decode.tolist()[3:]
