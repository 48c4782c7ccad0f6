"""Which intent counts when the bucket has been written to past its own writers."""

import msgspec

from controller.bus import HISTORY, Stored
from controller.protocol import Arming, Intent
from controller.standing import standing
from tests.controller.conftest import intent

NOW = 1_800_000_000.0


def entry(revision: int, expected: int, **changes: object) -> Stored[Intent]:
    key = f"k{revision}"
    return Stored(intent(**{"expected_revision": expected, "idempotency_key": key, "expires_at": NOW + 600} | changes), revision, NOW)


def rubbish(revision: int) -> Stored[Intent]:
    return Stored(None, revision, NOW, "cannot be read")


def test_nothing_wanted_is_nothing_refused() -> None:
    """An empty history has neither."""
    nothing: list[Stored[Intent]] = []
    assert standing(nothing).entry is None


def test_the_newest_in_turn_counts() -> None:
    """Each follows the one its operator had seen."""
    history = [entry(3, 0), entry(7, 3), entry(9, 7)]
    assert (standing(history).entry, standing(history).refused) == (history[-1], {})


def test_one_over_an_intent_that_was_not_seen_does_not_count() -> None:
    """Nor does it take away what stood before it; one that saw it is in turn again."""
    history = [entry(3, 0), entry(7, 3), entry(9, 3)]
    found = standing(history)
    assert found.entry == history[1]
    assert found.refused == {9: "expected_revision: 3 - written over revision 7, which its operator had not seen"}
    assert standing([*history, entry(11, 9)]).entry == entry(11, 9)


def test_a_copy_does_not_count_even_with_the_right_revision() -> None:
    """An idempotency key acts once."""
    history = [entry(3, 0), entry(7, 3, mode="auto", expires_at=None), entry(9, 7, idempotency_key="k3")]
    found = standing(history)
    assert found.entry == history[1]
    assert found.refused == {9: "idempotency_key: k3 - was used before (revision 3)"}


def test_rubbish_and_the_inadmissible_do_not_count() -> None:
    """They are refused oldest first, so that the trail has them in their order."""
    history = [entry(3, 0), entry(7, 3, expires_at=None), rubbish(9)]
    found = standing(history)
    assert found.entry == history[0]
    assert list(found.refused) == [7, 9]
    assert standing(history[1:2]).entry is None


def test_a_deleted_key_counts_as_nothing_wanted() -> None:
    """Whoever deletes the intent ends it."""
    deleted: Stored[Intent] = Stored(None, 7, NOW)
    found = standing([entry(3, 0), deleted])
    assert (found.entry, found.refused) == (deleted, {})
    assert standing([entry(3, 0), deleted, entry(9, 7)]).entry == entry(9, 7)


def test_what_has_left_the_history_cannot_be_asked_for() -> None:
    """The oldest of a full history follows something that is no longer there."""
    history = [entry(n, n - 1) for n in range(5, 5 + HISTORY)]
    assert standing(history).entry == history[-1]
    late = [history[0], *(rubbish(n) for n in range(6, 5 + HISTORY))]
    assert standing(late).entry == history[0]
    assert standing(late[:-1]).entry is None


def test_armings_are_judged_alike() -> None:
    """A copy of an old arming does not arm again."""
    arming = Arming(armed=True, reason="r", operator="carol", idempotency_key="a", expected_revision=0)
    off = msgspec.structs.replace(arming, armed=False, idempotency_key="b", expected_revision=2)
    found = standing([Stored(arming, 2, NOW), Stored(off, 4, NOW), Stored(arming, 6, NOW)])
    assert found.entry is not None
    assert found.entry.value == off
    assert list(found.refused) == [6]
