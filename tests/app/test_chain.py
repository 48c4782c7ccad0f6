import math

import msgspec

from app.chain import chain, observed, parameters, wanted
from controller.bus import State, Stored
from controller.protocol import Ack, Intent, Target

NOW = 1_000_000.0
ROW = {"at": NOW - 1, "tau": 0.0, "omega": 1.0}
INTENT = Intent(
    mode="manual", tau=0.7, omega=1.0, reason="trial", operator="ann", idempotency_key="k", expected_revision=0, expires_at=NOW + 600
)
TARGET = Target(tau=0.7, omega=1.0, regime="below", mode="manual", why="ann wants it", decided_at=NOW)


def state(ack: Ack | None = None) -> State:
    acks = {"gateway": Stored(ack, 9, NOW)} if ack else {}
    return State("dynamo", Stored(INTENT, 4, NOW), Stored(TARGET, 8, NOW), acks, controller_at=NOW)


def test_wanted_acknowledged_and_observed_are_three_things() -> None:
    """Each link shows its own truth: what is routed now is not what was asked for."""
    found = chain(state(Ack(tau=0.7, omega=1.0, applied_at=NOW, target_revision=8)), ROW, NOW)
    assert [(link.name, link.text, link.good) for link in found.links] == [
        ("Wanted", "transition τ 0.7 ω 1", True),
        ("Decided", "τ 0.7 ω 1", True),
        ("Acknowledged", "τ 0.7 ω 1", True),
        ("Observed", "τ 0 ω 1", True),
    ]
    assert (found.revision, found.reason, found.expires_at) == (4, "trial", NOW + 600)


def test_an_acknowledgement_of_an_older_target_is_not_one() -> None:
    """A gateway that applied something older lags, and one that failed says how."""
    lagging = chain(state(Ack(tau=0.0, omega=1.0, applied_at=NOW, target_revision=7)), ROW, NOW).links[2]
    assert (lagging.good, lagging.by) == (False, "gateway, not yet the newest")
    failed = chain(state(Ack(tau=0.0, omega=1.0, applied_at=NOW, target_revision=8, error="no such frontend")), ROW, NOW).links[2]
    assert (failed.good, failed.text) == (False, "failed: no such frontend")


def test_an_expired_intent_wants_nothing() -> None:
    """After its end an override is shown as over, whatever the bucket still holds."""
    assert wanted(INTENT, NOW + 601) == "auto"
    assert not chain(state(), ROW, NOW + 601).running


def test_what_is_not_known_is_no_number() -> None:
    """Parameters that a row of signals lacks are unknown, in whatever shape it says so."""
    assert {parameters(*pair) for pair in ((None, 1.0), (math.nan, math.nan), (0.7, math.nan))} == {"unknown"}
    assert parameters(0.7, 1) == "τ 0.7 ω 1"


def test_what_is_refused_is_not_wanted() -> None:
    """An intent that nobody's page would send, or that cannot be read, is no override that runs: the page says why it is not followed."""
    beyond = Stored(msgspec.structs.replace(INTENT, tau=1e308), 5, NOW)
    for stored in (beyond, Stored(None, 5, NOW, "revision 5 cannot be read: 500000 bytes, at most 32768")):
        found = chain(State("dynamo", stored, Stored(TARGET, 8, NOW), {}, controller_at=NOW), ROW, NOW)
        assert found.links[0].text.startswith("not followed: ") and not found.links[0].good
        assert (found.running, found.revision) == ("", 5)


def test_without_nats_only_the_observed_is_known() -> None:
    """No state is said to be unknown, never to be auto."""
    found = chain(None, ROW, NOW, "NATS: down")
    assert [link.text for link in found.links] == ["unknown", "unknown", "unknown", "τ 0 ω 1"]
    assert found.problem == "NATS: down"


def test_the_observed_carries_the_time_of_a_request() -> None:
    """Idle, what was observed is as old as the last request, however fresh the row; without one known there is no time."""
    idle = {**ROW, "arrivals_per_s": 0.0}
    assert (observed(idle, NOW - 300).by, observed(idle, NOW - 300).at) == ("as of the last request", NOW - 300)
    assert (observed(idle).by, observed(idle).at) == ("no request lately", None)
    busy = observed({**ROW, "arrivals_per_s": 2.0}, NOW - 1)
    assert (busy.by, busy.at) == ("in the signals", NOW - 1)


def test_an_acknowledgement_that_was_taken_away_is_none() -> None:
    """A router that is gone for good leaves the chain when its key is deleted; without another nobody is heard."""
    deleted = State("dynamo", Stored(INTENT, 4, NOW), Stored(TARGET, 8, NOW), {"router-1": Stored(None, 10, NOW)}, controller_at=NOW)
    assert chain(deleted, ROW, NOW).links[2].text == "no gateway or router heard"
