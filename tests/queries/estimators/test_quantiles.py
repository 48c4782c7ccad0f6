import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queries.estimators.quantiles import censored_quantile, quantile

times = st.lists(st.floats(0.001, 100), min_size=1, max_size=60).map(np.array)
shares = st.sampled_from([0.5, 0.9, 0.99])


def test_a_quantile_is_a_value_that_was_seen() -> None:
    """P50 of 1, 2, 3, 4 is 2: half do not exceed it. P99 of four values is the greatest."""
    seconds = np.array([4.0, 1.0, 3.0, 2.0])
    assert quantile(seconds, 0.5).value == 2
    assert quantile(seconds, 0.99).value == 4


def test_no_requests_is_no_quantile() -> None:
    """Nothing in the window: None with a reason, never zero."""
    for nothing in (quantile(np.empty(0), 0.99), censored_quantile(np.empty(0), np.empty(0), 0.99)):
        assert nothing.value is None
        assert nothing.withheld == "no requests"


@given(times, shares)
def test_when_nobody_waits_both_agree(seconds: np.ndarray, q: float) -> None:
    """Kaplan–Meier without censoring is the empirical distribution."""
    assert censored_quantile(seconds, np.empty(0), q).value == quantile(seconds, q).value


@given(times, times, shares)
def test_old_waiters_never_lower_it(seconds: np.ndarray, ages: np.ndarray, q: float) -> None:
    """When every waiting age exceeds the plain quantile, the censored one is not below it."""
    plain = quantile(seconds, q).value
    assert plain is not None
    censored = censored_quantile(seconds, plain + ages, q).value
    assert censored is not None and censored >= plain


def test_kaplan_meier_by_hand() -> None:
    """Served 1 and 3 s, waiting 2 s: S(1) = 2/3, then one of one remaining falls at 3 s. P50 = 3 s, where the plain one says 1 s."""
    assert censored_quantile(np.array([1.0, 3.0]), np.array([2.0]), 0.5).value == 3
    assert quantile(np.array([1.0, 3.0]), 0.5).value == 1


def test_a_quantile_out_of_reach_is_a_lower_bound() -> None:
    """Half still wait at 9 s: P99 is at least 9 s, and says so."""
    found = censored_quantile(np.array([1.0]), np.array([9.0]), 0.99)
    assert (found.value, found.at_least) == (pytest.approx(9), True)


def test_at_a_tie_who_was_served_comes_before_who_still_waits() -> None:
    """Served at 1 and 3 s, one waiting for 1 s: it was there when the first was served, so S(1) = 2/3 and the 0.4-quantile is 3."""
    assert censored_quantile(np.array([1.0, 3.0]), np.array([1.0]), 0.4).value == 3.0
