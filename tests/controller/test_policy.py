"""What the policy may do, and what it may never do."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.capture import Reader
from collectors.core import Core
from collectors.importer import feed
from controller.policy import Config, Hold, Observation, Set, Signal, Wanted, decide
from controller.protocol import REGIMES, Intent, Target
from poascope.settings import Settings
from tests.controller.conftest import intent

NOW = 1_800_000_000.0
CONFIG = Config()


def signal(regime: str | None = "below", age_s: float = 1.0, ewma: float | None = 0.2, held: str | None = None) -> Signal:
    return Signal(NOW - age_s, regime, ewma, held)


def target(**changes: object) -> Target:
    return msgspec.structs.replace(
        Target(tau=0.0, omega=1.0, regime="below", mode="auto", why="so", decided_at=NOW - 60, intent_revision=3), **changes
    )


def wanted(revision: int = 4, **changes: object) -> Wanted:
    return Wanted(revision, intent(**{"expires_at": NOW + 600} | changes))


def see(signal: Signal | None, wanted: Wanted | None = None, armed: bool = True) -> Observation:
    return Observation(NOW, signal, wanted, armed)


@pytest.mark.parametrize(("regime", "parameters"), [("below", (0.0, 1.0)), ("transition", (0.7, 1.0)), ("saturated", (0.8, 0.1))])
def test_each_regime_has_the_papers_parameters(regime: str, parameters: tuple[float, float]) -> None:
    """Without an override the regime alone decides τ and ω, and the sentence says which latency made it so."""
    decided = decide(see(signal(regime, ewma=2.5)), CONFIG, None)
    assert isinstance(decided, Set)
    assert (decided.target.tau, decided.target.omega) == parameters == REGIMES[regime]
    assert (decided.target.regime, decided.target.mode, decided.expired) == (regime, "auto", False)
    assert decided.target.why == f"Smoothed TTFT P99 of 2.5 s is {regime}: τ {parameters[0]:g}, ω {parameters[1]:g}."


@pytest.mark.parametrize(
    ("heard", "reason", "words"),
    [
        (None, "no signals", "No signals have been heard"),
        (signal(age_s=16), "stale", "The newest signals are 16 s old"),
        (signal(age_s=-6), "clock", "The signals are dated 6 s ahead of this clock"),
        (signal("unknown", held="no events for 20 s"), "withheld", "The regime is not known (no events for 20 s)"),
        (signal("transition", held="no requests"), "withheld", "The regime is an old one (no requests)"),
        (signal(None), "withheld", "The regime is not known"),
        (signal(ewma=None), "withheld", "The regime is not known"),
    ],
)
def test_a_signal_that_must_not_be_trusted_holds_and_says_why(heard: Signal | None, reason: str, words: str) -> None:
    """No, old, future or withheld signals change nothing."""
    decided = decide(see(heard), CONFIG, target())
    assert decided == Hold(reason, f"{words}: τ 0, ω 1 stays.")
    assert decide(see(heard), CONFIG, None) == Hold(reason, f"{words}: nothing was ever set, and nothing is now.")


def test_what_is_in_force_already_is_not_written_again() -> None:
    """The same regime is a hold in order, whatever its latency."""
    decided = decide(see(signal("below")), CONFIG, target())
    assert isinstance(decided, Hold)
    assert decided.in_order


def test_a_pause_in_traffic_is_no_news() -> None:
    """A regime held from before, whose parameters are in force, is in order: a quiet minute does not fill the audit trail."""
    decided = decide(see(signal("below", held="no requests")), CONFIG, target())
    assert isinstance(decided, Hold)
    assert decided.in_order


def test_manual_is_what_the_operator_asked_for() -> None:
    """A manual intent's numbers are set whatever the signals say, in the operator's name, until its end."""
    for heard in (None, signal("saturated"), signal(age_s=100)):
        decided = decide(see(heard, wanted(tau=0.3, omega=0.7)), CONFIG, target())
        assert isinstance(decided, Set)
        got = decided.target
        assert (got.tau, got.omega, got.mode, got.intent_revision, got.expires_at) == (0.3, 0.7, "manual", 4, NOW + 600)
        assert got.why == "alice set τ 0.3, ω 0.7: queue is growing"


def test_freeze_without_anything_in_force_changes_nothing() -> None:
    """There is nothing to keep before the first target."""
    decided = decide(see(signal("saturated"), wanted(mode="freeze")), CONFIG, None)
    assert isinstance(decided, Hold)
    assert decided.reason == "nothing to freeze"


def test_an_expired_override_leaves_the_defaults_when_the_signals_are_stale() -> None:
    """Nobody can say what is right, so it is what Dynamo does by itself, not what the operator once wanted."""
    over = target(mode="manual", tau=0.8, omega=0.1, intent_revision=4, expires_at=NOW)
    decided = decide(see(signal(age_s=99), wanted(tau=0.8, omega=0.1, expires_at=NOW)), CONFIG, over)
    assert isinstance(decided, Set)
    assert (decided.target.tau, decided.target.omega, decided.target.regime, decided.expired) == (0.0, 1.0, "unknown", True)
    assert decided.target.why.startswith("The override of alice has expired: the newest signals are 99 s old")


def test_cancelling_an_override_is_at_once_and_in_the_operators_name() -> None:
    """An auto intent ends a manual one before its time, with its reason, and is no expiry."""
    over = target(mode="manual", tau=0.8, omega=0.1, expires_at=NOW + 600)
    decided = decide(see(signal("transition"), wanted(mode="auto", operator="bob", reason="over", expires_at=None)), CONFIG, over)
    assert isinstance(decided, Set)
    assert (decided.target.tau, decided.target.omega, decided.expired) == (0.7, 1.0, False)
    assert decided.target.why.startswith("bob asked for auto (over): ")


def test_an_intent_that_expired_before_it_was_applied_is_never_applied() -> None:
    """After an outage longer than the override only its end is recorded."""
    decided = decide(see(signal("below"), wanted(tau=0.8, omega=0.1, expires_at=NOW - 1)), CONFIG, target())
    assert isinstance(decided, Set)
    assert (decided.target.tau, decided.target.omega, decided.target.mode, decided.expired) == (0.0, 1.0, "auto", True)
    assert "expired before it was applied" in decided.target.why


def test_an_inadmissible_intent_is_not_followed_but_ends_nothing_early() -> None:
    """Rubbish in the bucket neither acts nor cancels the override in force; that still ends in time."""
    rubbish = Wanted(9, None, "revision 9 cannot be read")
    over = target(mode="manual", tau=0.8, omega=0.1, expires_at=NOW + 1)
    held = decide(see(signal("below"), rubbish), CONFIG, over)
    assert isinstance(held, Hold)
    assert held.reason == "refused"
    ended = decide(see(signal("below"), rubbish), CONFIG, msgspec.structs.replace(over, expires_at=NOW))
    assert isinstance(ended, Set)
    assert (ended.target.mode, ended.target.tau, ended.expired) == ("auto", 0.0, True)


numbers = st.floats(0, 10, allow_nan=False)
seconds = st.floats(-1e4, 1e4, allow_nan=False)
signals = st.none() | st.builds(
    lambda age_s, regime, ewma, held: signal(regime, age_s, ewma, held),
    st.floats(-30, 30),
    st.sampled_from([None, "unknown", "below", "transition", "saturated"]),
    st.none() | numbers,
    st.none() | st.just("no requests"),
)
intents = st.builds(
    lambda mode, tau, omega, end: intent(
        mode=mode,
        tau=tau if mode == "manual" else None,
        omega=omega if mode == "manual" else None,
        expires_at=None if mode == "auto" else NOW + end,
    ),
    st.sampled_from(["auto", "manual", "freeze"]),
    numbers,
    numbers,
    seconds,
)
wants = st.none() | st.builds(Wanted, st.integers(1, 6), st.none() | intents, st.none() | st.just("rubbish")).filter(
    lambda w: w.intent or w.refused
)
lasts = st.none() | st.builds(
    lambda mode, tau, omega, revision, end: target(
        mode=mode, tau=tau, omega=omega, intent_revision=revision, expires_at=None if mode == "auto" else NOW + end
    ),
    st.sampled_from(["auto", "manual", "freeze"]),
    numbers,
    numbers,
    st.none() | st.integers(1, 6),
    seconds,
)


def in_force(wanted: Wanted | None) -> Intent | None:
    """The override that counts now, if any."""
    found = wanted.intent if wanted and not wanted.refused else None
    return found if found and found.expires_at is not None and found.expires_at > NOW else None


def usable(heard: Signal | None) -> bool:
    return bool(heard and heard.regime in REGIMES and heard.ttft_ewma_s is not None and heard.held is None and -5 <= NOW - heard.ts <= 15)


@given(signals, wants, lasts)
def test_nothing_is_done_on_signals_that_are_not_fit(heard: Signal | None, wanted: Wanted | None, last: Target | None) -> None:
    """Without a usable signal and an override, τ and ω stay, or are the defaults where an override ended."""
    if usable(heard) or in_force(wanted):
        return
    decided = decide(see(heard, wanted), CONFIG, last)
    if isinstance(decided, Set):
        assert last is not None
        stays = (last.tau, last.omega) if last.mode == "auto" else (0.0, 1.0)
        assert (decided.target.tau, decided.target.omega, decided.target.mode) == (*stays, "auto")


@given(signals, st.integers(1, 6), st.floats(0.001, 1e4), lasts)
def test_freeze_never_changes_a_parameter(heard: Signal | None, revision: int, end: float, last: Target | None) -> None:
    """Whatever the regime does, a freeze in force keeps τ and ω."""
    decided = decide(see(heard, Wanted(revision, intent(mode="freeze", expires_at=NOW + end))), CONFIG, last)
    if isinstance(decided, Set):
        assert last is not None
        assert (decided.target.tau, decided.target.omega, decided.target.mode) == (last.tau, last.omega, "freeze")


@given(signals, st.floats(-1e4, 0), lasts, st.sampled_from(["manual", "freeze"]))
def test_expiry_always_reverts(heard: Signal | None, end: float, last: Target | None, mode: str) -> None:
    """After one decision past its end, no override is in force, with or without signals."""
    decided = decide(see(heard, Wanted(4, intent(mode=mode, tau=0.3, omega=0.3, expires_at=NOW + end))), CONFIG, last)
    after = decided.target if isinstance(decided, Set) else last
    assert after is None or after.mode == "auto"
    if last and last.mode != "auto":
        assert isinstance(decided, Set)
        assert (decided.target.tau, decided.target.omega) in REGIMES.values()


@given(signals, wants, lasts)
def test_deciding_twice_writes_once(heard: Signal | None, wanted: Wanted | None, last: Target | None) -> None:
    """A decision is settled by its own target: the same observation again holds. Each one says why."""
    decided = decide(see(heard, wanted), CONFIG, last)
    if isinstance(decided, Set):
        assert decided.target.why
        assert isinstance(decide(see(heard, wanted), CONFIG, decided.target), Hold)
    else:
        assert decided.why
        assert decided.reason


@given(signals, wants, lasts)
def test_only_an_override_in_force_makes_an_override(heard: Signal | None, wanted: Wanted | None, last: Target | None) -> None:
    """A manual or frozen target always has the intent that asked for it, and its end."""
    decided = decide(see(heard, wanted), CONFIG, last)
    if isinstance(decided, Set) and decided.target.mode != "auto":
        asked = in_force(wanted)
        assert asked is not None
        assert (decided.target.mode, decided.target.expires_at) == (asked.mode, asked.expires_at)


def test_the_limits_of_age_are_settings_of_the_policy() -> None:
    """Staleness is counted from the pulse's own tick against the controller's clock."""
    assert isinstance(decide(see(signal(age_s=16)), replace(CONFIG, stale_after_s=20.0), None), Set)


@pytest.mark.parametrize(("regime", "would"), list(REGIMES.items()))
def test_unarmed_it_says_what_it_would_do_and_does_nothing(regime: str, would: tuple[float, float]) -> None:
    """A deployment that was never armed is only watched: with or without something in force, nothing is written."""
    for last in (None, target(tau=0.3, omega=0.3)):
        decided = decide(see(signal(regime, ewma=2.5), armed=False), CONFIG, last)
        assert isinstance(decided, Hold)
        assert (decided.reason, decided.would, decided.in_order) == ("dry run", would, False)
        assert (
            f"It is not armed (smoothed TTFT P99 of 2.5 s is {regime}, for which it would set τ {would[0]:g}, ω {would[1]:g})"
            in decided.why
        )


def test_unarmed_an_override_acts_and_its_end_leaves_the_defaults() -> None:
    """What a person wants is carried out; after it comes what Dynamo does by itself, not what the regime would have."""
    begun = decide(see(signal("saturated"), wanted(tau=0.3, omega=0.7), armed=False), CONFIG, None)
    assert isinstance(begun, Set)
    assert (begun.target.tau, begun.target.mode) == (0.3, "manual")
    over = wanted(tau=0.3, omega=0.7, expires_at=NOW)
    cancelled = wanted(5, mode="auto", operator="bob", reason="over", expires_at=None)
    for asked, expired in ((over, True), (cancelled, False)):
        ended = decide(see(signal("saturated"), asked, armed=False), CONFIG, begun.target)
        assert isinstance(ended, Set)
        assert (ended.target.tau, ended.target.omega, ended.target.mode, ended.expired) == (0.0, 1.0, "auto", expired)
        assert "it is not armed" in ended.target.why
        assert "τ 0, ω 1 until it is armed or somebody sets others" in ended.target.why


def test_unarmed_an_expired_override_that_was_never_applied_writes_nothing() -> None:
    """Where nothing was ever set, the end of what never began is no reason to set something."""
    decided = decide(see(signal("saturated"), wanted(expires_at=NOW - 1), armed=False), CONFIG, None)
    assert isinstance(decided, Hold)
    assert decided.why.startswith("The override of alice expired before it was applied: ")


def test_two_automatic_changes_are_a_dwell_apart() -> None:
    """A regime that turns at once is waited out, quietly; after the dwell it is followed."""
    just = target(decided_at=NOW - 4)
    held = decide(see(signal("saturated", ewma=9.0)), CONFIG, just)
    assert isinstance(held, Hold)
    assert (held.reason, held.in_order) == ("dwell", True)
    assert held.why == "Smoothed TTFT P99 of 9 s is saturated, but it is 4 s since the last change: τ 0, ω 1 stays for 6 s more."
    assert isinstance(decide(see(signal("saturated")), CONFIG, target(decided_at=NOW - 10)), Set)
    assert isinstance(decide(see(signal("saturated"), wanted()), CONFIG, just), Set), "an operator does not wait"


def test_automatic_changes_are_counted_and_limited() -> None:
    """The seventh change within ten minutes waits until the first of them is ten minutes old; the count is in the target itself."""
    last = target()
    for n in range(CONFIG.max_switches):
        regime = ("transition", "below")[n % 2]
        decided = decide(Observation(NOW + 60 * n, signal(regime, age_s=-60 * n), None, True), CONFIG, last)
        assert isinstance(decided, Set)
        last = decided.target
    assert last.switched_at == tuple(NOW + 60 * n for n in range(6))
    held = decide(Observation(NOW + 360, signal("saturated", age_s=-360), None, True), CONFIG, last)
    assert isinstance(held, Hold)
    assert (held.reason, held.in_order) == ("limit", False)
    assert held.why.endswith("but 6 automatic changes in ten minutes are the most allowed: τ 0, ω 1 stays for 240 s more.")
    freed = decide(Observation(NOW + 600, signal("saturated", age_s=-600), None, True), CONFIG, last)
    assert isinstance(freed, Set)
    assert freed.target.switched_at == (*last.switched_at[1:], NOW + 600)


def test_no_limit_keeps_an_override_from_beginning_or_ending() -> None:
    """With all changes used up a person's override is set, keeps the count, and reverts."""
    spent = target(switched_at=tuple(NOW - s for s in range(60, 0, -10)), decided_at=NOW - 1)
    begun = decide(see(signal("saturated"), wanted()), CONFIG, spent)
    assert isinstance(begun, Set)
    assert begun.target.switched_at == spent.switched_at
    ended = decide(see(signal("saturated"), wanted(expires_at=NOW)), CONFIG, begun.target)
    assert isinstance(ended, Set)
    assert (ended.target.mode, ended.target.tau) == ("auto", 0.8)
    assert ended.target.switched_at == spent.switched_at


