"""Regime → (τ, ω), by the paper's table, and when not to. Pure: the clock is part of the observation.

The regime and its EWMA are the pulse's (`signals`); this module never recomputes them.
"""

from dataclasses import dataclass

from controller.protocol import REGIMES, Intent, Target


@dataclass(frozen=True, slots=True)
class Signal:
    """What the newest pulse said. `ts`: its tick (Unix s, collector's clock). `held`: why the regime is not judged anew, if it is not."""

    ts: float
    regime: str | None
    ttft_ewma_s: float | None
    held: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The intent in the bucket, None when it cannot be read. `refused`: why the controller does not follow it."""

    revision: int
    intent: Intent | None
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    now: float
    signal: Signal | None
    wanted: Wanted | None


@dataclass(frozen=True, slots=True)
class Config:
    """`stale_after_s`: three missed intervals of the paper's 5 s. `ahead_s`: how far a pulse's clock may run before ours."""

    stale_after_s: float = 15.0
    ahead_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Set:
    """Write this target. `expired`: because an override ran out."""

    target: Target
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """Change nothing. `reason` names the kind (it changes only when the situation does), `why` is the sentence.

    `in_order`: nothing is withheld, what should be in force is.
    """

    reason: str
    why: str
    in_order: bool = False


def decide(observation: Observation, config: Config, last: Target | None) -> Set | Hold:
    """What to do now, given the target in force (`last`).

    An override in force is followed whatever the signals say, and ends at its expiry whatever they say. Without one the regime decides;
    without a usable signal nothing changes, except that an override which ended leaves the defaults behind, never itself.
    """
    wanted, now = observation.wanted, observation.now
    if wanted and wanted.refused:
        if last and last.mode != "auto" and not _over(last.expires_at, now):
            why = f"The intent at revision {wanted.revision} is not followed ({wanted.refused}): {_told(last)} stays until its end."
            return Hold("refused", why)
        wanted = None
    if wanted and wanted.intent and wanted.intent.mode != "auto" and not _over(wanted.intent.expires_at, now):
        return _override(wanted.intent, wanted.revision, observation, last)
    return _auto(wanted, observation, config, last)


def _over(expires_at: float | None, now: float) -> bool:
    return expires_at is None or expires_at <= now


def _told(target: Target) -> str:
    return f"τ {target.tau:g}, ω {target.omega:g}"


def _override(intent: Intent, revision: int, observation: Observation, last: Target | None) -> Set | Hold:
    if intent.mode == "manual" and intent.tau is not None and intent.omega is not None:
        tau, omega, what = intent.tau, intent.omega, "set"
    elif last:
        tau, omega, what = last.tau, last.omega, "froze"
    else:
        return Hold("nothing to freeze", f"{intent.operator} froze the parameters, but none were set yet: nothing changes.")
    if last and (last.mode, last.intent_revision, last.tau, last.omega) == (intent.mode, revision, tau, omega):
        return Hold("override", f"{intent.operator} {what} {_told(last)}: it stays until the override ends or is cancelled.", in_order=True)
    regime = observation.signal and observation.signal.regime
    return Set(
        Target(
            tau=tau,
            omega=omega,
            regime=regime or "unknown",
            mode=intent.mode,
            why=f"{intent.operator} {what} τ {tau:g}, ω {omega:g}: {intent.reason}",
            decided_at=observation.now,
            intent_revision=revision,
            expires_at=intent.expires_at,
        )
    )


def _auto(wanted: Wanted | None, observation: Observation, config: Config, last: Target | None) -> Set | Hold:
    ended, expired = _ended(wanted, observation.now, last)
    unfit = _unfit(observation, config, last)
    if unfit is None and observation.signal and observation.signal.regime:
        regime = observation.signal.regime
        tau, omega = REGIMES[regime]
        seen = f"TTFT P99 (EWMA) of {observation.signal.ttft_ewma_s:.3g} s is {regime}"
        if last and not ended and (last.tau, last.omega) == (tau, omega):
            return Hold("steady", f"{seen}: {_told(last)} stays.", in_order=True)
        why = f"{ended}{seen}: τ {tau:g}, ω {omega:g}."
    else:
        kind, told = unfit or ("unknown", "the regime is unknown")
        if not ended or last is None:
            return Hold(kind, f"{told[0].upper()}{told[1:]}: {_told(last) if last else 'nothing was set yet, and nothing'} stays.")
        regime = "unknown"
        tau, omega = (last.tau, last.omega) if last.mode == "auto" else REGIMES["below"]
        why = f"{ended}{told}, so τ {tau:g}, ω {omega:g} until the signals say more."
    revision = wanted.revision if wanted else None
    target = Target(tau=tau, omega=omega, regime=regime, mode="auto", why=why, decided_at=observation.now, intent_revision=revision)
    return Set(target, expired)


def _ended(wanted: Wanted | None, now: float, last: Target | None) -> tuple[str, bool]:
    """What has ended since `last`, as the start of a sentence ("" if nothing), and whether it ran out."""
    intent = wanted.intent if wanted else None
    if wanted and intent and (last is None or last.intent_revision != wanted.revision or last.mode != "auto"):
        if intent.mode == "auto":
            return f"{intent.operator} asked for auto ({intent.reason}): ", False
        applied = last and last.intent_revision == wanted.revision
        return f"The override of {intent.operator} {'has expired' if applied else 'expired before it was applied'}: ", True
    if last and last.mode != "auto":
        over = _over(last.expires_at, now)
        return f"The override {'has expired' if over else 'is gone from the bucket'}: ", over
    return "", False


def _unfit(observation: Observation, config: Config, last: Target | None) -> tuple[str, str] | None:
    """Why the signals must not be acted on: the kind, and the words for it."""
    signal = observation.signal
    if signal is None:
        return "no signals", "no signals have been heard"
    age_s = observation.now - signal.ts
    if age_s > config.stale_after_s:
        return "stale", f"the newest signals are {age_s:.0f} s old"
    if age_s < -config.ahead_s:
        return "clock", f"the signals are dated {-age_s:.0f} s ahead of this clock"
    if signal.regime not in REGIMES or signal.ttft_ewma_s is None:
        return "withheld", "the regime is not known" + (f" ({signal.held})" if signal.held else "")
    # A regime held from before is no reason to change anything, nor is it news where its parameters are in force already.
    if signal.held and (last is None or last.mode != "auto" or (last.tau, last.omega) != REGIMES.get(signal.regime or "")):
        return "withheld", f"the regime is an old one ({signal.held})"
    return None
