import numpy as np
import pytest

from queries.whatif.arrivals import infer, pairs, told_to_go


def spike(users: tuple[int, ...] = (8, 32, 8), phase_s: float = 40.0, stay_s: float = 5.0) -> tuple[np.ndarray, np.ndarray]:
    """A closed loop as the load generator makes it: arrivals and finishes; users beyond the new number go as they finish."""
    rng = np.random.default_rng(3)
    arrived, finished = [], []
    for user in range(max(users)):
        for phase, count in enumerate(users):
            if user >= count or (phase and user < users[phase - 1]):
                continue
            last = phase
            while last + 1 < len(users) and user < users[last + 1]:
                last += 1
            t = phase * phase_s
            while t < (last + 1) * phase_s:
                arrived.append(t)
                t += stay_s * rng.uniform(0.9, 1.1)
                finished.append(t)
                t += 0.005
    return np.array(arrived), np.array(finished)


def test_a_held_number_in_flight_is_a_closed_loop() -> None:
    """The spike's users are told from their finishes: how many join and leave, when, and how long they think."""
    arrivals = infer(*spike())
    assert arrivals.kind == "closed" and "32 users" in arrivals.why
    assert np.median(arrivals.think_s) == pytest.approx(0.005)
    at, count = np.unique(np.round(arrivals.leave_s, 0), return_counts=True)
    assert dict(zip(at, count, strict=True))[80] == 24
    assert ((arrivals.at_s >= 39.9) & (arrivals.at_s <= 40.1)).sum() == 24


@pytest.mark.parametrize("rate", [1.0, 5.0, 14.0, 50.0])
def test_a_poisson_stream_is_open(rate: float) -> None:
    """Arrivals that do not care for the answers are played when they came."""
    rng = np.random.default_rng(int(rate))
    arrived = np.cumsum(rng.exponential(1 / rate, int(60 * rate)))
    arrivals = infer(arrived, arrived + 5 * rng.lognormal(0, 0.1, len(arrived)))
    assert arrivals.kind == "open" and arrivals.at_s.tolist() == (arrived - arrived[0]).tolist()


def test_what_is_told_is_believed_and_said() -> None:
    """The user's word goes before the tell-tale, and stands in the sentence."""
    arrivals = infer(*spike(), kind="open")
    assert arrivals.kind == "open" and "as told" in arrivals.why


def test_an_arrival_takes_the_latest_finish() -> None:
    """Who leaves at 1.0 does not lend its finish to the one who came back from 1.2."""
    found = pairs(np.array([0.0, 0.0, 1.21]), np.array([1.0, 1.2]))
    assert found.before[2] == pytest.approx(0.01) and found.unused.tolist() == [0]


def test_users_are_told_together_where_one_moment_explains_it() -> None:
    """Three last requests that were all under way at 10 s were told then; one that ended before was told on its own."""
    told = told_to_go(np.array([1.0, 6.0, 8.0, 9.0]), np.array([4.0, 11.0, 12.0, 10.5]))
    assert told.tolist() == pytest.approx([2.5, 9.75, 9.75, 9.75])
