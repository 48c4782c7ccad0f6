"""Routers tied to frontends."""

import math

from collectors.metrics import Histogram, Readings
from collectors.profiles import Profiles
from poascope.settings import Profile
from store.names import BY_ALIAS

A, B = Profile("a", 0.0, 1.0, "http://a"), Profile("b", 0.7, 1.0, "http://b")
TOKENS = "dynamo_frontend_input_sequence_tokens"
OVERHEAD = "dynamo_router_overhead_total_ms"


class Frontends:
    """Two frontends whose request counters are read every 5 s."""

    def __init__(self) -> None:
        self.profiles, self.readings = Profiles((A, B)), Readings()
        self.now = 0.0
        self.counts = {"http://a": 0.0, "http://b": 0.0}
        self.away: set[str] = set()

    def round(self, **served: tuple[int, int]) -> None:
        """Each frontend serves `(requests, router id)`, then all are read."""
        for name, (count, router) in served.items():
            self.counts[f"http://{name}"] += count
            self.profiles.routed(router, self.now, "d")
        self.now += 5
        for target, total in self.counts.items():
            if target in self.away:
                continue
            read = Histogram(BY_ALIAS[TOKENS], TOKENS, "{}", (1.0, math.inf), (0.0, total), None)
            self.readings.feed(self.now, target, [], [read])
            self.profiles.read(target, self.now, self.readings)


def test_the_one_that_moved_belongs_to_the_one_that_routed() -> None:
    """Two rounds in which one frontend and one router were busy tie them; one is not enough, and both at once say nothing."""
    f = Frontends()
    f.round(a=(3, 11), b=(3, 22))
    f.round(a=(3, 11))
    assert f.profiles.profile(11) is None
    f.round(a=(2, 11))
    assert f.profiles.profile(11) == A and f.profiles.profile(22) is None
    f.round(a=(1, 11), b=(4, 22))
    f.round(a=(1, 11), b=(4, 22))
    assert f.profiles.profile(22) == B


def test_a_restarted_router_is_learnt_again() -> None:
    """A router that fell silent gives its frontend back to the one that came after it."""
    f = Frontends()
    f.round(a=(0, 9))
    for _ in range(3):
        f.round(a=(3, 11))
    assert f.profiles.profile(11) == A
    for _ in range(30):
        f.round(a=(3, 12))
    assert f.profiles.profile(12) == A and f.profiles.profile(11) is None


def test_a_frontend_started_anew_is_known_after_two_rounds() -> None:
    """Its former router still counts as heard, but one that is silent does not explain what the frontend serves now."""
    f = Frontends()
    for _ in range(3):
        f.round(a=(3, 11))
    f.round(a=(3, 12))
    f.round(a=(3, 12))
    assert f.profiles.profile(12) == A


def test_a_frontend_that_does_not_answer_stops_no_votes() -> None:
    """With one of them away the others are told apart all the same."""
    f = Frontends()
    f.away = {"http://b"}
    for _ in range(4):
        f.round(a=(3, 11))
    assert f.profiles.profile(11) == A


def test_a_frontend_that_names_its_router_is_believed() -> None:
    """On 1.x the router's id is a label of the frontend's own metrics: no votes are needed, nor can they outvote it."""
    f = Frontends()
    labels = f'{{"router_id":"{2**64 - 1}"}}'
    f.readings.feed(1, "http://b", [], [Histogram(BY_ALIAS[OVERHEAD], OVERHEAD, labels, (1.0, math.inf), (0.0, 1.0), None)])
    f.profiles.read("http://b", 1, f.readings)
    assert f.profiles.profile(2**64 - 1) == B and f.profiles.profile(None) is None
