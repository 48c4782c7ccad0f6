"""The state of the loop, as the Control page gets it."""

import msgspec

from controller.policy import Config, Hold, Observation, Set, Signal, Wanted, decide
from controller.protocol import Loop, Target
from controller.view import view
from tests.controller.conftest import intent

NOW = 1_800_000_000.0
CONFIG = Config(min_dwell_s=30.0, max_switches=2)
SIGNAL = Signal(NOW - 1.5, "saturated", 2.5, None, 4.0, (0.3, 2.0))


def target(**changes: object) -> Target:
    return msgspec.structs.replace(
        Target(tau=0.0, omega=1.0, regime="below", mode="auto", why="so", decided_at=NOW - 60, intent_revision=3, lease_s=90.0), **changes
    )


def seen(observation: Observation, last: Target | None) -> tuple[Set | Hold, Loop]:
    decided = decide(observation, CONFIG, last)
    in_force = decided.target if isinstance(decided, Set) else last
    return decided, view(observation, CONFIG, decided, in_force, (7 if in_force else 0, 5), NOW + 5)


def test_a_dry_run_shows_what_would_be_set() -> None:
    """With nothing in force the numbers are those that arming would bring."""
    decided, loop = seen(Observation(NOW, SIGNAL, None, False), None)
    assert isinstance(decided, Hold)
    assert (loop.action, loop.armed, loop.mode, loop.tau, loop.omega, loop.why) == ("dry run", False, "auto", 0.8, 0.1, decided.why)
    assert (loop.regime, loop.signal_at, loop.signal_age_s, loop.ttft_p99_s) == ("saturated", NOW - 1.5, 1.5, 4.0)
    assert (loop.ttft_ewma_s, loop.thresholds_s, loop.held) == (2.5, (0.3, 2.0), None)
    assert (loop.dwell_left_s, loop.switches_left, loop.target_revision, loop.arming_revision, loop.lease_s) == (0.0, 2, 0, 5, 120.0)


def test_a_change_uses_up_a_switch_and_begins_the_dwell() -> None:
    """What is left is counted with the change that was just made."""
    _, loop = seen(Observation(NOW, SIGNAL, None, True), target(switched_at=(NOW - 700, NOW - 400)))
    assert (loop.action, loop.reason, loop.tau, loop.dwell_left_s, loop.switches_left) == ("set", "changed", 0.8, 30.0, 0)


def test_without_signals_their_numbers_are_not_known() -> None:
    """None, never zero; what is in force is shown all the same."""
    _, loop = seen(Observation(NOW, None, None, True), target())
    assert (loop.action, loop.reason, loop.tau, loop.lease_s) == ("hold", "no signals", 0.0, 90.0)
    unknown = (loop.regime, loop.signal_at, loop.signal_age_s, loop.ttft_p99_s, loop.ttft_ewma_s, loop.thresholds_s)
    assert unknown == (None,) * 6


def test_an_override_has_its_end_and_its_operator() -> None:
    """Its operator is known as long as its intent counts; its end is the target's own."""
    asked = intent(expires_at=NOW + 600)
    override = target(mode="manual", tau=0.7, intent_revision=9, expires_at=NOW + 600)
    _, loop = seen(Observation(NOW, SIGNAL, Wanted(9, asked), True), override)
    assert loop.override is not None
    assert (loop.mode, loop.reason, loop.override.operator, loop.override.left_s) == ("manual", "override", "alice", 600.0)
    _, loop = seen(Observation(NOW, SIGNAL, Wanted(11, None, "cannot be read"), True), override)
    assert loop.override is not None
    assert (loop.reason, loop.override.operator, loop.override.expires_at) == ("refused", "", NOW + 600)


def test_an_expiry_is_named() -> None:
    """The step in which an override ran out says so."""
    over = target(mode="manual", tau=0.7, intent_revision=9, expires_at=NOW)
    _, loop = seen(Observation(NOW, SIGNAL, Wanted(9, intent(expires_at=NOW)), True), over)
    assert (loop.action, loop.reason, loop.mode, loop.override) == ("set", "expiry", "auto", None)
    assert msgspec.json.decode(msgspec.json.encode(loop), type=Loop) == loop
