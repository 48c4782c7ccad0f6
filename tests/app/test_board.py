"""The board of the loop: what it says when all is well, in a dry run, and when nobody answers."""

from typing import Any

from app.board import board
from controller.bus import State, Stored
from controller.protocol import Lease, Loop, Target

NOW = 1_000_000.0
LOOP: dict[str, Any] = {
    "at": NOW - 1,
    "next_at": NOW + 4,
    "armed": True,
    "mode": "auto",
    "action": "hold",
    "reason": "steady",
    "why": "below: τ 0, ω 1 stays.",
    "tau": 0.0,
    "omega": 1.0,
    "regime": "below",
    "signal_at": NOW - 2,
    "signal_age_s": 1.0,
    "ttft_p99_s": 0.41,
    "ttft_ewma_s": 0.2,
    "thresholds_s": (0.3, 2.0),
    "held": None,
    "dwell_left_s": 12.0,
    "switches_left": 5,
    "switches_max": 6,
    "target_revision": 3,
    "arming_revision": 1,
    "lease_s": 120.0,
}
TARGET = Target(tau=0.0, omega=1.0, regime="below", mode="auto", why="below", decided_at=NOW - 300, lease_s=120.0)


def state(answers: bool = True, renewed_at: float = NOW - 5) -> State:
    lease = Stored(Lease(target_revision=3, renewed_at=renewed_at), 9, NOW)
    return State("d", Stored(), Stored(TARGET, 3, NOW), {}, NOW if answers else None, lease=lease)


def facts(**given: Any) -> dict[str, tuple[str, bool]]:
    return {fact.name: (fact.text, fact.good) for fact in board(Loop(**LOOP | given), state(), NOW).facts}


def test_an_armed_loop_says_what_it_sees_and_when_it_looks_again() -> None:
    """Signal with its age, EWMA against the thresholds, what is left of dwell and switches, and two countdowns."""
    found = board(Loop(**LOOP), state(), NOW)
    assert (found.state, found.said) == ("armed", "It holds: below: τ 0, ω 1 stays.")
    by_name = {fact.name: fact for fact in found.facts}
    assert (by_name["Signal"].text, by_name["Signal"].note) == ("TTFT P99 410 ms", "2 s old")
    assert by_name["Smoothed (EWMA)"].note == "transition above 0.3 s, saturated above 2 s"
    assert (by_name["Dwell"].until, by_name["Next decision"].until, by_name["Lease"].until) == (NOW + 11, NOW + 4, NOW + 115)
    assert by_name["Switches left"].text == "5 of 6"


def test_a_dry_run_is_not_mistaken_for_acting() -> None:
    """It says what it would do, under a title that says it does not."""
    found = board(Loop(**LOOP | {"armed": False, "action": "dry run", "why": "It is not armed, would set τ 0.7."}), state(), NOW)
    assert found.state == "dry run"
    assert "does not act" in found.title and found.said == "It is not armed, would set τ 0.7."


def test_a_dead_controller_is_said_with_its_age_and_the_lease_goes_on() -> None:
    """No answer, or a step long overdue: the last word is dated, and the lease still counts down, or has run out."""
    found = board(Loop(**LOOP | {"at": NOW - 60, "next_at": NOW - 55}), state(answers=False, renewed_at=NOW - 60), NOW)
    assert (found.state, found.title) == ("dead", "No controller answers: its last word is 60 s old.")
    assert {fact.name: fact.until for fact in found.facts}["Lease"] == NOW + 60
    over = board(None, state(answers=False, renewed_at=NOW - 200), NOW)
    assert over.facts[0].text == "has run out" and not over.facts[0].good
    assert board(None, state(answers=False), NOW).state == "dead"
    assert board(None, None, NOW, "NATS: gone").said == "NATS: gone"


def test_nobody_is_called_dead_before_anybody_was_asked() -> None:
    """A page that was just opened has read nothing: it says so, and raises no alarm."""
    assert (board(None, None, NOW).state, board(None, None, NOW).title) == ("", "Asking the controller…")
    assert board(None, state(), NOW).state == ""  # it answers, and its next step is some seconds away


def test_what_is_missing_is_never_a_number() -> None:
    """No signal, thresholds still learnt, an unknown regime and no switches left are said, and marked."""
    found = facts(ttft_p99_s=None, signal_at=None, thresholds_s=None, ttft_ewma_s=None, regime=None, switches_left=0, dwell_left_s=0.0)
    assert found["Signal"] == ("no signal", False)
    assert found["Smoothed (EWMA)"] == ("not known", False)
    assert found["Regime"] == ("unknown", False)
    assert found["Switches left"] == ("0 of 6", False)
    assert found["Dwell"] == ("may change now", True)
