"""Under which τ and ω a request was routed: as its router said, or as the frontend is set up to which its router belongs."""

import json
from collections import Counter

from collectors.metrics import Readings, increase
from poascope.settings import Profile

FORGET_S = 120.0
VOTES = 2
REMEMBERED = 65_536


class Profiles:
    """Ties router ids to profiles. On 1.x a frontend's own metrics name its router. On 0.9 counters are matched: in a round of
    reads in which one untied frontend's requests moved and one untied router routed, they are the same; two such rounds decide.
    """

    def __init__(self, profiles: tuple[Profile, ...]) -> None:
        self._said: dict[str, Profile] = {}
        self._by_target = {name: p for p in profiles for name in (p.url, p.name)}
        self._named: dict[int, str] = {}
        self._votes: Counter[tuple[int, str]] = Counter()
        self._heard: dict[int, float] = {}
        self._deployment: dict[int, str] = {}
        self._routed: set[int] = set()
        self._round: dict[str, bool] = {}
        self._requests: dict[str, float] = {}

    def routed(self, router_id: int, at: float, deployment: str) -> None:
        """A router sent a new request to its first worker."""
        self._heard[router_id] = at
        self._deployment[router_id] = deployment
        self._routed.add(router_id)

    def read(self, target: str, at: float, readings: Readings) -> None:
        """A frontend's metrics were read."""
        if target not in self._by_target:
            return
        for quantity, labels in readings.labels(target):
            router = json.loads(labels).get("router_id", "") if quantity.name == "router_overhead_ms" else ""
            if router.isdecimal() and len(router) <= len(str(2**64)):
                self._named[int(router)] = target
        if target in self._round:  # its turn again: one of the others does not answer
            self._vote(at)
        count = readings.count("frontend_input_tokens", target)
        self._round[target] = increase([self._requests.get(target, count), count]) > 0
        self._requests[target] = count
        if len(self._round) == len({p.url for p in self._by_target.values()}):
            self._vote(at)

    def _vote(self, at: float) -> None:
        for router in [r for r, heard in self._heard.items() if heard < at - FORGET_S]:
            del self._heard[router], self._deployment[router]
            for vote in [v for v in self._votes if v[0] == router]:
                del self._votes[vote]
        tied = {router: target for router in self._heard if (target := self.target(router))}
        # A tied router that was silent explains nothing: its frontend may have been started anew and have another router now.
        explained = {target for router, target in tied.items() if router in self._routed}
        moved = {target for target, has_moved in self._round.items() if has_moved} - explained
        routed = self._routed - set(tied)
        if len(moved) == 1 and len(routed) == 1:
            self._votes[routed.pop(), moved.pop()] += 1
        self._round.clear()
        self._routed.clear()

    def target(self, router_id: int | None) -> str | None:
        """The frontend a router belongs to, None while unknown."""
        if router_id is None:
            return None
        if named := self._named.get(router_id):
            return named
        votes = [(n, target) for (router, target), n in self._votes.items() if router == router_id]
        most = max(votes, default=None)
        return most[1] if most and most[0] >= VOTES and most[0] > 0.8 * sum(n for n, _ in votes) else None

    def said(self, request_id: str, tau: float, omega: float) -> None:
        """A router actuator told the parameters under which it routed one request."""
        self._said[request_id] = Profile("router", tau, omega, "")
        if len(self._said) > REMEMBERED:
            del self._said[next(iter(self._said))]

    def profile(self, router_id: int | None, request_id: str = "") -> Profile | None:
        """What a request went by; its own word, which may come just after its routing, counts before its router's frontend."""
        if request_id in self._said:
            return self._said[request_id]
        target = self.target(router_id)
        return self._by_target[target] if target else None

    def routers_of(self, deployment: str) -> list[int]:
        """The routers that lately sent requests in a deployment."""
        return [router for router, name in self._deployment.items() if name == deployment]
