"""Routing policies of the model. Dynamo's rule: cost = ω × blocks to prefill + active blocks, then softmax with temperature τ.

The softmax is over the costs' range, so τ has no unit; 0 takes the cheapest.
"""

import math
from dataclasses import dataclass
from random import Random

from poascope.errors import Misconfigured

KINDS = ("recorded", "round-robin", "least-loaded", "kv")


@dataclass(frozen=True, slots=True)
class Policy:
    """`recorded`: the worker that served the request in the trace. τ and ω are those of `kv` alone.

    Blocks to prefill are those of the request that a worker lacks and those that already wait there; active blocks are the inputs of the
    requests there, this one included. As in Dynamo, the decode pool's choice has no ω: its prefill is done elsewhere.
    """

    kind: str
    tau: float = 0.0
    omega: float = 1.0

    def __str__(self) -> str:
        return f"kv τ {self.tau:g} ω {self.omega:g}" if self.kind == "kv" else self.kind


def parse_policy(text: str) -> Policy:
    """`recorded`, `round-robin`, `least-loaded`, or `kv[:TAU[:OMEGA]]`. Raises Misconfigured."""
    kind, *numbers = text.strip().split(":")
    problem = Misconfigured(f"policy: {text} - must be recorded, round-robin, least-loaded or kv[:TAU[:OMEGA]], as kv:0.7:1")
    if kind not in KINDS or len(numbers) > (2 if kind == "kv" else 0):
        raise problem
    try:
        given = [float(n) for n in numbers]
    except ValueError:
        raise problem from None
    if any(not 0 <= n <= 100 for n in given):
        raise Misconfigured(f"policy: {text} - τ and ω lie within 0 and 100")
    return Policy(kind, *given)


@dataclass(slots=True)
class Load:
    """One worker as a router sees it. `turn`: when it was last chosen, for taking turns."""

    requests: int = 0
    active_blocks: float = 0.0
    prefill_blocks: float = 0.0
    cached_blocks: int = 0
    turn: int = -1


def costs(policy: Policy, loads: list[Load], blocks: float, overlaps: list[int] | None) -> list[float]:
    """Dynamo's cost of each worker, in blocks. overlaps: leading blocks each worker holds; None in the decode pool."""
    if overlaps is None:
        return [load.active_blocks + blocks for load in loads]
    return [
        policy.omega * (load.prefill_blocks + blocks - held) + load.active_blocks + blocks
        for load, held in zip(loads, overlaps, strict=True)
    ]


def choose(policy: Policy, loads: list[Load], blocks: float, overlaps: list[int] | None, served_by: int, random: Random) -> int:
    """The worker's number in its pool. Ties under `kv` go as Dynamo's do: to the smaller cache, then by lot."""
    if policy.kind == "recorded":
        return served_by % len(loads)
    if policy.kind == "round-robin":
        return min(range(len(loads)), key=lambda j: loads[j].turn)
    if policy.kind == "least-loaded":
        return min(range(len(loads)), key=lambda j: (loads[j].requests, loads[j].turn))
    cost = costs(policy, loads, blocks, overlaps)
    low, high = min(cost), max(cost)
    if policy.tau == 0 or low == high:
        cheapest = [j for j in range(len(loads)) if cost[j] <= low + 1e-9]
        least = min(loads[j].cached_blocks for j in cheapest)
        return random.choice([j for j in cheapest if loads[j].cached_blocks == least])
    weights = [math.exp(-(c - low) / ((high - low) * policy.tau)) for c in cost]
    return random.choices(range(len(loads)), weights)[0]
