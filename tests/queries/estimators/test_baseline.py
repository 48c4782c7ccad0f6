"""Thresholds learnt on quiet time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queries.estimators.baseline import FACTORS, KEEP_STEPS, NEED_STEPS, Baseline, read

UNQUEUED_S = 0.055


def quiet(n: int, p99_s: float = 0.15) -> Baseline:
    baseline = Baseline()
    for _ in range(n):
        baseline = baseline.add(p99_s, 0.06, UNQUEUED_S)
    return baseline


def test_it_refuses_until_it_has_seen_two_quiet_minutes() -> None:
    """23 quiet steps are too few, and it says how far it is."""
    assert quiet(NEED_STEPS - 1).thresholds_s is None
    assert quiet(NEED_STEPS - 1).note == "thresholds: not learnt yet, 23 of 24 quiet steps of 5 s"
    assert read(quiet(NEED_STEPS - 1).note) is None


def test_the_thresholds_are_factors_on_the_median_of_quiet_p99s() -> None:
    """One burst among quiet steps moves nothing; what was learnt is said with its numbers."""
    baseline = quiet(NEED_STEPS).add(30.0, 0.06, UNQUEUED_S)
    assert baseline.thresholds_s == pytest.approx((0.3, 1.8))
    assert baseline.note == (
        "thresholds: 0.3 s, 1.8 s - learnt as 2 and 12 times the unsaturated TTFT P99 of 0.15 s (25 quiet steps of 5 s)"
    )


@pytest.mark.parametrize(
    ("p99_s", "p50_s", "unqueued_s"),
    [(5.0, 2.4, UNQUEUED_S), (None, 0.06, UNQUEUED_S), (0.15, None, UNQUEUED_S), (0.15, 0.06, None), (float("inf"), 0.06, UNQUEUED_S)],
)
def test_a_step_that_is_not_known_to_be_quiet_teaches_nothing(p99_s: float | None, p50_s: float | None, unqueued_s: float | None) -> None:
    """Neither a saturated one, nor one without requests, nor one before there is a firm fit to tell."""
    assert Baseline().add(p99_s, p50_s, unqueued_s) == Baseline()


def test_it_remembers_an_hour_of_quiet() -> None:
    """What was usual before an upgrade is forgotten."""
    baseline = quiet(10, 9.0)
    for _ in range(KEEP_STEPS):
        baseline = baseline.add(0.15, 0.06, UNQUEUED_S)
    assert set(baseline.p99s_s) == {0.15}


@given(st.lists(st.floats(1e-4, 1e3), min_size=NEED_STEPS, max_size=NEED_STEPS))
def test_the_note_gives_the_numbers_back(p99s: list[float]) -> None:
    """To three digits, whatever they are; the second threshold is always the higher."""
    baseline = Baseline(tuple(p99s))
    assert baseline.thresholds_s is not None
    low, high = baseline.thresholds_s
    assert high / low == pytest.approx(FACTORS[1] / FACTORS[0])
    assert read(baseline.note) == pytest.approx((low, high), rel=5e-3)


@pytest.mark.parametrize("note", ["ttft: no first tokens in the window", "thresholds: ", "regime: thresholds: 1 s, 2 s", ""])
def test_other_notes_tell_no_thresholds(note: str) -> None:
    """Only its own words are read."""
    assert read(note) is None
