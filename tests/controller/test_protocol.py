"""What an intent must be, and how names become keys."""

import re

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
