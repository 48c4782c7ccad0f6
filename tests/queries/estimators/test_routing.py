from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from queries.estimators.latency import Curve
from queries.estimators.routing import (
    _frozen_bound,
    counts_each_second,
    even_cost,
    frozen_optimum,
    inflight_at,
    price,
    social_cost,
    social_optimum,
)

curves = st.builds(Curve, st.floats(0.01, 5), st.floats(0, 2))
small = st.tuples(st.integers(1, 7), st.integers(1, 3)).flatmap(
    lambda shape: st.lists(st.lists(st.integers(0, 4), min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]).map(
        lambda rows: np.array(rows, dtype=float)
    )
)
loads = st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=1, max_size=6).map(lambda c: np.array(c, dtype=float).T)


@given(curves, small, st.floats(0, 1))
def test_the_optimum_equals_brute_force(curve: Curve, overlap: np.ndarray, saved: float) -> None:
    """For N ≤ 7 and m ≤ 3 with overlaps, no placement of all m^N costs less, and one costs the same."""
    n, m = overlap.shape
    brute = min(social_cost(curve, np.array(place), overlap, saved) for place in product(range(m), repeat=n))
    assert social_optimum(curve, overlap, saved) == pytest.approx(brute, abs=1e-7)


@given(curves, st.integers(0, 40), st.integers(1, 5))
def test_an_even_spread_is_the_optimum_without_overlaps(curve: Curve, n: int, m: int) -> None:
    """The closed form used by the pulse equals the Hungarian on slots at their marginal costs."""
    slots = np.arange(1, n + 1, dtype=float)
    marginal = np.tile(curve.social(slots) - curve.social(slots - 1), m)
    cost = np.tile(marginal, (n, 1))
    rows, columns = linear_sum_assignment(cost)
    assert float(even_cost(curve, np.array([float(n)]), m)[0]) == pytest.approx(float(cost[rows, columns].sum()), abs=1e-9)


def test_two_requests_on_one_of_two_workers_by_hand() -> None:
    """f(n) = 1 + (n − 1): both on one cost 2·2 = 4, apart 1 + 1 = 2, so the price of that placement is 2."""
    curve = Curve(1, 1)
    assert social_cost(curve, np.array([0, 0]), np.zeros((2, 2))) == 4
    assert social_optimum(curve, np.zeros((2, 2))) == 2
    assert price(curve, np.array([[2.0], [0.0]])) == 2
    assert price(curve, np.array([[1.0], [1.0]])) == 1


def test_a_warm_cache_can_be_worth_a_queue() -> None:
    """Both hold nothing but on worker 0; 3 blocks at 1 s each saved outweigh sharing it (4 − 6 < 2 − 3)."""
    overlap = np.array([[3.0, 0.0], [3.0, 0.0]])
    assert social_optimum(Curve(1, 1), overlap, 1.0) == pytest.approx(-2)


@given(curves, loads)
def test_the_price_is_at_least_one(curve: Curve, counts: np.ndarray) -> None:
    """No placement beats the optimum, and an even one attains it."""
    assert price(curve, counts) >= 1
    total = counts.sum(axis=0)
    even = np.array([np.floor((total + j) / 3) for j in range(3)])
    assert price(curve, even) == pytest.approx(1)


@given(curves, loads, st.permutations(range(3)), st.floats(0.01, 100))
def test_the_price_knows_neither_names_nor_units(curve: Curve, counts: np.ndarray, order: list[int], scale: float) -> None:
    """Renaming the workers or scaling time changes nothing."""
    same = pytest.approx(price(curve, counts))
    assert price(curve, counts[order]) == same
    assert price(Curve(curve.idle_s * scale, curve.slope_s * scale), counts) == same


@given(curves, loads)
def test_more_load_on_the_fullest_worker_never_lowers_the_price(curve: Curve, counts: np.ndarray) -> None:
    """Moving a request from a worker to one that has at least as many makes the placement no cheaper."""
    before = price(curve, counts)
    for s in range(counts.shape[1]):
        giver, taker = int(counts[:, s].argmin()), int(counts[:, s].argmax())
        if giver != taker and counts[giver, s] > 0:
            moved = counts.copy()
            moved[giver, s] -= 1
            moved[taker, s] += 1
            assert price(curve, moved) >= before - 1e-12


@given(curves, loads)
def test_a_request_more_on_the_fullest_worker_never_lowers_the_excess(curve: Curve, counts: np.ndarray) -> None:
    """SC − optimum in seconds grows, or stays, when the fullest worker gets another request."""

    def excess(c: np.ndarray) -> float:
        return float(curve.social(c).sum() - even_cost(curve, c.sum(axis=0), len(c)).sum())

    more = counts.copy()
    more[counts[:, 0].argmax(), 0] += 1
    assert excess(more) >= excess(counts) - 1e-9


def test_snapshots_count_who_is_there_at_each_second() -> None:
    """At 10, 11, 12 s: a stay of [9.5, 11) covers 10 only; an open one from 11 s on covers 11 and 12; unrouted ones none."""
    start, end = np.array([9.5, 11.0, np.nan, 3.0]), np.array([11.0, np.nan, np.nan, 10.5])
    counts = counts_each_second(start, end, np.array([0, 1, -1, 0]), 2, 12.0, 3)
    assert counts.tolist() == [[2, 0, 0], [0, 1, 1]]


def test_inflight_at_is_what_a_router_saw() -> None:
    """Just before 2 s: one on worker 0 (the one that starts at 2 s and the one that ends at 2 s do not count)."""
    start, end = np.array([0.0, 1.0, 2.0, 1.5]), np.array([2.0, 5.0, 5.0, np.nan])
    assert inflight_at(start, end, np.array([0, 0, 0, 1]), 2, np.array([2.0])).tolist() == [[1, 1]]


costs = st.tuples(st.integers(1, 9), st.integers(1, 4)).flatmap(
    lambda shape: st.lists(st.lists(st.floats(0, 10), min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]).map(
        np.array
    )
)


@given(costs)
def test_the_frozen_optimum_equals_the_hungarian(cost: np.ndarray) -> None:
    """Each worker offers ⌈N/m⌉ slots: the sort for two workers and the assignment for more agree with requests × slots; the bound holds."""
    slots = -(-len(cost) // cost.shape[1])
    wide = np.repeat(cost, slots, axis=1)
    rows, columns = linear_sum_assignment(wide)
    best = float(wide[rows, columns].sum())
    assert frozen_optimum(cost) == pytest.approx(best, abs=1e-9)
    assert _frozen_bound(cost, slots) <= best + 1e-9


def test_the_bound_for_large_windows_is_close() -> None:
    """600 requests on 8 workers: the dual bound is within 2 % of the Hungarian."""
    rng = np.random.default_rng(5)
    cost = Curve(0.7, 0.02).at(1 + rng.poisson(10, (600, 8)))
    wide = np.repeat(cost, 75, axis=1)
    best = float(wide[linear_sum_assignment(wide)].sum())
    assert 0.98 * best <= frozen_optimum(cost) <= best + 1e-9
