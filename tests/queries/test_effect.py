"""estimators/effect.py by hand and by property, and effects.py on stored rows."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queries import named
from queries.effects import MEASURES, Expected, expected
from queries.estimators.effect import Effect, Served, Sides, confounded, estimate_effect, pooled, sides
from queries.window import Floats
from store import Store

AROUND = Sides((0.0, 120.0), (135.0, 255.0), True)


def served(arrived_at: Floats, ttft_s: Floats, stay_s: float | Floats = 5.0) -> Served:
    finished = arrived_at + ttft_s + stay_s
    return Served(arrived_at, ttft_s, finished, finished - arrived_at, np.full(len(arrived_at), 5.0))


def steady(before_s: float, after_s: float, per_s: float = 2.0) -> Served:
    """Open arrivals a clock would make, from 60 s before the first side on; TTFT is `before_s` up to 120 s and `after_s` from there on."""
    at = np.arange(-60.0, 260.0, 1 / per_s)
    return served(at, np.where(at < 120, before_s, after_s))


def by_name(effects: tuple[Effect, ...]) -> dict[str, Effect]:
    return {effect.measure: effect for effect in effects}


def test_an_effect_by_hand() -> None:
    """2 requests a second; TTFT 4 s, then 1 s. P50 falls to a quarter, PoA from (4 + 5)/5 to (1 + 5)/5, throughput stays."""
    found = by_name(estimate_effect(steady(4.0, 1.0), AROUND))
    assert (found["ttft_p50_s"].before, found["ttft_p50_s"].after, found["ttft_p50_s"].ratio) == (4.0, 1.0, 0.25)
    assert (found["ttft_p50_s"].n_before, found["ttft_p50_s"].n_after) == (240, 240)
    assert found["poa_hat"].before == pytest.approx(9 / 5) and found["poa_hat"].after == pytest.approx(6 / 5)
    assert found["finished_per_s"].ratio == pytest.approx(1.0, abs=0.01)
    assert {effect.withheld for effect in found.values()} == {effect.confounded for effect in found.values()} == {None}


def test_a_changed_load_is_said_and_not_claimed() -> None:
    """Arrivals doubled with the change: the numbers stay, with the reason why they are not its effect."""
    at = np.concatenate([np.arange(-60.0, 120.0, 1.0), np.arange(120.0, 260.0, 0.5)])
    found = by_name(estimate_effect(served(at, np.where(at < 120, 1.0, 4.0)), AROUND))["ttft_p50_s"]
    assert found.confounded and "arrivals went from 1 to 2 a second" in found.confounded
    assert found.ratio == 4.0


def test_in_a_closed_loop_the_load_is_the_number_in_flight() -> None:
    """Ten users who wait for their answers: faster answers bring more arrivals, and that is the effect, not the load."""
    rng = np.random.default_rng(5)
    at: list[float] = []
    for _ in range(10):
        t = -60 - rng.uniform(0, 8)
        while t < 260:
            at.append(t)
            t += (8.0 if t < 120 else 5.0) * rng.uniform(0.8, 1.2)
    order = np.sort(np.array(at))
    slow = order < 120
    found = by_name(estimate_effect(served(order, np.where(slow, 3.0, 0.05), np.where(slow, 4.9, 4.9)), AROUND))
    assert found["ttft_p50_s"].confounded is None
    assert found["finished_per_s"].ratio and found["finished_per_s"].ratio > 1.2


def test_latency_that_was_rising_already_is_no_effect() -> None:
    """A switch made because a queue was building is not credited with what the queue did anyway."""
    at = np.arange(-60.0, 260.0, 0.5)
    rising = served(at, np.where(at < 120, 0.1 + np.maximum(at, 0) / 20, 0.1))
    assert "TTFT was moving before it" in (confounded(rising, AROUND) or "")


def test_too_little_is_withheld_with_the_reason() -> None:
    """A few requests, a short side, or answers that never came give no number, and say how much there was."""
    sparse = by_name(estimate_effect(steady(1.0, 1.0, per_s=0.2), AROUND))
    assert sparse["ttft_p50_s"].withheld == "only 24 requests before it, 30 are needed"
    tail = by_name(estimate_effect(steady(1.0, 1.0, per_s=0.5), AROUND))
    assert tail["ttft_p99_s"].withheld == "only 60 requests before it, 100 are needed" and tail["ttft_p50_s"].ratio == 1.0
    early = by_name(estimate_effect(steady(1.0, 1.0), sides(120.0, None, None, known_until=150.0)))["ttft_p50_s"]
    assert early.withheld == "only 15 s after it, 60 s are needed, so far"
    crowded = by_name(estimate_effect(steady(1.0, 1.0), sides(120.0, 95.0, None, known_until=900.0)))["ttft_p50_s"]
    assert crowded.withheld == "only 10 s before it, 60 s are needed: another change is too near"
    whole = steady(1.0, 1.0)
    unanswered = Served(
        whole.arrived_at, np.where(whole.arrived_at < 120, 1.0, np.inf), whole.finished_at, whole.actual_s, whole.unqueued_s
    )
    assert "too many without an answer" in (by_name(estimate_effect(unanswered, AROUND))["ttft_p50_s"].withheld or "")


@given(
    at=st.floats(1e3, 1e6),
    gaps=st.tuples(st.none() | st.floats(0, 1e3), st.none() | st.floats(0, 1e3)),
    known=st.floats(-1e3, 1e3),
)
def test_sides_never_reach_across_another_change(at: float, gaps: tuple[float | None, float | None], known: float) -> None:
    """Both sides lie between the neighbours, in order, and none is longer than two minutes."""
    previous, following = (None if gap is None else at + sign * gap for gap, sign in zip(gaps, (-1, 1), strict=True))
    found = sides(at, previous, following, at + known)
    for start, end in (found.before, found.after):
        assert -1e-6 <= end - start <= 120 + 1e-6
    assert found.before[1] <= at <= found.after[0]
    assert previous is None or found.before[0] >= min(previous + 15, at) - 1e-6
    assert following is None or found.after[1] <= max(following, found.after[0]) + 1e-6


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(0.01, 100), shift=st.floats(-1e5, 1e5))
def test_an_interval_holds_its_ratio_whatever_the_unit(seed: int, scale: float, shift: float) -> None:
    """low <= ratio <= high; seconds in other units and another day change nothing; the same rows give the same bounds."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.uniform(-60, 260, 400))
    ttft = rng.exponential(1.0, 400) + 0.01
    one = by_name(estimate_effect(served(at, ttft), AROUND))["ttft_p50_s"]
    assert one == by_name(estimate_effect(served(at, ttft), AROUND))["ttft_p50_s"]
    assert one.ratio and one.low and one.high and one.low <= one.ratio <= one.high
    moved = Sides((shift, shift + 120), (shift + 135, shift + 255), True)
    other = by_name(estimate_effect(served(at + shift, ttft * scale), moved))["ttft_p50_s"]
    assert other.ratio == pytest.approx(one.ratio, rel=1e-6)