def test_none_allowed_is_none() -> None:
    """A limit of zero switches is automatic control that only reverts overrides."""
    decided = decide(see(signal("saturated")), replace(CONFIG, max_switches=0), target(switched_at=(NOW - 30,)))
    assert isinstance(decided, Hold)
    assert "automatic changes are set to none" in decided.why


@pytest.mark.parametrize(
    ("regime", "ewma_s", "words"),
    [
        ("below", 0.2, "Smoothed TTFT P99 of 0.2 s is below (transition is above 0.3 s)"),
        ("transition", 0.9, "Smoothed TTFT P99 of 0.9 s is transition (above 0.3 s)"),
        ("transition", 0.28, "Smoothed TTFT P99 of 0.28 s is transition still (until under 0.24 s)"),
        ("saturated", 1.7, "Smoothed TTFT P99 of 1.7 s is saturated still (until under 1.6 s)"),
    ],
)
def test_the_sentence_names_the_threshold(regime: str, ewma_s: float, words: str) -> None:
    """Whoever is on call reads which latency was held against which limit, hysteresis included."""
    decided = decide(see(replace(signal(regime, ewma=ewma_s), thresholds_s=(0.3, 2.0))), CONFIG, None)
    assert isinstance(decided, Set)
    assert decided.target.why.startswith(words)


