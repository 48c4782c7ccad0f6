import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queries.estimators.latency import (
    NO_SAMPLES,
    PER_OCTAVE,
    Curve,
    Samples,
    completed_meanwhile,
    fit,
    fit_constant,
    remember,
    shortest_usual_s,
)

lines = st.builds(Curve, st.floats(0.001, 10), st.floats(0, 1))
loads = st.lists(st.integers(1, 60), min_size=1, max_size=20).map(lambda n: np.array(n, dtype=float))


def samples(n: list[int] | np.ndarray, curve: Curve, noise: float = 0.0, at: float = 0.0) -> Samples:
    n = np.asarray(n, dtype=float)
    jitter = 1 + noise * np.random.default_rng(1).standard_normal(len(n))
    return Samples(n, curve.at(n) * jitter, np.full(len(n), at))


def test_f_of_n_is_the_idle_time_and_a_slope_for_each_request_more() -> None:
    """f(n) = s + a·(n − 1): 55 ms alone, 30 ms for each of four others; the social cost is n times that."""
    curve = Curve(0.055, 0.030)
    assert curve.at(1) == pytest.approx(0.055)
    assert curve.at(5) == pytest.approx(0.175)
    assert curve.social(np.array([0.0, 1.0, 5.0])) == pytest.approx([0, 0.055, 0.875])


def test_past_its_knee_a_worker_only_makes_requests_wait() -> None:
    """A prefill worker in order (s = a) has its knee at 1: unqueued, 40 requests cost 55 ms each. A decode worker's is out of reach."""
    prefill, decode = Curve(0.055, 0.055), Curve(5.4, 0.001)
    assert prefill.knee == 1
    assert prefill.unqueued(40) == pytest.approx(0.055)
    assert decode.knee == pytest.approx(5400)
    assert decode.unqueued(40) == pytest.approx(decode.at(40))


@given(lines, loads)
def test_unqueued_is_never_more_than_f(curve: Curve, n: np.ndarray) -> None:
    """u(n) ≤ f(n), equal up to the knee, and never less than f(1)."""
    unqueued = curve.unqueued(n)
    assert (unqueued <= curve.at(n)).all()
    assert (unqueued >= curve.at(1)).all()
    assert np.array_equal(unqueued[n <= curve.knee], curve.at(n)[n <= curve.knee])


@given(st.builds(Curve, st.floats(0, 5), st.floats(0, 1), st.floats(0, 5), st.just(100.0), st.floats(0.3, 3)))
def test_the_social_cost_is_convex(curve: Curve) -> None:
    """n·f(n) has increasing marginals, pole included: what makes the cheapest slots the first ones."""
    n = np.arange(0.0, 99.0)
    marginal = np.diff(curve.social(n))
    assert (np.diff(marginal) >= -1e-9 * (1 + np.abs(marginal[1:]))).all()


def test_completed_meanwhile_is_the_place_in_a_queue() -> None:
    """Served in order, the third of three saw three completions; another worker's do not count; unknown ends are NaN."""
    start, end = np.array([0.0, 0.0, 0.0, 0.0, 0.0]), np.array([1.0, 2.0, 3.0, 2.5, np.nan])
    seen = completed_meanwhile(start, end, np.array([0, 0, 0, 1, 0]))
    assert seen[:4].tolist() == [1, 2, 3, 1]
    assert np.isnan(seen[4])


def test_completed_meanwhile_gives_a_batch_one_number() -> None:
    """Members of a batch that end within a few ms of each other all saw the whole batch: order within it means nothing."""
    end = 0.44 + 0.001 * np.arange(8)
    assert completed_meanwhile(np.zeros(8), end, np.zeros(8, dtype=np.int64)).tolist() == [8] * 8


def test_what_is_under_way_counts_for_what_is_left_of_it() -> None:
    """Served in order, 1 s each: who comes at 0.5 s and leaves at 2 s saw half of the first and itself: 1.5. Idle time is none."""
    seen = completed_meanwhile(np.array([0.0, 0.5, 10.0]), np.array([1.0, 2.0, 11.0]), np.zeros(3, dtype=np.int64))
    assert seen == pytest.approx([1, 1.5, 1])


@given(st.lists(st.floats(0, 3), min_size=1, max_size=40), st.floats(0.05, 1))
def test_in_a_queue_in_order_seconds_are_completions_times_service(gaps: list[float], service: float) -> None:
    """Whatever the arrivals, one server in order: seconds = service × completed meanwhile. So the slope is the service demand."""
    start, free, end = np.cumsum(gaps), 0.0, []
    for t in start:
        free = max(free, t) + service
        end.append(free)
    ended = np.array(end)
    counts = completed_meanwhile(start, ended, np.zeros(len(start), dtype=np.int64))
    assert counts * service == pytest.approx(ended - start, rel=1e-6, abs=1e-6)


