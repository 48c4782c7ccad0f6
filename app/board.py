"""The controller's loop as an operator reads it: what it sees, what it would do now, when it looks again. Pure."""

from dataclasses import dataclass

from app.status import span
from controller.bus import State
from controller.protocol import Loop

OVERDUE_S = 10.0


@dataclass(frozen=True, slots=True)
class Fact:
    """`until`: counted down beside the text by the browser (Unix s). `good`: False where it needs an eye."""

    name: str
    text: str
    note: str = ""
    until: float | None = None
    good: bool = True


@dataclass(frozen=True, slots=True)
class Board:
    """`state`: `armed`, `dry run` or `dead`; `said`: what the loop does or would do now, and why."""

    state: str
    title: str
    said: str
    facts: tuple[Fact, ...] = ()


def board(loop: Loop | None, state: State | None, now: float, problem: str = "") -> Board:
    """From the newest word of the loop and the bucket. A controller that is silent is said to be, with the age of its last word.

    `problem`: why the bucket cannot be read; without one and without a state nobody has asked yet.
    """
    if loop is None and state is None:
        return Board("dead", "Nothing is known of the controller.", problem) if problem else Board("", "Asking the controller…", "")
    answers = state is not None and state.controller_at is not None
    if loop is None:
        if answers:
            return Board("", "The controller answers, and has not said yet what it does.", "Its next step says it.")
        return Board(
            "dead", "No controller answers.", "Nothing that is wanted will be done; start poascope control.", _lease(None, state, now)
        )
    age_s = now - loop.at
    if not answers or now > loop.next_at + OVERDUE_S:
        title = f"No controller answers: its last word is {age_s:.0f} s old."
        return Board("dead", title, f"It said then: {loop.why}", _facts(loop, state, now, dead=True))
    title = "Armed: the controller acts on the regime." if loop.armed else "Dry run: the controller decides and does not act; overrides do."
    does = {"set": "It has just acted: ", "hold": "It holds: ", "dry run": ""}[loop.action]
    return Board("armed" if loop.armed else "dry run", title, f"{does}{loop.why}", _facts(loop, state, now, dead=False))


def _facts(loop: Loop, state: State | None, now: float, dead: bool) -> tuple[Fact, ...]:
    old = loop.signal_at is None or now - loop.signal_at > 15
    signal = "no signal" if loop.ttft_p99_s is None else f"TTFT P99 {span(loop.ttft_p99_s)}"
    age = "never heard" if loop.signal_at is None else f"{max(0.0, now - loop.signal_at):.0f} s old"
    limits = "thresholds are being learnt"
    if loop.thresholds_s:
        limits = f"transition above {loop.thresholds_s[0]:g} s, saturated above {loop.thresholds_s[1]:g} s"
    smoothed = "not known" if loop.ttft_ewma_s is None else span(loop.ttft_ewma_s)
    dwell = Fact("Dwell", "may change now") if loop.dwell_left_s <= 0 else Fact("Dwell", "no change for", until=loop.at + loop.dwell_left_s)
    return (
        Fact("Signal", signal, age + (f", not judged anew: {loop.held}" if loop.held else ""), good=not old),
        Fact("Smoothed (EWMA)", smoothed, limits, good=loop.ttft_ewma_s is not None),
        Fact("Regime", loop.regime or "unknown", good=loop.regime not in (None, "unknown")),
        dwell,
        Fact(
            "Switches left", f"{loop.switches_left} of {loop.switches_max}", "automatic ones, in ten minutes", good=loop.switches_left > 0
        ),
        Fact(
            "Next decision",
            "overdue since" if dead else "in",
            until=None if dead else loop.next_at,
            note=_clock(loop.next_at),
            good=not dead,
        ),
        *_lease(loop, state, now),
    )


def _lease(loop: Loop | None, state: State | None, now: float) -> tuple[Fact, ...]:
    """How long actuators keep the target without hearing of the controller."""
    target = state.target.value if state else None
    if target is None or state is None:
        return ()
    renewed = max(target.decided_at, state.lease.value.renewed_at if state.lease.value else 0.0)
    ends = renewed + target.lease_s
    if ends <= now:
        return (Fact("Lease", "has run out", "actuators are back at safe parameters", good=False),)
    note = "then actuators go back to safe parameters, unless the controller is heard again"
    return (Fact("Lease", "good for", note, ends, good=loop is not None and ends - now > target.lease_s / 2),)


def _clock(at: float) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC"