@given(signals, wants, lasts, st.booleans(), st.integers(0, 3), st.lists(st.floats(0, 1000), max_size=5))
def test_automatic_changes_keep_every_limit(
    heard: Signal | None, wanted: Wanted | None, last: Target | None, armed: bool, most: int, ago: list[float]
) -> None:
    """Parameters change without a person only if armed, after the dwell, and within the number allowed."""
    if last is None:
        return
    last = msgspec.structs.replace(last, switched_at=tuple(sorted(NOW - s for s in ago)), decided_at=NOW - 60 + most * 20)
    config = replace(CONFIG, max_switches=most)
    decided = decide(see(heard, wanted, armed), config, last)
    if not isinstance(decided, Set) or decided.target.mode != "auto":
        return
    asked = wanted is not None and wanted.refused is None and last.intent_revision != wanted.revision
    if (decided.target.tau, decided.target.omega) == (last.tau, last.omega) or last.mode != "auto" or asked:
        return
    assert armed
    assert NOW - last.decided_at >= config.min_dwell_s
    assert len([at for at in last.switched_at if NOW - at < 600]) < most
    assert decided.target.switched_at[-1] == NOW


def test_on_a_real_spike_it_follows_up_and_flaps_no_more_than_it_may(capture: Path) -> None:
    """The recordings of C = 8 → 128 → 8 on real clusters, through the collector's own pulse: spread while saturated, within every limit."""
    core, last, changes = Core(Settings()), None, []
    for line in Reader(capture):
        for row in core.advance(line.t):
            held = next((note.removeprefix("regime: ") for note in row["quality"] if note.startswith("regime: ")), None)
            heard = Signal(row["ts"], row["regime"], row["ttft_ewma_s"], held, row["ttft_p99_s"], (0.3, 2.0))
            decided = decide(Observation(row["ts"], heard, None, True), CONFIG, last)
            if isinstance(decided, Set):
                last = decided.target
                changes.append(last)
        feed(core, line)
    parameters = [(change.tau, change.omega) for change in changes]
    assert parameters[0] == (0.0, 1.0)
    assert (0.8, 0.1) in parameters
    assert len(changes) - 1 <= CONFIG.max_switches
    assert all(b.decided_at - a.decided_at >= CONFIG.min_dwell_s for a, b in pairwise(changes))
    assert all(f"τ {change.tau:g}, ω {change.omega:g}." in change.why for change in changes)
