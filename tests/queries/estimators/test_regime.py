from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queries.estimators.regime import REGIMES, THRESHOLDS_S, Regime, step

THRESHOLDS = THRESHOLDS_S["70b"]


def follow(p99s: Iterable[float | None], regime: Regime | None = None, at: float = 0.0) -> list[Regime]:
    regime, seen = regime or Regime(), []
    for k, p99 in enumerate(p99s):
        regime = step(regime, p99, at + 5.0 * k, THRESHOLDS)
        seen.append(regime)
    return seen


def test_the_smoothed_value_is_the_papers() -> None:
    """L̄ = 0.3·L + 0.7·L̄ from rest: 1 s three times gives 0.3, 0.51, 0.657."""
    assert [r.ewma_s for r in follow([1, 1, 1])] == pytest.approx([0.3, 0.51, 0.657])


def test_it_rises_through_the_thresholds() -> None:
    """At 10 s of P99 the smoothed value passes 2 s in the first step; at 1 s it passes 0.3 s in the second."""
    assert [r.name for r in follow([10])] == ["saturated"]
    assert [r.name for r in follow([1, 1])] == ["below", "transition"]


def test_it_leaves_only_below_four_fifths() -> None:
    """In transition at L̄ between 0.24 and 0.3 s it stays; at 0.23 s it leaves."""
    inside = Regime("transition", 0.3, 0.0, -60.0)
    assert step(inside, 0.27, 5.0, THRESHOLDS).name == "transition"
    assert step(inside, 0.06, 5.0, THRESHOLDS).name == "below"


def test_it_dwells_ten_seconds_before_it_leaves() -> None:
    """Nothing goes down within 10 s of having gone up, however good the news."""
    fresh = Regime("saturated", 2.1, 0.0, 0.0)
    first = step(fresh, 0.0, 5.0, THRESHOLDS)
    assert first.name == "saturated"
    assert step(first, 0.0, 10.0, THRESHOLDS).name != "saturated"


def test_two_calm_steps_end_a_saturation() -> None:
    """From L̄ = 3 s the papers' loop would need seven steps under 0.24 s; two steps of calm start L̄ anew."""
    assert [r.name for r in follow([0.05, 0.05], Regime("saturated", 3.0, -5.0, -60.0))] == ["saturated", "below"]


def test_one_calm_step_amid_trouble_ends_nothing() -> None:
    """Calm, trouble, calm, trouble: saturated throughout."""
    names = {r.name for r in follow([0.05, 6, 0.05, 6], Regime("saturated", 3.0, -5.0, -60.0))}
    assert names == {"saturated"}


def test_without_requests_the_last_state_is_held_and_marked() -> None:
    """No P99: name and L̄ stay, `held` says why; it was unknown before the first."""
    held = follow([10, None])[-1]
    assert (held.name, held.held) == ("saturated", "no requests: last state held")
    assert follow([None])[-1].name == "unknown"


@given(st.lists(st.floats(0, 0.29), min_size=1, max_size=40))
def test_under_the_threshold_it_is_always_below(p99s: list[float]) -> None:
    """No sequence of P99s under θ₁ leaves `below`."""
    assert {r.name for r in follow(p99s)} == {"below"}


@given(st.lists(st.floats(0, 30), min_size=2, max_size=60))
def test_it_never_flaps_faster_than_the_dwell(p99s: list[float]) -> None:
    """A step down is at least 10 s after the last change, and names are always regimes."""
    seen = follow(p99s)
    for before, after in pairwise(seen):
        assert after.name in REGIMES
        if REGIMES.index(after.name) < REGIMES.index(before.name):
            assert after.since is not None and before.since is not None and after.since - before.since >= 10
