import heapq
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queries.estimators.anarchy import Share, Stay, bootstrap, cache_miss_seconds, doubt, frozen, lost_seconds, ratio, routing_factor, share
from queries.estimators.latency import Curve

lines = st.builds(Curve, st.floats(0.01, 5), st.floats(0, 2))
placements = st.integers(1, 4).flatmap(
    lambda m: st.tuples(st.just(m), st.lists(st.integers(0, m - 1), min_size=1, max_size=24).map(lambda p: np.array(p, dtype=np.int64)))
)
seconds = st.lists(st.floats(0.01, 50), min_size=3, max_size=3).map(np.array)
shares = st.builds(Share, seconds, seconds, seconds, st.floats(1, 5), st.floats(0, 50))


def arrivals(place: np.ndarray, workers: int, actual: np.ndarray, start: np.ndarray | None = None) -> Stay:
    """Requests that come one after another to an empty pool and are all there together."""
    start = np.arange(len(place)) * 1e-4 if start is None else start
    found = np.array([float((place[:q] == place[q]).sum()) for q in range(len(place))])
    return Stay(start, start + actual, place, found, workers)


def test_two_requests_on_one_of_two_workers_by_hand() -> None:
    """f(n) = 10 + 1·(n − 1): both on one worker take 10 and 11 s where 10 and 10 were to be had; PoA = 21/20, routing = 22/20."""
    curve = Curve(10, 1)
    stay = arrivals(np.array([0, 0]), 2, np.array([10.0, 11.0]))
    s = share(stay, curve, np.array([0, 1]), 5.0, 5.0)
    assert s.unqueued.tolist() == [10, 10]
    assert s.crowded.tolist() == [10, 11]
    assert ratio(s.actual, s.unqueued, 5.0, None).value == pytest.approx(21 / 20)
    assert routing_factor([s]) == pytest.approx(22 / 20)
    assert s.imbalance_s == pytest.approx(1)


def test_a_queue_in_order_is_not_mistaken_for_work() -> None:
    """Ten requests at once on a worker that serves 1 s each take 1, 2, … 10 s: f explains all of it, and yet PoA = 55/10."""
    curve = Curve(1, 1)
    stay = arrivals(np.zeros(10, dtype=np.int64), 1, np.arange(1.0, 11.0), start=np.zeros(10))
    s = share(stay, curve, np.arange(10), 10.0, 10.0)
    assert s.crowded == pytest.approx(s.actual)
    assert ratio(s.actual, s.unqueued, 10.0, None).value == pytest.approx(5.5)
    assert routing_factor([s]) == 1


def test_a_burst_of_one_time_stamp_has_the_order_in_which_it_was_routed() -> None:
    """Four at once, two on each worker: who found nobody is met by f(1), who found one by f(2); the even spread is what happened."""
    curve = Curve(10, 1)
    stay = Stay(np.zeros(4), np.array([10.0, 11, 10, 11]), np.array([0, 0, 1, 1]), np.array([0.0, 1, 0, 1]), 2)
    s = share(stay, curve, np.arange(4), 11.0, 11.0)
    assert s.unqueued.tolist() == [10, 11, 10, 11]
    assert s.imbalance_s == 0


