from random import Random

import pytest

from poascope.errors import Misconfigured
from queries.whatif.policy import Load, Policy, choose, costs, parse_policy


def test_the_cost_is_dynamos() -> None:
    """ω × (blocks waiting there + those lacking) + active blocks + the request's own."""
    loads = [Load(active_blocks=10, prefill_blocks=4), Load(active_blocks=20, prefill_blocks=0)]
    assert costs(Policy("kv", 0, 2.0), loads, 8, [0, 6]) == [2 * (4 + 8) + 10 + 8, 2 * (8 - 6) + 20 + 8]
    assert costs(Policy("kv", 0, 2.0), loads, 8, None) == [18, 28]


def test_tau_spreads_over_the_range_of_costs() -> None:
    """τ 0 takes the cheapest; a large τ is near a coin; costs in another unit give the same choices."""

    def share(tau: float, scale: float) -> float:
        random, loads = Random(1), [Load(active_blocks=0), Load(active_blocks=5 * scale)]
        return sum(choose(Policy("kv", tau, 1), loads, scale, [0, 0], 0, random) == 0 for _ in range(2000)) / 2000

    assert share(0.0, 1) == 1.0 and 0.45 < share(100.0, 1) < 0.6
    assert share(0.7, 1) == share(0.7, 1000) and 0.75 < share(0.7, 1) < 0.85


@pytest.mark.parametrize("text", ["fastest", "kv:a", "kv:1:2:3", "round-robin:1", "kv:-1", "kv:0:101", "kv:nan"])
def test_what_is_no_policy_is_refused(text: str) -> None:
    """Names and numbers that mean nothing are misconfigured, by name."""
    with pytest.raises(Misconfigured, match=r"policy: "):
        parse_policy(text)


def test_policies_are_read_as_they_are_written() -> None:
    """kv alone is Dynamo's default."""
    assert parse_policy("kv") == Policy("kv", 0.0, 1.0) and parse_policy("kv:0.7:0.1") == Policy("kv", 0.7, 0.1)
    assert parse_policy(" round-robin ").kind == "round-robin"