def test_without_an_effect_the_interval_holds_one_nine_times_in_ten() -> None:
    """A queue in order at 70 % load, 25 times: 90 % intervals hold 1 in most of them, and show a halved TTFT in most."""
    held = found = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        at = np.sort(rng.uniform(-60, 260, 3200))
        begins = 0.07 * np.arange(3200)
        waits = np.maximum.accumulate(at - begins) + begins + 0.07 - at
        same = by_name(estimate_effect(served(at, waits), AROUND))["ttft_p50_s"]
        half = by_name(estimate_effect(served(at, np.where(at < 120, waits, waits / 2)), AROUND))["ttft_p50_s"]
        assert same.low and same.high and half.high
        held += same.low <= 1 <= same.high
        found += half.high < 1
    assert held >= 19
    assert found >= 22


def test_pooling_weighs_by_precision_and_leaves_out_what_is_in_doubt() -> None:
    """Two equal halvings stay a half with a narrower interval; scatter widens it; a confounded one does not count."""
    half = Effect("ttft_p50_s", 2.0, 1.0, 0.5, 0.4, 0.625, 100, 100)
    both = pooled([half, half])
    assert both and both.ratio == pytest.approx(0.5) and (both.n_before, both.n_after) == (200, 200)
    assert both.low and 0.4 < both.low < 0.5
    apart = pooled([half, Effect("ttft_p50_s", 1.0, 2.0, 2.0, 1.8, 2.2, 100, 100)])
    assert apart and apart.low and apart.high and apart.low < 0.6 and apart.high > 1.7
    assert pooled([Effect("ttft_p50_s", 1.0, 2.0, 2.0, 1.8, 2.2, 9, 9, confounded="load")]) is None


T0 = 1_767_225_600.0


def when(offset_s: float) -> datetime:
    return datetime.fromtimestamp(T0 + offset_s, UTC).replace(tzinfo=None)