@given(st.floats(0.001, 10), st.floats(0.0001, 1), st.floats(0.01, 100))
def test_a_planted_line_comes_back_at_any_scale_of_time(idle: float, slope: float, scale: float) -> None:
    """Fit without noise gives s and a; times in other units give the same curve in other units."""
    seen = samples(list(range(1, 41)), Curve(idle, slope))
    curve, reason = fit(seen)
    scaled, _ = fit(Samples(seen.n, seen.seconds * scale, seen.at))
    assert curve and scaled and reason is None
    assert curve.at([1, 20, 40]) == pytest.approx(Curve(idle, slope).at([1, 20, 40]), rel=1e-4)
    assert scaled.at([1, 20, 40]) == pytest.approx(curve.at([1, 20, 40]) * scale, rel=1e-4)


def test_outliers_do_not_move_the_line() -> None:
    """One request in seven took five times as long: s and a within 10 %."""
    seen = samples(np.tile(np.arange(1, 21), 10), Curve(0.05, 0.05), noise=0.02)
    seconds = seen.seconds.copy()
    seconds[::7] *= 5
    curve, _ = fit(Samples(seen.n, seconds, seen.at))
    assert curve
    assert [curve.idle_s, curve.slope_s] == pytest.approx([0.05, 0.05], rel=0.1)


def test_few_requests_or_few_loads_are_declined_and_say_so() -> None:
    """Under 16 requests there is no curve, under 30 it is provisional, and say why."""
    curve = Curve(0.05, 0.05)
    assert fit(samples([1, 2, 3] * 5, curve)) == (None, "fit declined (15 requests < 30)")
    provisional, reason = fit(samples([1, 2, 3, 4] * 6, curve))
    assert provisional and reason == "fit provisional (24 requests < 30)"
    assert fit(samples([1, 2, 3] * 10, curve))[1] is None
    assert fit_constant(samples([1] * 15, curve)) == (None, "fit declined (15 requests < 30)")
    assert fit_constant(samples([1] * 30, curve))[0] == Curve(0.05, 0.0, requests=30)


def test_of_few_loads_only_idleness_can_be_told() -> None:
    """Fewer than 3 distinct n give the median, flat: f(1) where the pool was mostly idle; else it may be a queue, and says so."""
    curve = Curve(0.05, 0.05)
    assert fit(samples([1, 1, 2] * 20, curve)) == (Curve(0.05, 0.0, requests=60, loads=2), None)
    assert fit(samples([8, 8, 9] * 20, curve)) == (Curve(pytest.approx(0.4), 0.0, requests=60, loads=2), "fit flat (2 distinct n < 3)")
    assert fit(samples([1] * 25, curve))[1] == "fit provisional (25 requests < 30)"


def test_the_pole_is_kept_only_where_it_is() -> None:
    """On loads up to 98 of 100 a planted pole is found with n_sat within 5 %; on a noisy line there is none."""
    n = np.tile(np.arange(1, 99), 4)
    pole, _ = fit(samples(n, Curve(0.5, 0.002, 2.0, 100.0, 1.0), noise=0.02))
    line, _ = fit(samples(n, Curve(0.5, 0.01), noise=0.1))
    assert pole and line
    assert pole.n_sat == pytest.approx(100, rel=0.05)
    assert np.isinf(line.n_sat)


def test_a_long_saturation_does_not_flush_what_was_seen_unqueued() -> None:
    """The reservoir keeps the newest of each octave of n: 20 idle requests outlive 5,000 saturated ones and 30 minutes."""
    idle, busy = samples([1] * 20, Curve(0.05, 0.05)), samples([100] * 5000, Curve(0.05, 0.05), at=4000.0)
    kept = remember(remember(NO_SAMPLES, idle, 0.0), busy, 4000.0)
    assert (kept.n == 1).sum() == 20
    assert (kept.n == 100).sum() == PER_OCTAVE
    fresh = remember(kept, samples([1] * 100, Curve(0.05, 0.05), at=4000.0), 4000.0)
    assert (fresh.n == 1).sum() == 100  # 30-minute-old ones go once enough newer ones are there


def test_short_is_what_was_hardly_ever_seen() -> None:
    """Of stays of 5 s, one under 2.5 s is short; of lengths that were always mixed few are; nothing is before there are 30."""
    assert shortest_usual_s(samples([1] * 30, Curve(5, 0))) == pytest.approx(2.5)
    assert shortest_usual_s(samples([1] * 29, Curve(5, 0))) == 0
    mixed = np.random.default_rng(1).exponential(5, 2000)
    usual = shortest_usual_s(Samples(np.ones(2000), mixed, np.zeros(2000)))
    assert (mixed < usual).mean() == pytest.approx(0.025, abs=0.01)
