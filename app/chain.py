"""Wanted, decided, acknowledged, observed: the life of an override, as the pages show it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.charts.frame import number
from controller.bus import State
from controller.protocol import REGIMES, Intent, complaint
from controller.standing import CLOCK_SLACK_S


@dataclass(frozen=True, slots=True)
class Link:
    """One line of the chain. `at`: when that became true (Unix s). `good`: False where it failed or lags behind."""

    name: str
    text: str
    by: str = ""
    at: float | None = None
    good: bool = True


@dataclass(frozen=True, slots=True)
class Chain:
    """`problem` says why nothing can be told or sent, "" when all is well. `revision` is what a writer has seen with this chain.

    `answers`: a controller does.
    """

    links: tuple[Link, ...]
    revision: int = 0
    running: str = ""
    reason: str = ""
    expires_at: float | None = None
    why: str = ""
    problem: str = ""
    answers: bool = True


def parameters(tau: float | None, omega: float | None) -> str:
    tau, omega = number(tau), number(omega)  # a row of a frame has NaN where nothing is known
    return "unknown" if tau is None or omega is None else f"τ {tau:g} ω {omega:g}"


def wanted(intent: Intent | None, now: float) -> str:
    """An intent in words. One that has expired wants nothing any more."""
    if intent is None or intent.mode == "auto" or (intent.expires_at or 0) <= now:
        return "auto"
    if intent.mode == "freeze":
        return "freeze"
    named = next((name for name, pair in REGIMES.items() if pair == (intent.tau, intent.omega)), "manual")
    return f"{named} {parameters(intent.tau, intent.omega)}"


def observed(row: Mapping[str, Any] | None, routed_at: float | None = None) -> Link:
    """The parameters under which the newest requests were really routed, as the signals say.

    `routed_at`: about when that was (Unix s). Without a request since (`row` has no arrivals) it says so.
    """
    if row is None:
        return Link("Observed", "no signals", good=False)
    text = parameters(number(row.get("tau")), number(row.get("omega")))
    if (number(row.get("arrivals_per_s")) or 0) > 0:
        return Link("Observed", text, "in the signals", routed_at)
    return Link("Observed", text, "no request lately" if routed_at is None else "as of the last request", routed_at)


def chain(state: State | None, row: Mapping[str, Any] | None, now: float, problem: str = "", routed_at: float | None = None) -> Chain:
    """The chain of one deployment. Without a state (NATS away, or not asked yet) only what is observed is known."""
    if state is None:
        unknown = tuple(Link(name, "unknown", good=False) for name in ("Wanted", "Decided", "Acknowledged"))
        return Chain((*unknown, observed(row, routed_at)), problem=problem)
    intent, target = state.intent.value, state.target.value
    # What no writer of ours would have put there is not done, and what stood before it still counts: the controller says so.
    refused = state.intent.problem or (intent and complaint(intent, now if state.intent.at is None else state.intent.at, CLOCK_SLACK_S))
    if refused:
        want, by = "auto", f"{intent.operator[:60]}, refused" if intent else "refused"
        links = [Link("Wanted", f"not followed: {refused}", by, state.intent.at, good=False)]
    else:
        want = wanted(intent, now)
        links = [Link("Wanted", want, intent.operator if intent else "by default", state.intent.at)]
    answers = state.controller_at is not None
    if target:
        by = target.mode if answers else f"{target.mode}, no controller answers now"
        links.append(Link("Decided", parameters(target.tau, target.omega), by, target.decided_at, good=answers))
    else:
        links.append(Link("Decided", "nothing yet" if answers else "no controller answers", good=False))
    for replica, stored in state.acks.items():
        ack = stored.value
        if ack is None:
            continue
        lags = target is not None and ack.target_revision < state.target.revision
        text = f"failed: {ack.error}" if ack.error else parameters(ack.tau, ack.omega)
        by = ", ".join(part for part in (replica, "not yet the newest" if lags else "", ack.mapping or "") if part)
        links.append(Link("Acknowledged", text, by, ack.applied_at, good=not (lags or ack.error)))
    if not any(stored.value for stored in state.acks.values()):
        links.append(Link("Acknowledged", "no gateway or router heard", good=False))
    links.append(observed(row, routed_at))
    running = intent is not None and want != "auto"
    return Chain(
        tuple(links),
        revision=state.intent.revision,
        running=want if running else "",
        reason=intent.reason if intent and running else "",
        expires_at=intent.expires_at if intent and running else None,
        why=target.why if target else "",
        problem=problem,
        answers=answers,
    )
