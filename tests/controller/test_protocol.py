"""What an intent must be, and how names become keys."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import protocol
from controller.protocol import complaint
from tests.controller.conftest import intent

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({"reason": "  "}, "reason: empty"),
        ({"reason": "x" * 501}, "reason: 501 characters"),
        ({"operator": ""}, "operator: empty"),
        ({"idempotency_key": ""}, "idempotency_key: empty"),
        ({"tau": None}, "tau: None"),
        ({"tau": 10.1}, "tau: 10.1"),
        ({"tau": -0.1}, "tau: -0.1"),
        ({"omega": float("nan")}, "omega: nan"),
        ({"omega": float("inf")}, "omega: inf"),
        ({"expires_at": None}, "expires_at: missing - manual must end by itself"),
        ({"mode": "freeze", "expires_at": None}, "expires_at: missing - freeze must end by itself"),
        ({"expires_at": NOW + 298}, "expires_at: in 5.0 min"),
        ({"expires_at": NOW - 600}, "expires_at: in -10.0 min"),
        ({"expires_at": NOW + 8 * 3600 + 2}, "expires_at: in 480.0 min"),
        ({"expires_at": float("nan")}, "expires_at: in nan min"),
    ],
)
def test_an_inadmissible_intent_is_told_what_is_wrong(changes: dict[str, object], about: str) -> None:
    """Reason, signature, key, bounds and an end of 5 min to 8 h are required."""
    assert str(complaint(intent(**{"expires_at": NOW + 600} | changes), NOW)).startswith(about)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tau": 0.0, "omega": 10.0},
        {"expires_at": NOW + 300},
        {"expires_at": NOW + 8 * 3600},
        {"mode": "freeze", "tau": None, "omega": None},
        {"mode": "auto", "tau": None, "omega": None, "expires_at": None},
    ],
)
def test_an_admissible_intent_has_no_complaint(changes: dict[str, object]) -> None:
    """The bounds themselves are allowed; auto needs neither numbers nor an end."""
    assert complaint(intent(**{"expires_at": NOW + 600} | changes), NOW) is None


@given(st.text(min_size=1).filter(lambda text: text.isprintable()), st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_names_survive_their_keys(deployment: str, replica: str) -> None:
    """Any name is one valid key part, and comes back from it."""
    key = protocol.ack_key(deployment, replica)
    assert re.fullmatch(r"[-/_=.a-zA-Z0-9]+", key)
    first, kind, last = key.split(".")
    assert (protocol.name(first), kind, protocol.name(last)) == (deployment, "ack", replica)


TARGET = protocol.Target(tau=0.7, omega=0.5, regime="transition", mode="auto", why="so", decided_at=1000.0, lease_s=60.0)


def test_a_target_is_in_force_for_its_lease() -> None:
    """From the last renewal, else from the decision; then the safe parameters, with a sentence that says for how long nobody renewed."""
    held = protocol.in_force(TARGET, None, 1059.0)
    assert held == protocol.InForce(0.7, 0.5, None, 1060.0)
    assert protocol.in_force(TARGET, 5000.0, 5059.0) == protocol.InForce(0.7, 0.5, None, 5060.0)
    ended = protocol.in_force(TARGET, 5000.0, 5061.0)
    why = "the controller has not renewed the target for 61 s (lease 60 s): back to safe τ 0, ω 1"
    assert ended == protocol.InForce(0.0, 1.0, why, None)
    safe = protocol.in_force(TARGET, 5000.0, 5061.0, protocol.Safe(0.2, 0.9))
    assert (safe.tau, safe.omega) == (0.2, 0.9)


def test_an_override_ends_at_the_actuator_too() -> None:
    """Past its end and a moment for the controller an override is over, however fresh its lease."""
    override = msgspec.structs.replace(TARGET, mode="manual", expires_at=2000.0, lease_s=500.0)
    assert protocol.in_force(override, 1990.0, 2001.0) == protocol.InForce(0.7, 0.5, None, 2002.0)
    ended = protocol.in_force(override, 2001.0, 2003.0)
    assert (ended.tau, ended.omega) == (0.0, 1.0)
    assert ended.fallback is not None
    assert ended.fallback.startswith("the override ended 3 s ago and the controller sent nothing newer")


def test_a_lease_is_dated_by_the_clock_of_who_heard_it() -> None:
    """A controller whose clock is hours off renews as well as any; only the first renewal found is dated by the bucket."""
    renewal = protocol.Renewal().hear(0, None, 100.0)
    assert renewal.at is None
    renewal = renewal.hear(7, 40.0, 100.0)
    assert renewal.at == 40.0
    assert renewal.hear(7, 40.0, 130.0) == renewal, "the same revision again is no sign of life"
    assert renewal.hear(8, 9_999.0, 131.0).at == 131.0
    assert protocol.Renewal().hear(7, 9_999.0, 100.0).at == 100.0, "a bucket ahead of this clock is not trusted into the future"


def test_arming_needs_a_reason_as_an_intent_does() -> None:
    """Who armed it, and why, is for whoever reads the trail."""
    arming = protocol.Arming(armed=True, reason=" ", operator="carol", idempotency_key="k", expected_revision=0)
    assert protocol.complaint(arming, 0.0) == "reason: empty - say why"
    assert protocol.complaint(msgspec.structs.replace(arming, reason="on call"), 0.0) is None