@given(lines, st.integers(1, 5), st.integers(1, 40))
def test_balanced_and_unqueued_is_one(curve: Curve, workers: int, n: int) -> None:
    """Requests dealt out in turn that take what the unqueued model says: PoA, routing and so temporal are 1."""
    place = np.arange(n) % workers
    stay = arrivals(place, workers, curve.unqueued(np.arange(n) // workers + 1))
    s = share(stay, curve, np.arange(n), 30.0, 30.0)
    assert ratio(s.actual, s.unqueued, 30.0, None).value == pytest.approx(1)
    assert routing_factor([s]) == pytest.approx(1)


@given(lines, placements, st.randoms(use_true_random=False), st.floats(0.01, 100))
def test_poa_knows_neither_names_nor_units(curve: Curve, placement: tuple[int, np.ndarray], random: object, scale: float) -> None:
    """Renaming workers, or giving times in other units to latencies and model alike, changes neither PoA nor routing."""
    workers, place = placement
    stay = arrivals(place, workers, 50 + curve.at(np.ones(len(place))))
    order = np.arange(workers)
    random.shuffle(order)  # type: ignore[attr-defined]
    renamed = Stay(stay.start, stay.end, order[stay.place], stay.found, workers)
    longer = Stay(stay.start, stay.start + scale * (stay.end - stay.start), stay.place, stay.found, workers)
    rows = np.arange(len(place))
    plain = share(stay, curve, rows, 40.0, 40.0)
    for other, its_curve, factor in ((renamed, curve, 1.0), (longer, Curve(curve.idle_s * scale, curve.slope_s * scale), scale)):
        s = share(other, its_curve, rows, 40.0, 40.0)
        assert s.actual.sum() / s.unqueued.sum() == pytest.approx(plain.actual.sum() / plain.unqueued.sum())
        if factor == 1.0:
            assert routing_factor([s]) == pytest.approx(routing_factor([plain]))


@given(lines, placements)
def test_frozen_is_an_upper_bound(curve: Curve, placement: tuple[int, np.ndarray]) -> None:
    """With the same f, below its knee, the frozen optimum is no dearer than the even spread: frozen PoA ≥ calibrated."""
    workers, place = placement
    curve = Curve(curve.idle_s + 100 * curve.slope_s, curve.slope_s)  # the knee is out of reach
    actual = curve.at(np.arange(len(place)) + 1.0)
    stay = arrivals(place, workers, actual)
    rows = np.arange(len(place))
    calibrated = float(actual.sum() / share(stay, curve, rows, 0.0, 1.0).unqueued.sum())
    assert frozen([stay], [curve], [rows], actual) >= calibrated - 1e-9


@given(shares, shares, seconds, st.one_of(st.none(), st.floats(0, 20)))
def test_the_parts_add_up_to_the_excess(prefill: Share, decode: Share, transfer: np.ndarray, missed: float | None) -> None:
    """prefill_queue + imbalance + cache_miss + transfer + other = ΣL − ΣU, with a prefill pool and without."""
    lost = lost_seconds(prefill, decode, transfer, missed)
    parts = [lost.prefill_queue_s, lost.imbalance_s, lost.cache_miss_s, lost.transfer_s, lost.other_s]
    whole = float((prefill.actual + transfer + decode.actual - prefill.unqueued - decode.unqueued).sum())
    assert sum(p for p in parts if p is not None) == pytest.approx(whole, abs=1e-6)
    alone = lost_seconds(None, decode, transfer, missed)
    assert alone.prefill_queue_s is None and alone.transfer_s is None
    assert sum(p for p in (alone.imbalance_s, alone.cache_miss_s, alone.other_s) if p is not None) == pytest.approx(
        float((decode.actual - decode.unqueued).sum()), abs=1e-6
    )


@given(shares, shares)
def test_routing_lies_between_the_pools_prices(prefill: Share, decode: Share) -> None:
    """The pools' prices weighed by what they cost: at least 1, and between the two."""
    low, high = sorted([prefill.price, decode.price])
    assert low - 1e-9 <= routing_factor([prefill, decode]) <= high + 1e-9


def test_the_bounds_hold_the_value_and_widen_with_bursts() -> None:
    """90 % by moving blocks: no spread gives no width; the same spread in runs of like requests gives a wider band than mixed."""
    ones = np.ones(200)
    assert bootstrap(ones * 3, ones) == (pytest.approx(3), pytest.approx(3))
    mixed, runs = np.tile([1.0, 5.0], 100), np.repeat(np.tile([1.0, 5.0], 10), 10)
    narrow, wide = bootstrap(mixed, ones), bootstrap(runs, ones)
    assert narrow[0] <= 3 <= narrow[1] and wide[0] <= 3 <= wide[1]
    assert wide[1] - wide[0] > 2 * (narrow[1] - narrow[0])
    assert bootstrap(runs, ones) == wide


def test_what_should_not_be_trusted_says_why() -> None:
    """Fewer than 8 finished, fewer than 5 in flight, gaps, stale events, a provisional fit: each has its reason; else there is none."""
    assert doubt(7, 9, 0, False, None) == "7 finished < 8"
    assert doubt(8, 4.9, 0, False, None) == "4.9 in flight on average < 5"
    assert doubt(8, 9, 2, False, None) == "2 gaps in the window"
    assert doubt(8, 9, 0, True, None) == "events are stale"
    assert doubt(8, 9, 0, False, "fit provisional (20 requests < 30)") == "fit provisional (20 requests < 30)"
    assert doubt(8, 5, 0, False, None) is None


def test_a_missed_block_costs_its_share_of_a_prefill() -> None:
    """8 blocks a request at 80 ms: 2 of them on another worker cost 20 ms; with one worker there is none to miss; unknown is None."""
    own, best, blocks = np.zeros(10), np.full(10, 2.0), np.full(10, 8.0)
    assert cache_miss_seconds(own, best, blocks, 0.080, 2) == pytest.approx(10 * 0.020)
    assert cache_miss_seconds(best, own, blocks, 0.080, 2) == 0
    assert cache_miss_seconds(own, None, blocks, 0.080, 1) == 0
    assert cache_miss_seconds(own, None, blocks, 0.080, 2) is None
    assert cache_miss_seconds(own, np.where(np.arange(10) == 3, np.nan, best), blocks, 0.080, 2) is None


# -- planted causes: a small discrete-event simulation with known truth

SERVICE_S, DECODE_S, WORKERS = 0.5, 4.0, 2


@dataclass(frozen=True, slots=True)
class Truth:
    prefill: Stay
    decode: Stay
    transfer: np.ndarray
    waited_s: float


def simulate(start: np.ndarray, place: np.ndarray, transfer_s: float = 0.0, slow_decode_s: float = 0.0) -> Truth:
    """Prefill serves in order, SERVICE_S each; then the transfer; then decode of DECODE_S and what is planted there, without contention."""
    free, ends = [0.0] * WORKERS, np.zeros(len(start))
    leaving: list[tuple[float, int]] = []
    load, found = [0] * WORKERS, np.zeros(len(start))
    for q, (t, j) in enumerate(zip(start, place, strict=True)):
        while leaving and leaving[0][0] <= t:
            load[heapq.heappop(leaving)[1]] -= 1
        found[q] = load[j]
        load[j] += 1
        free[j] = max(free[j], t) + SERVICE_S
        ends[q] = free[j]
        heapq.heappush(leaving, (ends[q], int(j)))
    begin = ends + transfer_s
    decode = Stay(begin, begin + DECODE_S + slow_decode_s, np.arange(len(start)) % WORKERS, np.zeros(len(start)), WORKERS)
    waited = float((ends - start).sum()) - SERVICE_S * len(start)
    return Truth(Stay(start, ends, place, found, WORKERS), decode, np.full(len(start), transfer_s), waited)


def split(truth: Truth, until: float = 200.0) -> dict[str, float]:
    rows = np.arange(len(truth.transfer))
    prefill = share(truth.prefill, Curve(SERVICE_S, SERVICE_S), rows, until, until)
    decode = share(truth.decode, Curve(DECODE_S, 0.0), rows, until, until)
    lost = lost_seconds(prefill, decode, truth.transfer)
    return {"queue": lost.prefill_queue_s or 0.0, "imbalance": lost.imbalance_s, "transfer": lost.transfer_s or 0.0, "other": lost.other_s}


WAVES = np.repeat(np.arange(0.0, 200.0, 20.0), 24)  # 24 at once each 20 s: each wave drains before the next
EVEN, SKEWED = np.tile([0, 1], 120), np.tile([0, 0, 0, 1], 60)


def test_a_planted_prefill_queue_is_found() -> None:
    """Waves dealt out evenly: what was waited is prefill_queue, within 10 %; nothing else is blamed."""
    truth = simulate(WAVES, EVEN)
    found = split(truth)
    assert found["queue"] == pytest.approx(truth.waited_s, rel=0.1)
    assert max(abs(found["imbalance"]), abs(found["transfer"]), abs(found["other"])) < 0.01 * truth.waited_s


def test_a_planted_imbalance_is_found() -> None:
    """Three of four to one worker: what an even deal would have saved is imbalance, within 10 %, the rest is the queue that remains."""
    skewed, even = simulate(WAVES, SKEWED), simulate(WAVES, EVEN)
    found = split(skewed)
    assert found["imbalance"] == pytest.approx(skewed.waited_s - even.waited_s, rel=0.1)
    assert found["queue"] == pytest.approx(even.waited_s, rel=0.1)


def test_a_worker_drowned_while_another_idles_is_imbalance() -> None:
    """Poisson arrivals at 0.8 of the pool's capacity, nine of ten to one worker: nearly all of the wait is imbalance, within 10 %."""
    rng = np.random.default_rng(3)
    start = np.cumsum(rng.exponential(SERVICE_S / WORKERS / 0.8, 500))
    place = (rng.random(500) < 0.1).astype(np.int64)
    skewed, even = simulate(start, place), simulate(start, np.arange(500) % 2)
    found = split(skewed, float(np.ceil(skewed.prefill.end.max())))
    assert found["imbalance"] == pytest.approx(skewed.waited_s - even.waited_s, rel=0.1)
    assert found["queue"] == pytest.approx(even.waited_s, rel=0.1)


@given(lines, placements)
def test_more_load_on_one_worker_never_lowers_the_imbalance(curve: Curve, placement: tuple[int, np.ndarray]) -> None:
    """Sending one more of the same requests to the fullest worker: imbalance_s stays or grows."""
    workers, place = placement
    counts = np.bincount(place, minlength=workers)
    giver, taker = int(counts.argmin()), int(counts.argmax())
    if giver == taker or counts[giver] == 0:
        return
    moved = place.copy()
    moved[np.flatnonzero(place == giver)[-1]] = taker
    actual, rows = 1e4 + np.zeros(len(place)), np.arange(len(place))
    start = np.zeros(len(place))
    before, after = (share(arrivals(p, workers, actual, start), curve, rows, 10.0, 10.0).imbalance_s for p in (place, moved))
    assert after >= before - 1e-6


def test_planted_transfer_and_slow_decode_are_found() -> None:
    """0.3 s of transfer and 0.7 s of decode beyond its model, with nobody queueing: both exactly, no queue."""
    calm = np.arange(0.0, 190.0, 1.0)
    found = split(simulate(calm, np.arange(190) % 2, transfer_s=0.3, slow_decode_s=0.7))
    assert found["transfer"] == pytest.approx(0.3 * 190)
    assert found["other"] == pytest.approx(0.7 * 190)
    assert abs(found["queue"]) < 1e-6 and abs(found["imbalance"]) < 1e-6


def test_mixed_causes_are_told_apart() -> None:
    """Queue, imbalance, transfer and slow decode at once: each within 10 % of what was planted."""
    truth, even = simulate(WAVES, SKEWED, 0.3, 0.7), simulate(WAVES, EVEN)
    found = split(truth)
    assert found == pytest.approx(
        {"queue": even.waited_s, "imbalance": truth.waited_s - even.waited_s, "transfer": 0.3 * 240, "other": 0.7 * 240}, rel=0.1
    )


def test_an_interval_below_one_is_no_sound_poa() -> None:
    """Requests that all took 0.9 of the best: the value is kept and hollow. One whose interval reaches 1 is sound, and so is what
    is 1 to a hundredth."""
    best = np.ones(40)
    assert ratio(0.9 * best, best, 0.0, None).withheld == "below 1 (0.90 to 0.90): the fit is off"
    assert ratio(np.random.default_rng(1).normal(0.98, 0.2, 40), best, 0.0, None).withheld is None
    assert ratio(0.995 * best, best, 0.0, None).withheld is None
    assert ratio(0.9 * best, best, 0.0, "events are stale").withheld == "events are stale"
