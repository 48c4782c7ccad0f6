"""Regime → (τ, ω), by the paper's table, and when not to. Pure: the clock is part of the observation.

The regime, its EWMA, thresholds and hysteresis are the pulse's (`signals`); this module never recomputes them.
"""

from dataclasses import dataclass, replace

from controller.protocol import LEASE_S, REGIMES, Intent, Target
from queries.estimators.regime import LEAVE_RATIO

SWITCHES_S = 600.0  # the span in which the switches are counted


@dataclass(frozen=True, slots=True)
class Signal:
    """What the newest pulse said. `ts`: its tick (Unix s, collector's clock). `held`: why the regime is not judged anew, if it is not.

    `thresholds_s`: the smoothed TTFT P99 above which it is transition, and saturated.
    """

    ts: float
    regime: str | None
    ttft_ewma_s: float | None
    held: str | None = None
    ttft_p99_s: float | None = None
    thresholds_s: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The intent in the bucket, None when it cannot be read. `refused`: why the controller does not follow it."""

    revision: int
    intent: Intent | None
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """`armed`: an operator has allowed the controller to act on the regime by itself."""

    now: float
    signal: Signal | None
    wanted: Wanted | None
    armed: bool


@dataclass(frozen=True, slots=True)
class Config:
    """`stale_after_s`: three missed intervals of the paper's 5 s. `ahead_s`: how far a pulse's clock may run before ours.

    `min_dwell_s`, `max_switches` (within ten minutes): the limits of what the controller changes by itself.
    """

    stale_after_s: float = 15.0
    ahead_s: float = 5.0
    min_dwell_s: float = 10.0
    max_switches: int = 6
    lease_s: float = LEASE_S


@dataclass(frozen=True, slots=True)
class Set:
    """Write this target. `expired`: because an override ran out."""

    target: Target
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """Change nothing. `reason` names the kind (it changes only when the situation does), `why` is the sentence.

    `in_order`: nothing is withheld, or not for longer than the dwell. `would`: the (τ, ω) that would be set if it were armed.
    """

    reason: str
    why: str
    in_order: bool = False
    would: tuple[float, float] | None = None


def decide(observation: Observation, config: Config, last: Target | None) -> Set | Hold:
    """What to do now, given the target in force (`last`).

    An override in force is followed whatever the signals say, armed or not, and ends at its expiry whatever they say. Without one the
    regime decides, within the limits; without a usable signal, or while not armed, nothing changes, except that an override which ended
    leaves the defaults behind, never itself.
    """
    wanted, now = observation.wanted, observation.now
    if wanted and wanted.refused:
        if last and last.mode != "auto" and not _over(last.expires_at, now):
            why = f"The intent at revision {wanted.revision} is not followed ({wanted.refused}): {_told(last)} stays until its end."
            return Hold("refused", why)
        wanted = None
    if wanted and wanted.intent and wanted.intent.mode != "auto" and not _over(wanted.intent.expires_at, now):
        return _override(wanted.intent, wanted.revision, observation, config, last)
    return _auto(wanted, observation, config, last)


def switches(last: Target | None, now: float) -> tuple[float, ...]:
    """When the parameters were changed automatically in the ten minutes before `now` (Unix s)."""
    return tuple(at for at in last.switched_at if now - at < SWITCHES_S) if last else ()


def dwell_left_s(last: Target | None, now: float, config: Config) -> float:
    """Seconds until the next automatic change may come, as far as the dwell goes."""
    return max(0.0, min(last.decided_at + config.min_dwell_s - now, config.min_dwell_s)) if last else 0.0


def _over(expires_at: float | None, now: float) -> bool:
    return expires_at is None or expires_at <= now


def _told(target: Target) -> str:
    return f"τ {target.tau:g}, ω {target.omega:g}"


def _override(intent: Intent, revision: int, observation: Observation, config: Config, last: Target | None) -> Set | Hold:
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
            lease_s=config.lease_s,
            switched_at=switches(last, observation.now),
        )
    )


def _auto(wanted: Wanted | None, observation: Observation, config: Config, last: Target | None) -> Set | Hold:
    now, signal, over = observation.now, observation.signal, _ended(wanted, observation.now, last)
    revision = wanted.revision if wanted else None
    unfit = _unfit(observation, config, last)
    if unfit or signal is None or signal.regime is None:
        kind, told = unfit or ("unknown", "the regime is unknown")
        return _unchanged(Hold(kind, told), "the signals say more", over, revision, observation, config, last)
    (tau, omega), seen = REGIMES[signal.regime], _seen(signal)
    if last and not over.told and (last.tau, last.omega) == (tau, omega):
        return Hold("steady", f"{_capital(seen)}: {_told(last)} stays.", in_order=True)
    if not observation.armed:
        told = f"it is not armed ({seen}, for which it would set τ {tau:g}, ω {omega:g})"
        hold = Hold("dry run", told, would=(tau, omega))
        return _unchanged(hold, "it is armed or somebody sets others", over, revision, observation, config, last)
    switched = switches(last, now)
    if last and not over.told:
        if limited := _limited(seen, switched, config, last, now):
            return limited
        switched = (*switched, now)
    why = f"{over.told}{seen}: τ {tau:g}, ω {omega:g}." if over.told else f"{_capital(seen)}: τ {tau:g}, ω {omega:g}."
    return Set(_target(tau, omega, signal.regime, why, revision, now, config, switched), over.expired)


def _target(
    tau: float, omega: float, regime: str, why: str, revision: int | None, now: float, config: Config, switched: tuple[float, ...]
) -> Target:
    return Target(
        tau=tau,
        omega=omega,
        regime=regime,
        mode="auto",
        why=why,
        decided_at=now,
        intent_revision=revision,
        lease_s=config.lease_s,
        switched_at=switched,
    )


def _unchanged(
    hold: Hold, until: str, over: "_Ended", revision: int | None, observation: Observation, config: Config, last: Target | None
) -> Set | Hold:
    """Hold, unless an override ended: it leaves the defaults behind. `hold.why` is the middle of the sentence."""
    if last is None:
        told = over.told + hold.why if over.told else _capital(hold.why)
        return replace(hold, why=f"{told}: nothing was ever set, and nothing is now.")
    if not over.told:
        return replace(hold, why=f"{_capital(hold.why)}: {_told(last)} stays.")
    tau, omega = (last.tau, last.omega) if last.mode == "auto" else REGIMES["below"]
    why = f"{over.told}{hold.why}, so τ {tau:g}, ω {omega:g} until {until}."
    now = observation.now
    return Set(_target(tau, omega, "unknown", why, revision, now, config, switches(last, now)), over.expired)


def _limited(seen: str, switched: tuple[float, ...], config: Config, last: Target, now: float) -> Hold | None:
    """Why the parameters may not be changed automatically yet."""
    if (left_s := dwell_left_s(last, now, config)) > 0:
        since_s = config.min_dwell_s - left_s
        why = f"{_capital(seen)}, but it is {since_s:.0f} s since the last change: {_told(last)} stays for {left_s:.0f} s more."
        return Hold("dwell", why, in_order=True)
    if len(switched) < config.max_switches:
        return None
    if not config.max_switches:
        return Hold("limit", f"{_capital(seen)}, but automatic changes are set to none: {_told(last)} stays.")
    left_s = switched[-config.max_switches] + SWITCHES_S - now
    limit = f"{config.max_switches} automatic changes in ten minutes are the most allowed"
    return Hold("limit", f"{_capital(seen)}, but {limit}: {_told(last)} stays for {left_s:.0f} s more.")


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _seen(signal: Signal) -> str:
    """Which latency makes it which regime, and against what."""
    told = f"smoothed TTFT P99 of {signal.ttft_ewma_s:.3g} s is {signal.regime}"
    if signal.thresholds_s is None or signal.ttft_ewma_s is None:
        return told
    if signal.regime == "below":
        return f"{told} (transition is above {signal.thresholds_s[0]:.3g} s)"
    above_s = signal.thresholds_s[1 if signal.regime == "saturated" else 0]
    if signal.ttft_ewma_s > above_s:
        return f"{told} (above {above_s:.3g} s)"
    return f"{told} still (until under {LEAVE_RATIO * above_s:.3g} s)"


@dataclass(frozen=True, slots=True)
class _Ended:
    """What has ended since the last target, as the start of a sentence ("": nothing), and whether it ran out."""

    told: str = ""
    expired: bool = False


def _ended(wanted: Wanted | None, now: float, last: Target | None) -> _Ended:
    intent = wanted.intent if wanted else None
    if wanted and intent and (last is None or last.intent_revision != wanted.revision or last.mode != "auto"):
        if intent.mode == "auto":
            return _Ended(f"{intent.operator} asked for auto ({intent.reason}): ")
        applied = last and last.intent_revision == wanted.revision
        return _Ended(f"The override of {intent.operator} {'has expired' if applied else 'expired before it was applied'}: ", expired=True)
    if last and last.mode != "auto":
        over = _over(last.expires_at, now)
        return _Ended(f"The override {'has expired' if over else 'is gone from the bucket'}: ", expired=over)
    return _Ended()


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
