import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from queries.estimators.knee import waiting_s
from queries.estimators.latency import Curve
from queries.estimators.resources import Loop, gains, split, utilisation, variation2

PREFILL, DECODE = Curve(0.055, 0.055), Curve(5.4, 0.001)


def loop(n: float = 128.0, p: int = 1, d: int = 2, itl_s: float | None = 0.021, service_cv2: float = 0.0) -> Loop:
    return Loop(PREFILL, DECODE, p, d, n, itl_s, service_cv2=service_cv2)


loops = st.builds(
    lambda s, a, sd, b, p, d, n, cv: Loop(Curve(s, a), Curve(sd, b), p, d, n, 0.02, service_cv2=cv),
    st.floats(0.01, 0.3),
    st.floats(0.005, 0.3),
    st.floats(0.5, 10),
    st.floats(1e-4, 0.05),
    st.integers(1, 6),
    st.integers(1, 6),
    st.floats(1, 400),
    st.floats(0, 2),
)


def test_utilisation_by_hand() -> None:
    """10 requests a second of 55 ms on two workers keep each 27.5 % busy; of a flat curve nobody knows the most."""
    assert utilisation(PREFILL, 10, 2) == pytest.approx(0.275)
    assert utilisation(Curve(0.055, 0.0), 10, 2) is None


def test_variation_by_hand() -> None:
    """Equal gaps vary by 0, gaps of 1 and 3 by 1/4 of their squared mean; fewer than eight say nothing."""
    assert variation2(np.full(8, 2.0)) == 0.0
    assert variation2(np.array([1.0, 3.0] * 4)) == pytest.approx(0.25)
    assert variation2(np.array([1.0, 3.0, math.nan])) is None


def test_the_wait_is_that_of_an_open_queue() -> None:
    """prefill_s is f(1) and the wait of M/D/1 (55 % busy: 33.6 ms), infinite where more arrives than is served."""
    assert loop().prefill_s(10, 1) == pytest.approx(0.055 + 0.0336, abs=1e-4)
    assert loop().prefill_s(10, 1) == 0.055 + waiting_s(10, 0.055, 1, service_cv2=0.0)
    assert math.isinf(loop().prefill_s(1 / 0.055, 1))


def test_decode_by_hand() -> None:
    """At 10/s two workers share n = 10·f(n)/2, f = 5.399 + 0.001 n: f = 5.399/(1 − 0.005)."""
    seconds = loop().decode_s(10, 2)
    assert seconds == pytest.approx(5.399 / 0.995)
    assert seconds == pytest.approx(5.4 + 0.001 * (10 * seconds / 2 - 1))


@given(loops)
def test_as_many_are_in_flight_as_are(loop: Loop) -> None:
    """Little's law holds at the answer, below every pool's most, whatever the split."""
    x = loop.per_s(loop.prefill_workers, loop.decode_workers)
    assert x * (loop.prefill_s(x, loop.prefill_workers) + loop.decode_s(x, loop.decode_workers)) == pytest.approx(loop.inflight, rel=1e-3)
    assert x < loop.prefill_workers / loop.prefill.slope_s * (1 + 1e-9)


@given(loops)
def test_one_more_worker_never_harms_its_own_latency(loop: Loop) -> None:
    """Gains are not negative, and more workers on either side never lower the throughput."""
    gain = gains(loop)
    assert gain.ttft_s >= 0 and gain.itl_s is not None and gain.itl_s >= 0
    p, d = loop.prefill_workers, loop.decode_workers
    assert loop.per_s(p + 1, d) >= loop.per_s(p, d) * (1 - 1e-9) <= loop.per_s(p, d + 1) * (1 + 1e-9)


def test_the_gain_of_prefill_is_felt_where_prefill_is_what_waits() -> None:
    """One prefill worker at 128 in flight: another takes off more than a second of TTFT, a decode worker next to nothing of ITL; at 8
    in flight neither helps. Without an ITL its gain is unknown."""
    gain = gains(loop(128))
    assert gain.ttft_s > 1 and gain.itl_s is not None and gain.itl_s < 0.0002
    calm = gains(loop(8))
    assert calm.ttft_s < 0.01
    assert gains(loop(128, itl_s=None)).itl_s is None


def brute(loop: Loop) -> int:
    total = loop.prefill_workers + loop.decode_workers
    costs = {p: loop.inflight / loop.per_s(p, total - p) for p in range(1, total)}
    return min(costs, key=lambda p: costs[p])


@given(loops)
def test_the_social_optimum_is_the_best_of_all_splits(loop: Loop) -> None:
    """The walk downhill ends where trying every split does, to a part in 10⁵ of its seconds."""
    assume(loop.prefill_workers + loop.decode_workers >= 3)
    found = split(loop, 1.0, 0.05)
    assert found is not None
    total, best = loop.prefill_workers + loop.decode_workers, brute(loop)
    assert found.best_e2e_s == pytest.approx(loop.inflight / loop.per_s(best, total - best), rel=1e-5)
    assert found.best_e2e_s <= found.now_e2e_s * (1 + 1e-9)


def test_a_starved_pool_gets_the_next_worker() -> None:
    """Six workers, one of them prefill, 400 in flight: both notions move some to prefill. The SLOs' weights move the equilibrium alone."""
    starved = loop(400, p=1, d=5)
    found = split(starved, 1.0, 0.05)
    assert found is not None and found.equilibrium > 1 and found.optimum > 1
    strict = split(starved, 1.0, 0.0001)
    assert strict is not None and strict.equilibrium <= found.equilibrium and strict.optimum == found.optimum


def test_nothing_is_dealt_where_nothing_can_be() -> None:
    """Two workers, nothing in flight, or no ITL: no split is claimed."""
    assert split(loop(p=1, d=1), 1.0, 0.05) is None
    assert split(loop(itl_s=None), 1.0, 0.05) is None
    assert split(replace(loop(), inflight=0.0), 1.0, 0.05) is None


def test_each_pool_is_costed_with_its_own_workers() -> None:
    """Slow decode beside idle prefill: both notions give decode the workers, and the seconds now and at best are those of their splits."""
    crowded = Loop(Curve(0.01, 0.01), Curve(1.0, 0.2), prefill_workers=3, decode_workers=3, inflight=60.0, itl_s=0.05, service_cv2=0.0)
    found = split(crowded, 1.0, 0.05)
    assert found is not None and found.equilibrium == 1 and found.optimum == 1
    assert found.now_e2e_s == pytest.approx(60 / crowded.per_s(3, 3)) and found.best_e2e_s == pytest.approx(60 / crowded.per_s(1, 5))
