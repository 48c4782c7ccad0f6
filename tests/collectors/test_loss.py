"""Losses told from reordering and copies."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.loss import WINDOW_S, Loss, LossMeter, Stream

STREAM = Stream("d", "s", 2**64 - 1)


def total(numbers: list[int], step_s: float = 0.01) -> int:
    meter = LossMeter()
    lost = 0
    for i, number in enumerate(numbers):
        lost += sum(loss.count for loss in meter.advance(i * step_s))
        meter.heard(STREAM, number, i * step_s)
    return lost + sum(loss.count for loss in meter.advance(len(numbers) * step_s + WINDOW_S + 1))


@given(
    start=st.integers(0, 2**63),
    n=st.integers(3, 200),
    holes=st.sets(st.integers(1, 198)),
    seed=st.integers(0, 1000),
    reach=st.integers(0, 20),
)
@settings(max_examples=200, deadline=None)
def test_exactly_what_is_missing_is_lost(start: int, n: int, holes: set[int], seed: int, reach: int) -> None:
    """Reordered within the window and repeated, the ids between the first and the last that never came are the loss."""
    rng = random.Random(seed)
    kept = [i for i in range(n) if i not in holes or i in (0, n - 1)]
    middle = sorted((i for i in kept[1:-1] for _ in range(rng.randint(1, 2))), key=lambda i: i + rng.uniform(0, reach))
    heard = [start + kept[0], *(start + i for i in middle), start + kept[-1]]
    assert total(heard) == n - len(kept)


def test_a_late_message_is_no_loss_until_the_window_is_over() -> None:
    """An id that comes within a second fills its hole; one that does not is reported once, with the times around it."""
    meter = LossMeter()
    meter.heard(STREAM, 1, 10.0)
    meter.heard(STREAM, 4, 10.5)
    meter.heard(STREAM, 3, 11.0)
    assert meter.advance(11.4) == []
    assert meter.advance(11.5) == [Loss(STREAM, 1, 10.0, 10.5)]
    assert meter.advance(20) == []


def test_a_counter_that_starts_anew_is_no_loss() -> None:
    """A publisher that restarts its count far away has lost nothing."""
    assert total([500_000, 500_001, 0, 1, 2]) == 0


def test_what_came_before_its_pool_was_known_is_not_lost() -> None:
    """On 0.9 the first hit rate of a worker is heard before its first request says whose worker it is: it fills its pool's hole."""
    meter = LossMeter()
    untold, pool = (STREAM._replace(pool=name) for name in ("", "backend"))
    meter.heard(pool, 15, 10.0)
    meter.heard(untold, 16, 10.1)
    meter.heard(untold, 40, 10.1)  # of another pool
    meter.heard(pool, 17, 10.2)
    meter.heard(pool, 19, 10.3)
    assert [(loss.stream, loss.count) for loss in meter.advance(12.0)] == [(pool, 1)]