@pytest.fixture
def store() -> Iterator[Store]:
    """An override at 120 s that halves the prefill queue, acknowledged 0.2 s later, and its end at 300 s that nobody carried out."""
    with Store.open(":memory:") as store:
        schema = store.cursor().sql("SELECT * FROM decisions LIMIT 0").to_arrow_table().schema
        said: list[dict[str, Any]] = [
            {"ts": when(-300), "kind": "target", "actor": "controller", "mode": "auto", "tau": 0.0, "omega": 1.0},
            {"ts": when(-299), "kind": "ack", "actor": "gateway", "tau": 0.0, "omega": 1.0},
            {"ts": when(119.9), "kind": "intent", "actor": "ann", "mode": "manual", "tau": 0.7, "omega": 1.0, "why": "trial"},
            {"ts": when(120), "kind": "target", "actor": "controller", "mode": "manual", "tau": 0.7, "omega": 1.0, "why": "ann set it"},
            {"ts": when(120.2), "kind": "ack", "actor": "gateway", "tau": 0.7, "omega": 1.0},
            {"ts": when(300), "kind": "target", "actor": "controller", "mode": "auto", "tau": 0.0, "omega": 1.0, "why": "over"},
            {"ts": when(300.1), "kind": "ack", "actor": "gateway", "tau": 0.7, "omega": 1.0, "error": "caddy is gone"},
        ]
        store.append("decisions", pa.Table.from_pylist([{"deployment": "d"} | row for row in said], schema=schema))
        schema = store.cursor().sql("SELECT * FROM requests LIMIT 0").to_arrow_table().schema
        rows = []
        for i in range(800):
            at, queued = i * 0.5 - 60, 2.0 if i * 0.5 - 60 < 120.2 else 1.0
            rows.append(
                {
                    "deployment": "d",
                    "request_id": f"r{i}",
                    "prefill_worker": 1,
                    "decode_worker": 2**64 - 1 - i % 2,
                    "arrived_at": when(at),
                    "prefill_done_at": when(at + queued),
                    "decode_started_at": when(at + queued),
                    "first_token_at": when(at + queued + 0.02),
                    "finished_at": when(at + queued + 4),
                    "outcome": "finished",
                }
            )
        store.append("requests", pa.Table.from_pylist(rows, schema=schema))
        yield store


def test_stored_rows_say_what_an_override_did(store: Store) -> None:
    """Who, from what to what, before and after; the first target of all and one that no actuator carried out claim nothing."""
    with store.cursor() as cursor:
        rows = named.effects(cursor, "d").to_pylist()
        assert named.effects(cursor, "d").equals(named.effects(cursor, "d"))
        assert named.effects(cursor, "d", from_=T0 + 200).num_rows == named.effects(cursor, "d", to=T0).num_rows == 4
        assert named.effects(cursor, "other").num_rows == 0
    override = {row["measure"]: row for row in rows if row["ts"] == when(120)}
    ttft = override["ttft_p50_s"]
    assert (ttft["actor"], ttft["mode"], ttft["from_tau"], ttft["tau"], ttft["intent_at"]) == ("ann", "manual", 0.0, 0.7, when(119.9))
    assert (ttft["before"], ttft["after"], ttft["n_before"], ttft["complete"]) == (pytest.approx(2.02), pytest.approx(1.02), 240, True)
    assert ttft["confounded"] is None and ttft["high"] < 0.6
    assert override["poa_hat"]["withheld"] is None and override["poa_hat"]["ratio"] < 1
    assert {row["withheld"] for row in rows if row["ts"] == when(300)} == {"not applied: caddy is gone"}
    assert all(row["withheld"] for row in rows if row["ts"] == when(-300))
    assert {row["actor"] for row in rows if row["ts"] == when(300)} == {"controller"}


def test_what_happened_the_last_times_is_what_to_expect(store: Store) -> None:
    """Done once and measured; done once and not applied, with the reason; never done here."""
    with store.cursor() as cursor:
        rows = named.effects(cursor, "d").to_pylist()
    once = expected(rows, 0.7, 1.0)
    assert (once.times, once.measured, once.last_by, once.doubt) == (1, 1, "ann", None)
    assert [e.measure for e in once.effects] == list(MEASURES)
    assert once.effects[0].ratio == pytest.approx(1.02 / 2.02)
    failed = expected(rows, 0.0, 1.0)
    assert (failed.times, failed.measured, failed.effects, failed.doubt) == (2, 0, (), "not applied: caddy is gone")
    assert expected(rows, 0.3, 0.7) == Expected(0, 0, None, None, (), None)
