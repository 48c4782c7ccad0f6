"""Which intent counts: the newest in the bucket that came in its turn. Pure.

Whoever has the right to write to the bucket can write past our own writers: a copy of an older intent, one over an intent that its
operator had not seen, or rubbish. None of these acts, and none takes away what stood before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from controller.bus import HISTORY, Stored
from controller.protocol import Arming, Intent, complaint

CLOCK_SLACK_S = 60.0  # between an operator's machine and the NATS server
Asked = TypeVar("Asked", Intent, Arming)


@dataclass(frozen=True, slots=True)
class Standing(Generic[Asked]):
    """`entry`: what counts, None when nothing does. `refused`: why each newer one does not, by revision, oldest first."""

    entry: Stored[Asked] | None
    refused: dict[int, str]


def standing(history: Sequence[Stored[Asked]]) -> Standing[Asked]:
    """From all values that the bucket still has of a key, oldest first. A deleted key counts: it has no value."""
    refused: dict[int, str] = {}
    for n in range(len(history) - 1, -1, -1):
        entry = history[n]
        why = entry.problem or (entry.value and (complaint(entry.value, entry.at or 0.0, CLOCK_SLACK_S) or _out_of_turn(history, n)))
        if not why:
            return Standing(entry, dict(reversed(refused.items())))
        refused[entry.revision] = why
    return Standing(None, dict(reversed(refused.items())))


def _out_of_turn(history: Sequence[Stored[Asked]], n: int) -> str | None:
    asked, before = history[n].value, history[:n]
    if asked is None or (not before and len(history) >= HISTORY):
        return None  # what it followed has left the bucket's history
    previous = before[-1].revision if before else 0
    if asked.expected_revision != previous:
        return f"expected_revision: {asked.expected_revision} - written over revision {previous}, which its operator had not seen"
    twin = next((entry for entry in before if entry.value and entry.value.idempotency_key == asked.idempotency_key), None)
    return f"idempotency_key: {asked.idempotency_key} - was used before (revision {twin.revision})" if twin else None
