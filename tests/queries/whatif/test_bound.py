from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queries.whatif.bound import shortest_remaining


def best(arrived: list[float], size: list[float], workers: int) -> float:
    """The least mean over all orders, each request given to the worker that is free first."""
    least = np.inf
    for order in permutations(range(len(arrived))):
        free, total = [0.0] * workers, 0.0
        for k in order:
            j = int(np.argmin(free))
            free[j] = max(free[j], arrived[k]) + size[k]
            total += free[j] - arrived[k]
        least = min(least, total / len(arrived))
    return least


def test_shortest_remaining_by_hand() -> None:
    """A job of 4 at 0 gives way to one of 1 at 1: 1 and 5 s in the system; twice as fast, 0.5 and 2.5."""
    at, size = np.array([0.0, 1.0]), np.array([4.0, 1.0])
    assert shortest_remaining(at, size, 1) == pytest.approx(3.0)
    assert shortest_remaining(at, size, 2) == pytest.approx((0.5 + 2.5) / 2)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5)), min_size=1, max_size=5), st.integers(1, 3))
def test_no_schedule_beats_the_bound(jobs: list[tuple[int, int]], workers: int) -> None:
    """Whatever order and placement: the mean is at least the bound."""
    jobs = sorted(jobs)
    at, size = [float(a) for a, _ in jobs], [float(s) for _, s in jobs]
    assert shortest_remaining(np.array(at), np.array(size), workers) <= best(at, size, workers) + 1e-9
