"""Messages between the page, the controller and the actuators: JSON in the NATS KV bucket `poascope`.

`<deployment>.intent` and `.armed` are written by the page and the command line only, `.target` and `.lease` by the controller only,
`.ack.<replica>` by each gateway or router. `revision` is the bucket's, never in the payload.

The bucket repeats every value that it has stored on `poascope-kv.<key>`, with its revision in the header `Nats-Sequence`.
A plain subscription to `$KV.poascope.>` also sees writes that the bucket then refuses (two operators in the same instant).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import unquote_to_bytes

import msgspec

BUCKET = "poascope"
STORED = "poascope-kv"
REVISION_HEADER = "Nats-Sequence"
# A running controller answers a request here with the time of its last turn (JSON Unix s); without one the server says so at once.
PING = "poascope-control.ping"
MIN_EXPIRY_S, MAX_EXPIRY_S = 300.0, 8 * 3600.0
# τ divides costs counted in KV blocks and ω multiplies them: past 10 the choice is even, or blind to load; more changes nothing.
MAX_TAU = MAX_OMEGA = 10.0
MAX_TEXT = 500
# How long after its end an actuator leaves an override to the controller, which ends it in the same second.
EXPIRY_GRACE_S = 2.0
LEASE_S = 120.0
Mode = Literal["auto", "manual", "freeze"]
# Unix s that a calendar can show: whoever may write to the bucket must not break every page that reads it.
Moment = Annotated[float, msgspec.Meta(ge=0, lt=2.5e11)]

# (τ, ω) of each regime, from the paper's controller. "below" is also what Dynamo does when nothing is set.
REGIMES: Mapping[str, tuple[float, float]] = {"below": (0.0, 1.0), "transition": (0.7, 1.0), "saturated": (0.8, 0.1)}


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator wants. `tau` and `omega` count for manual only; `expires_at` (Unix s) for manual and freeze.

    `expected_revision` is the revision of the intent the operator was looking at, 0 when there was none.
    """

    mode: Mode
    reason: str
    operator: str
    idempotency_key: str
    expected_revision: int
    tau: float | None = None
    omega: float | None = None
    expires_at: Moment | None = None


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller wants the actuators to do now. `why` is one sentence for a person on call.

    `expires_at`: when an override ends; an actuator that hears nothing newer by then goes back to safe parameters by itself.
    `lease_s`: for how long after the controller's last renewal (`Lease`) it may stay in force. `switched_at`: when the parameters
    were changed automatically in the last ten minutes, this change included; the limit of switches survives a restart in it.
    """

    tau: float
    omega: float
    regime: str
    mode: Mode
    why: str
    decided_at: Moment
    intent_revision: int | None = None
    expires_at: Moment | None = None
    lease_s: Annotated[float, msgspec.Meta(ge=5, le=86400)] = LEASE_S
    switched_at: tuple[Moment, ...] = ()


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The controller is alive and stands behind the target at this revision. Written every few seconds, beside the target and not into it:
    the target's revision says that something changed, and is what acknowledgements name."""

    target_revision: int
    renewed_at: Moment


