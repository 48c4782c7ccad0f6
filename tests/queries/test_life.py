from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from collectors.importer import import_capture
from poascope.settings import Settings
from queries import named
from queries.life import life
from store import Store

T0 = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
CAPTURES = Path(__file__).parents[1] / "captures"


def at(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(T0 + seconds, UTC).replace(tzinfo=None)


def row(request_id: str, times: tuple[float | None, ...], prefill: int | None = 1, decode: int | None = 9, **given: Any) -> dict[str, Any]:
    names = ("arrived_at", "prefill_done_at", "decode_started_at", "first_token_at", "finished_at")
    base = {
        "deployment": "d", "request_id": request_id, "model": None, "prefill_worker": prefill, "prefill_dp_rank": None,
        "decode_worker": decode, "decode_dp_rank": None, "input_blocks": 4, "overlap_blocks": 1, "prefill_inflight": 1,
        "decode_inflight": 0,
        "tau": 0.0, "omega": 2.0, "regime": "below", "outcome": "finished",
    }  # fmt: skip
    return base | dict(zip(names, map(at, times), strict=True)) | given


def table(rows: list[dict[str, Any]], name: str = "requests") -> pa.Table:
    with Store.open(":memory:") as store:
        return pa.Table.from_pylist(rows, schema=store.cursor().sql(f"SELECT * FROM {name} LIMIT 0").to_arrow_table().schema)


def stored(seconds: float, worker: int, event: int, blocks: list[int], parent: int | None = None, kind: str = "stored") -> dict[str, Any]:
    return {
        "ts": at(seconds), "deployment": "d", "component": "prefill", "worker_id": worker, "dp_rank": 0, "event_id": event, "kind": kind,
        "parent_hash": parent, "block_hashes": blocks, "tier": None,
    }  # fmt: skip


ASKED = row("b", (1.0, 3.0, 3.1, 3.2, 8.0))
AROUND = table([row("a", (0.0, 2.0, 2.1, 2.2, 7.0)), ASKED, row("c", (0.5, 0.9, 1.0, 1.1, 5.0), prefill=2)])
EVENTS = table(
    [stored(0.1, 2, 1, [11, 12]), stored(0.2, 1, 1, [11]), stored(3.0, 1, 2, [12, 13], 11), stored(4.0, 2, 2, [13], 12)], "kv_events"
)


def test_stages_follow_each_other_and_name_what_was_worked_out() -> None:
    """Queue until the step before on that worker ended, then prefill, transfer, first step, decode; the router's part is not reported."""
    told = life(ASKED, AROUND, EVENTS)
    assert [(s.name, s.seconds and round(s.seconds, 5)) for s in told.stages] == [
        ("router", None),
        ("prefill queue", 1.0),
        ("prefill", 1.0),
        ("transfer", 0.1),
        ("first step", 0.1),
        ("decode", 4.8),
    ]
    assert "not reported" in told.stages[0].note and "worked out" in told.stages[1].note
    assert told.ttft_s == pytest.approx(2.2) and told.e2e_s == pytest.approx(7.0)


def test_candidates_with_what_each_held_and_would_have_cost() -> None:
    """The other worker held two blocks and nobody was there: 2·(4 − 2) + 4 against 2·(3 + 4 − 1) + 4 + 4 on the chosen one."""
    told = life(ASKED, AROUND, EVENTS)
    assert [(c.worker, c.chosen, c.inflight, c.overlap_blocks, c.cost) for c in told.candidates] == [
        ((1, 0), True, 1, 1, 20.0),
        ((2, 0), False, 0, 2, 8.0),
    ]
    assert told.best_overlap_blocks == 2


def test_what_is_not_known_is_said_and_never_zero() -> None:
    """No cache events: overlap elsewhere and costs are None with a sentence; no profile: τ and ω are named as unknown."""
    told = life(ASKED | {"tau": None, "omega": None}, AROUND, EVENTS.slice(0, 0))
    assert told.best_overlap_blocks is None and all(c.cost is None for c in told.candidates)
    assert [c.overlap_blocks for c in told.candidates] == [1, None]
    assert all(any(said in note for note in told.notes) for said in ("no cache events", "τ and ω", "not reported by this version"))


def test_a_lost_request_and_one_of_a_single_pool() -> None:
    """Times that never came stay None; where one pool does both, its stages say that nothing parts them."""
    lost = life(row("l", (1.0, 3.0, None, None, None), decode=None, outcome="lost"), AROUND, None)
    assert lost.e2e_s is None and lost.stages[-1].seconds is None and any("lost" in note for note in lost.notes)
    both = row("m", (1.0, None, 1.0, 1.5, 4.0), prefill=None)
    told = life(both, table([both]), None)
    assert [s.name for s in told.stages] == ["router", "prefill and its queue", "decode"] and told.ttft_s == pytest.approx(0.5)


def test_the_slowest_request_of_a_real_recording() -> None:
    """Found by `slowest`, by the beginning of its id and by the whole of it; its stages add up to its latency."""
    with Store.open(":memory:") as store:
        import_capture(CAPTURES / "cap-0.9.0-1p2d.jsonl.gz", store, Settings(), datetime(2026, 12, 1, tzinfo=UTC))
        with store.cursor() as cursor:
            slow = named.slowest(cursor).to_pylist()
            assert len(slow) == 50 and [r["ttft_s"] for r in slow] == sorted((r["ttft_s"] for r in slow), reverse=True)
            found = named.requests_like(cursor, slow[0]["request_id"][:8]).to_pylist()
            assert [r["request_id"] for r in found] == [slow[0]["request_id"]] and named.requests_like(cursor, "", "other").num_rows == 0
            (whole,) = named.request(cursor, slow[0]["request_id"], "dynamo").to_pylist()
            told = life(whole, named.requests(cursor), named.kv_events(cursor))
    assert told.ttft_s == pytest.approx(slow[0]["ttft_s"])
    assert sum(s.seconds or 0.0 for s in told.stages) == pytest.approx(told.e2e_s or 0.0)
    queue = next(s for s in told.stages if s.name == "prefill queue")
    assert queue.seconds is not None and told.ttft_s is not None and queue.seconds > 0.9 * told.ttft_s
