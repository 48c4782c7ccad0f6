"""Messages between the page, the controller and the actuators: JSON in the NATS KV bucket `poascope`.

`<deployment>.intent` is written by the page and the command line only, `.target` by the controller only,
`.ack.<replica>` by each gateway or router. `revision` is the bucket's, never in the payload.
"""

from typing import Literal

import msgspec

BUCKET = "poascope"
MIN_EXPIRY_S, MAX_EXPIRY_S = 300.0, 8 * 3600.0
Mode = Literal["auto", "manual", "freeze"]


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator wants. `tau` and `omega` are set for manual only; `expires_at` (Unix s) for manual and freeze."""

    mode: Mode
    reason: str
    operator: str
    idempotency_key: str
    expected_revision: int
    tau: float | None = None
    omega: float | None = None
    expires_at: float | None = None


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller wants the actuators to do now. `why` is one sentence for a person on call."""

    tau: float
    omega: float
    regime: str
    mode: Mode
    why: str
    decided_at: float
    intent_revision: int | None = None


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """What an actuator did with a target. `error` says why it could not; then `tau` and `omega` are what is still in force."""

    tau: float | None
    omega: float | None
    applied_at: float
    target_revision: int
    error: str | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Published on `poascope.<deployment>.decision` for what no KV write shows: expiry, refusal, hold. Collectors store it."""

    kind: Literal["expiry", "refusal", "hold"]
    at: float
    actor: str
    why: str
    mode: str | None = None
    regime: str | None = None
    tau: float | None = None
    omega: float | None = None
    revision: int | None = None


def token(deployment: str) -> str:
    """A deployment's name as one NATS subject token and KV key part."""
    return "".join(c if c.isalnum() or c in "-_" else f"={ord(c):02x}" for c in deployment)


def intent_key(deployment: str) -> str:
    return f"{token(deployment)}.intent"


def target_key(deployment: str) -> str:
    return f"{token(deployment)}.target"


def ack_key(deployment: str, replica: str) -> str:
    return f"{token(deployment)}.ack.{token(replica)}"