class Arming(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the controller may act on the regime by itself. A deployment without one has never been armed: it decides and does not act.

    An override is a person's decision and is carried out either way. `expected_revision` is that of the arming its operator saw.
    """

    armed: bool
    reason: str
    operator: str
    idempotency_key: str
    expected_revision: int


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """An override that is in force: who, until when (Unix s), with `left_s` to go at `Loop.at`."""

    mode: Mode
    operator: str
    reason: str
    revision: int
    expires_at: Moment
    left_s: float


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """Published on `poascope.<deployment>.loop` at each step: what the controller sees, and what it does or would do now.

    Times are Unix s of the controller's clock. None: not known. `thresholds_s`: (transition above, saturated above) for the smoothed TTFT
    P99, None while they are being learnt. `held`: why the pulse did not judge the regime anew.
    `action`: `set` (a target was just written), `hold` (see `reason` and `why`), `dry run` (it would set `tau`, `omega`, but is not armed).
    `tau`, `omega`: what is, or in a dry run would be, in force; None when nothing was ever set.
    `override.operator` is empty where the target's intent is no longer the one in the bucket.
    `dwell_left_s`, `switches_left`: until the next automatic change may come, and how many more may within ten minutes.
    """

    at: Moment
    next_at: Moment
    armed: bool
    mode: Mode
    action: Literal["set", "hold", "dry run"]
    reason: str
    why: str
    tau: float | None
    omega: float | None
    regime: str | None
    signal_at: Moment | None
    signal_age_s: float | None
    ttft_p99_s: float | None
    ttft_ewma_s: float | None
    thresholds_s: tuple[float, float] | None
    held: str | None
    dwell_left_s: float
    switches_left: int
    switches_max: int
    target_revision: int
    arming_revision: int
    lease_s: float
    override: Override | None = None


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """What an actuator did with a target. `error` says why it could not; then `tau` and `omega` are what is still in force.

    `target_revision` 0: there is no target yet, this is what was in force when the actuator started. `mapping`: what ω is called there.
    """

    tau: float | None
    omega: float | None
    applied_at: Moment
    target_revision: int
    error: str | None = None
    mapping: str | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Published on `poascope.<deployment>.decision` for what no KV write shows: expiry, refusal, hold, and what a dry run would do.
    Collectors store it."""

    kind: Literal["expiry", "refusal", "hold", "dry run"]
    at: Moment
    actor: str
    why: str
    mode: str | None = None
    regime: str | None = None
    tau: float | None = None
    omega: float | None = None
    revision: int | None = None


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """Published on `poascope.<deployment>.incident`: somebody marked a span of time (Unix s), or took a mark back (no title).

    The `id` of an excursion that the regime found (`saturated-<Unix s>`) names that one.
    """

    id: str
    since: Moment
    until: Moment
    author: str
    title: str = ""
    notes: str = ""


@dataclass(frozen=True, slots=True)
class Safe:
    """What an actuator goes back to when nobody stands behind the target any more (settings `safe_tau`, `safe_omega`)."""

    tau: float = 0.0
    omega: float = 1.0


@dataclass(frozen=True, slots=True)
class Renewal:
    """The controller's newest sign of life, dated by the actuator's clock: two machines' clocks need not agree for a lease to last.

    An actuator that has just started cannot know how old the first one is; there the bucket's own time counts.
    """

    revision: int = 0
    at: float | None = None

    def hear(self, revision: int, stored_at: float | None, now: float) -> "Renewal":
        """With this revision (the greater of those of the target's and the lease's key, 0: neither is there) seen now, as stored at
        `stored_at`. The same revision again is no sign of life."""
        if revision in (0, self.revision):
            return self
        first = self.revision == 0 and stored_at is not None
        return Renewal(revision, min(now, stored_at) if first and stored_at is not None else now)


@dataclass(frozen=True, slots=True)
class InForce:
    """Parameters an actuator must apply now. `fallback` is None when they are the target's, else why they are the safe ones.

    `until`: when this answer changes by itself if nothing newer is heard (Unix s); None: it does not.
    """

    tau: float
    omega: float
    fallback: str | None
    until: float | None


def in_force(target: Target, renewed_at: float | None, now: float, safe: Safe = Safe()) -> InForce:
    """The target's parameters as long as its override has not ended and its lease has not run out, then the safe ones.

    `renewed_at`: `Renewal.at`; all times in Unix s of the actuator's clock. Without a renewal the lease runs from the decision.
    """
    renewed = target.decided_at if renewed_at is None else renewed_at
    over = None if target.expires_at is None else target.expires_at + EXPIRY_GRACE_S
    if over is not None and now >= over:
        why = f"the override ended {now - over + EXPIRY_GRACE_S:.0f} s ago and the controller sent nothing newer"
        return InForce(safe.tau, safe.omega, f"{why}: back to safe τ {safe.tau:g}, ω {safe.omega:g}", None)
    ends = renewed + target.lease_s
    if now >= ends:
        why = f"the controller has not renewed the target for {now - renewed:.0f} s (lease {target.lease_s:g} s)"
        return InForce(safe.tau, safe.omega, f"{why}: back to safe τ {safe.tau:g}, ω {safe.omega:g}", None)
    return InForce(target.tau, target.omega, None, ends if over is None else min(ends, over))


def complaint(intent: Intent | Arming, written_at: float, slack_s: float = 1.0) -> str | None:
    """Why this, written at `written_at` (Unix s), is not admissible; None when it is. `slack_s`: how far clocks may differ."""
    for name in ("reason", "operator", "idempotency_key"):
        text = getattr(intent, name)
        if not text.strip():
            return f"{name}: empty - say {'why' if name == 'reason' else 'which'}"
        if len(text) > MAX_TEXT:
            return f"{name}: {len(text)} characters - at most {MAX_TEXT}"
    if isinstance(intent, Arming):
        return None
    if intent.mode == "manual":
        for name, high in (("tau", MAX_TAU), ("omega", MAX_OMEGA)):
            value = getattr(intent, name)
            if value is None or not 0 <= value <= high:
                return f"{name}: {value} - manual needs a number from 0 to {high:g}"
    if intent.mode != "auto":
        if intent.expires_at is None:
            return f"expires_at: missing - {intent.mode} must end by itself"
        ahead_s = intent.expires_at - written_at
        if not MIN_EXPIRY_S - slack_s <= ahead_s <= MAX_EXPIRY_S + slack_s:
            return (
                f"expires_at: in {ahead_s / 60:.1f} min - must be within {MIN_EXPIRY_S / 60:g} min and {MAX_EXPIRY_S / 3600:g} h from now"
            )
    return None


def token(deployment: str) -> str:
    """A deployment's name as one NATS subject token and KV key part: other bytes than A-Z a-z 0-9 - _ become =xx."""
    return "".join(chr(b) if b < 128 and (chr(b).isalnum() or chr(b) in "-_") else f"={b:02x}" for b in deployment.encode())


def name(part: str) -> str:
    """The deployment or replica that `token` made this key part from."""
    return unquote_to_bytes(part.replace("=", "%")).decode(errors="replace")


def intent_key(deployment: str) -> str:
    return f"{token(deployment)}.intent"


def target_key(deployment: str) -> str:
    return f"{token(deployment)}.target"


def lease_key(deployment: str) -> str:
    return f"{token(deployment)}.lease"


def armed_key(deployment: str) -> str:
    return f"{token(deployment)}.armed"


def ack_key(deployment: str, replica: str) -> str:
    return f"{token(deployment)}.ack.{token(replica)}"


def signals_subject(deployment: str) -> str:
    return f"poascope.{token(deployment)}.signals"


def decision_subject(deployment: str) -> str:
    return f"poascope.{token(deployment)}.decision"


def loop_subject(deployment: str) -> str:
    return f"poascope.{token(deployment)}.loop"


def incident_subject(deployment: str) -> str:
    return f"poascope.{token(deployment)}.incident"
