"""Messages between the page, the controller and the actuators: JSON in the NATS KV bucket `poascope`.

`<deployment>.intent` is written by the page and the command line only, `.target` by the controller only,
`.ack.<replica>` by each gateway or router. `revision` is the bucket's, never in the payload.

The bucket repeats every value that it has stored on `poascope-kv.<key>`, with its revision in the header `Nats-Sequence`.
A plain subscription to `$KV.poascope.>` also sees writes that the bucket then refuses (two operators in the same instant).
"""

from collections.abc import Mapping
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

    `expires_at`: when an override ends; an actuator that hears nothing newer by then goes back to the defaults by itself.
    """

    tau: float
    omega: float
    regime: str
    mode: Mode
    why: str
    decided_at: Moment
    intent_revision: int | None = None
    expires_at: Moment | None = None


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """What an actuator did with a target. `error` says why it could not; then `tau` and `omega` are what is still in force.

    `target_revision` 0: there is no target yet, this is what was in force when the actuator started.
    """

    tau: float | None
    omega: float | None
    applied_at: Moment
    target_revision: int
    error: str | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Published on `poascope.<deployment>.decision` for what no KV write shows: expiry, refusal, hold. Collectors store it."""

    kind: Literal["expiry", "refusal", "hold"]
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


def complaint(intent: Intent, written_at: float, slack_s: float = 1.0) -> str | None:
    """Why this intent, written at `written_at` (Unix s), is not admissible; None when it is. `slack_s`: how far clocks may differ."""
    for name in ("reason", "operator", "idempotency_key"):
        text = getattr(intent, name)
        if not text.strip():
            return f"{name}: empty - say {'why' if name == 'reason' else 'which'}"
        if len(text) > MAX_TEXT:
            return f"{name}: {len(text)} characters - at most {MAX_TEXT}"
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


def ack_key(deployment: str, replica: str) -> str:
    return f"{token(deployment)}.ack.{token(replica)}"


def signals_subject(deployment: str) -> str:
    return f"poascope.{token(deployment)}.signals"


def decision_subject(deployment: str) -> str:
    return f"poascope.{token(deployment)}.decision"


def incident_subject(deployment: str) -> str:
    return f"poascope.{token(deployment)}.incident"
