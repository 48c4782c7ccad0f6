"""Rows of `decisions` from what operators, the controller and the actuators said on the control bucket."""

import math
from typing import Any

from collectors.wire import Control, Deleted

_TEXT = {
    "intent": {"actor": "operator", "mode": "mode", "why": "reason"},
    "target": {"mode": "mode", "regime": "regime", "why": "why"},
    "ack": {"error": "error"},
    "armed": {"actor": "operator", "why": "reason"},
    "decision": {"actor": "actor", "mode": "mode", "regime": "regime", "why": "why"},
}
# The revision that a message refers to; its own is the bucket's and not in a core message.
_REVISION = {
    "intent": "expected_revision",
    "target": "intent_revision",
    "ack": "target_revision",
    "armed": "expected_revision",
    "decision": "revision",
}
_EPOCH_LIMIT = 253_402_300_800.0
_LATEST = 1e10  # Unix s: the year 2286; no page opens a later span
MAX_DEPLOYMENTS = 1000


def _text(value: object) -> str | None:
    return None if value is None else str(value)[:10_000]


def _number(value: object, low: float = -math.inf, high: float = math.inf) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if low <= number <= high and math.isfinite(number) else None


def incident_row(at: float, deployment: str, event: Control | Deleted) -> dict[str, Any] | None:
    """A row of `incidents`; None when it does not say which incident, or when that was."""
    body = {} if isinstance(event, Deleted) else event.body
    since, until, name = _number(body.get("since"), 0, _LATEST), _number(body.get("until"), 0, _LATEST), _text(body.get("id"))
    if not name or since is None or until is None or until <= since:
        return None
    said = {key: _text(body.get(key)) or None for key in ("title", "notes", "author")}
    return {"marked_at": at, "deployment": deployment, "id": name, "from": since, "to": until, **said}


class Decisions:
    """One row a message; `from_tau`, `from_omega`: the target that was in force before it."""

    def __init__(self) -> None:
        self._targets: dict[str, tuple[float | None, float | None]] = {}
        self.modes: dict[str, str] = {}

    def row(self, at: float, deployment: str, event: Control | Deleted) -> dict[str, Any]:
        before = self._targets.get(deployment, (None, None))
        row: dict[str, Any] = {"ts": at, "deployment": deployment, "replica": event.replica}
        row |= {"kind": event.kind, "from_tau": before[0], "from_omega": before[1]}
        if isinstance(event, Deleted):
            return row | {"why": "key deleted"}
        body = event.body
        row |= {column: _text(body.get(name)) for column, name in _TEXT[event.kind].items()}
        row |= {"tau": _number(body.get("tau")), "omega": _number(body.get("omega"))}
        row["expires_at"] = _number(body.get("expires_at"), 0, _EPOCH_LIMIT)
        revision = body.get(_REVISION[event.kind])
        row["revision"] = revision if isinstance(revision, int) and not isinstance(revision, bool) and 0 <= revision < 2**64 else None
        if event.kind == "decision":
            row["kind"] = _text(body.get("kind")) or "decision"
        if event.kind == "armed":
            row["kind"] = "armed" if body.get("armed") is True else "disarmed"
        if event.kind == "target":
            row["actor"] = "controller"
            self._targets.pop(deployment, None)
            self._targets[deployment] = (row["tau"], row["omega"])
            if len(self._targets) > MAX_DEPLOYMENTS:
                oldest = next(iter(self._targets))
                del self._targets[oldest]
                self.modes.pop(oldest, None)
            if row["mode"]:
                self.modes[deployment] = row["mode"]
        if event.kind == "ack":
            row["actor"] = event.replica
        return row
