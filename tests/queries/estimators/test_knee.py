import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queries.estimators.knee import Station, headroom_ratio, knee_inflight, waiting_s
from queries.estimators.latency import Curve, Samples, fit, queued


def test_the_testbeds_knee_by_hand() -> None:
    """55 ms of prefill on one worker and 5.375 s of decode: (0.055 + 5.375) / 0.055 = 98.7; two prefill workers double it."""
    prefill, decode = Curve(0.055, 0.055), Curve(5.375, 0.001)
    assert knee_inflight([Station(prefill, 1), Station(decode, 2)]).value == pytest.approx(98.7, abs=0.1)
    assert knee_inflight([Station(prefill, 2), Station(decode, 2)]).value == pytest.approx(197.5, abs=0.1)


def test_without_contention_there_is_no_knee() -> None:
    """No curve grows with load: None with a reason, not infinity."""
    assert knee_inflight([Station(Curve(1, 0), 1)]).withheld == "no pool's seconds grow with load yet"
    assert knee_inflight([]).value is None


def test_the_bottleneck_is_what_one_more_request_costs_those_that_queue() -> None:
    """A mocker that answers first and is busy afterwards: 10 ms for the first, 69 for each one behind it. N* is 5.41 s / 69 ms, and not the
    fifth less that a line through the first one gives."""
    n = np.concatenate([np.ones(200), np.tile([3.0, 4.0, 6.0, 8.0], 10)])
    curve, _ = fit(Samples(n, np.where(n == 1, 0.010, 0.069 * n - 0.005), np.zeros(len(n))))
    assert curve is not None and curve.slope_s > 0.075
    value = knee_inflight([Station(curve, 1), Station(Curve(5.4, 0.001), 2)]).value
    assert value == pytest.approx(5.41 / 0.069, rel=0.03)


def test_a_knee_that_was_outdone_is_withheld() -> None:
    """55 ms on one worker is 18 a second at most: with 20 served it stands, for they come in clumps; with 30 the fit is off."""
    stations = [Station(Curve(0.055, 0.055), 1), Station(Curve(5.375, 0.001), 2)]
    assert knee_inflight(stations, 20.0).withheld is None
    assert knee_inflight(stations, 30.0).withheld == "30.0 served a second, where the fit allows 18.2: the fit is off"


@given(st.floats(0.001, 1), st.floats(0.1, 10), st.floats(0.01, 100))
def test_the_knee_has_no_unit_of_time(slope: float, idle: float, scale: float) -> None:
    """Scaling all seconds leaves N* as it is."""
    one = knee_inflight([Station(Curve(idle, slope), 2)]).value
    other = knee_inflight([Station(Curve(idle * scale, slope * scale), 2)]).value
    assert one == pytest.approx(other)


def test_headroom_is_what_is_left_to_the_knee() -> None:
    """At 25 of 100 three quarters are left; past the knee it is negative."""
    assert headroom_ratio(25, 100) == 0.75
    assert headroom_ratio(150, 100) == -0.5


@given(st.floats(0.01, 0.99), st.floats(0.01, 10))
def test_one_server_is_pollaczek_and_khinchine(rho: float, service: float) -> None:
    """k = 1: M/M/1 waits ρ·s/(1 − ρ), and M/D/1 half of it."""
    expected = rho * service / (1 - rho)
    assert waiting_s(rho / service, service, 1) == pytest.approx(expected)
    assert waiting_s(rho / service, service, 1, service_cv2=0) == pytest.approx(expected / 2)


def test_erlang_c_by_hand_and_saturation() -> None:
    """M/M/2 at ρ = 0.5: C = 1/3, wait C·s/(2 − 1) = s/3. At ρ = 1 and beyond the wait has no bound."""
    assert waiting_s(1, 1, 2) == pytest.approx(1 / 3)
    assert waiting_s(2, 1, 2) == math.inf


def test_too_few_that_queued_leave_the_line_as_it_is() -> None:
    """Below 16 of n ≥ 2, or of fewer than 3 different n, `queued` says nothing and the demand is the line's slope."""
    few = Samples(np.array([1.0, 2, 3, 4] * 5), np.array([0.1, 0.2, 0.3, 0.4] * 5), np.zeros(20))
    assert queued(few) is None
    assert queued(Samples(np.array([2.0, 3.0] * 20), np.array([0.2, 0.3] * 20), np.zeros(40))) is None
    assert Curve(1.0, 0.25).demand_s == 0.25
