from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queries.estimators.alarm import (
    BLIND_S,
    LEAVE_RATIO,
    MIN_LIMIT,
    MIN_QUIET_S,
    PROVEN_AFTER_S,
    SIGNALS,
    Alarm,
    Baseline,
    Record,
    Said,
    badness,
    learn,
    level,
    path,
    record,
    step,
    watch,
)

T0 = 1_800_000_000.0
# S grows by one a second at a headroom of 0 (x = 1), and falls by one at 0.5.
BASELINE = Baseline(reference=0.75, scale=0.25, limit=5.0, seconds=600)
ARMED = Alarm("headroom", "armed", since=T0, baseline=BASELINE)
NEAR, FAR = 0.0, 0.5


def run(alarm: Alarm, seconds: list[tuple[float | None, float | None]], start: float = T0, slo_s: float = 1.0) -> tuple[Alarm, list[Said]]:
    """Some seconds of (signal, TTFT P99) one after another, and everything that was said."""
    said: list[Said] = []
    for k, (value, p99_s) in enumerate(seconds):
        alarm = step(alarm, start + k, value, p99_s, slo_s)
        said.extend(alarm.said)
    return alarm, said


def told(said: list[Said]) -> list[tuple[float, str]]:
    return [(s.ts - T0, s.event) for s in said if s.event not in ("watch", "learning")]


@pytest.mark.parametrize(("signal", "value", "x"), [("headroom", 0.3, 0.7), ("poa_ttft", 1.0, 0.0), ("ttft_ewma", np.e, 1.0)])
def test_more_is_worse_and_back(signal: str, value: float, x: float) -> None:
    """Headroom by the share of the knee in use, ratios and seconds by their logarithm; `level` undoes it."""
    assert badness(signal, value) == pytest.approx(x)
    assert level(signal, x) == pytest.approx(value)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), 0.0, -1.0])
def test_what_is_no_ratio_is_no_value(value: float | None) -> None:
    """Withheld, not finite, or without a logarithm: None. A headroom below zero is one, past the knee."""
    assert badness("poa_ttft", value) is None
    assert badness("headroom", -1.0) == 2.0


def test_the_path_by_hand() -> None:
    """Reference 1, scale 1: values 0 2 3 0 0 add −1 +1 +2 −1 −1, never below zero: 0 1 3 2 1."""
    assert path(np.array([0.0, 2, 3, 0, 0]), 1.0, 1.0).tolist() == [0, 1, 3, 2, 1]


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=60), st.floats(-1, 1), st.floats(0.1, 3))
def test_the_path_is_what_single_steps_give(x: list[float], reference: float, scale: float) -> None:
    """Page's recursion S = max(0, S + (x − reference)/scale), and S is never negative."""
    total, by_step = 0.0, []
    for value in x:
        total = max(0.0, total + (value - reference) / scale)
        by_step.append(total)
    assert path(np.array(x), reference, scale) == pytest.approx(by_step, abs=1e-9)


@given(st.integers(0, 10_000), st.floats(0.5, 3), st.floats(-2, 2))
def test_limits_move_with_the_signal_and_quiet_time_never_reaches_them(seed: int, stretch: float, shift: float) -> None:
    """Stretched and shifted values have a reference stretched and shifted alike; what was learnt is silent."""
    rng = np.random.default_rng(seed)
    quiet = rng.choice([rng.uniform(0, 0.6, 350), rng.normal(0, 0.2, 350).cumsum() / 5, rng.exponential(0.2, 350)])
    one, other = learn("poa_ttft", quiet), learn("poa_ttft", stretch * quiet + shift)
    assert one is not None and other is not None
    assert path(quiet, one.reference, one.scale).max() < one.limit
    if one.scale > 0.05 and other.scale > 0.05:
        assert other.reference == pytest.approx(stretch * one.reference + shift)
        assert other.limit == pytest.approx(one.limit, rel=1e-6)


def test_too_little_quiet_time_is_refused() -> None:
    """Below five minutes there is no baseline, and a burning system then is no alarm: its breach counts as untested."""
    assert learn("headroom", np.full(MIN_QUIET_S - 1, 0.3)) is None
    alarm, said = run(Alarm("headroom"), [(0.7, 0.1)] * 100 + [(-1.0, 3.0)] * 40 + [(0.7, 0.1)] * 40)
    assert alarm.state == "learning" and told(said) == [(100.0, "breach"), (169.0, "recovered")]
    assert record(said) == Record(0, (), 1, 0, 0.0)


def test_a_robust_baseline_ignores_a_tenth_of_outliers() -> None:
    """Median and MAD: 300 s of 0.3 ± 0.1 with 30 s of 5 keep the reference within a third of a scale."""
    clean = 0.3 + 0.1 * np.sin(np.arange(300.0))
    dirty = np.where(np.arange(300) % 10 == 0, 5.0, clean)
    one, other = learn("poa_ttft", clean), learn("poa_ttft", dirty)
    assert one is not None and other is not None
    assert abs(other.reference - one.reference) < one.scale / 3


def test_a_load_under_three_quarters_of_the_knee_is_never_an_alarm() -> None:
    """However little was usual: a busier day is not a danger."""
    baseline = learn("headroom", np.full(600, 0.1))
    assert baseline is not None and baseline.reference == 0.75
    _, said = run(Alarm("headroom", "armed", since=T0, baseline=baseline), [(0.26, 0.1)] * 300)
    assert told(said) == []


def test_it_arms_after_five_minutes_that_stayed_quiet() -> None:
    """Each second counts a minute later, when it is known that nothing followed."""
    alarm, said = run(Alarm("headroom"), [(0.7, 0.1)] * 400)
    assert told(said) == [(MIN_QUIET_S + PROVEN_AFTER_S - 1, "armed")]
    assert alarm.state == "armed" and alarm.baseline is not None


def test_what_came_just_before_a_breach_is_not_learnt() -> None:
    """The minute before is forgotten, and so is everything until the objective was kept for half a minute."""
    alarm, _ = run(Alarm("headroom"), [(0.7, 0.1)] * 200 + [(0.1, 0.1)] * 50 + [(-0.5, 2.0)] * 20)
    assert len(alarm.quiet) == 200 + 50 - PROVEN_AFTER_S and set(alarm.quiet) == {badness("headroom", 0.7)}


def test_an_alarm_before_a_breach_has_a_lead() -> None:
    """S reaches 5 in the fifth second near the knee; 10 s later the objective breaks; it clears once S is half its limit again."""
    alarm, said = run(ARMED, [(FAR, 0.1)] * 3 + [(NEAR, 0.1)] * 14 + [(NEAR, 2.0)] * 5 + [(FAR, 0.1)] * 60)
    assert told(said) == [(7.0, "alarm"), (17.0, "breach"), (51.0, "recovered"), (51.0, "cleared")]
    assert [s.lead_s for s in said if s.event == "breach"] == [10.0]
    assert alarm.state == "armed"
    assert record(said) == Record(1, (10.0,), 0, 0, pytest.approx(sum(s.watched_s for s in said)))


def test_a_breach_without_an_alarm_is_missed_and_an_alarm_without_one_is_false() -> None:
    """Neither makes up for the other."""
    _, said = run(ARMED, [(FAR, 2.0)] * 2 + [(FAR, 0.1)] * 40 + [(NEAR, 0.1)] * 8 + [(FAR, 0.1)] * 30)
    assert told(said) == [(0.0, "breach"), (31.0, "recovered"), (46.0, "alarm"), (55.0, "false")]
    seen = record(said)
    assert (seen.breaches, seen.missed, seen.false_alarms, seen.leads_s) == (1, 1, 1, ())


def test_an_alarm_that_rings_only_during_a_breach_is_neither_early_nor_false() -> None:
    """It came too late: the breach is missed, and it is not counted again as false."""
    _, said = run(ARMED, [(FAR, 2.0)] * 2 + [(NEAR, 2.0)] * 10 + [(FAR, 0.1)] * 60)
    assert [event for _, event in told(said)] == ["breach", "alarm", "recovered", "cleared"]
    assert (record(said).missed, record(said).false_alarms) == (1, 0)


@given(st.lists(st.sampled_from([NEAR, FAR, 0.25, None]), min_size=1, max_size=200))
def test_it_does_not_flutter(values: list[float | None]) -> None:
    """Between ringing and clearing S must fall by half its limit: with steps of at most 1 that takes 2.5 s at least. S stays bounded."""
    alarm, said = run(ARMED, [(v, 0.1) for v in values])
    assert 0 <= alarm.total <= 2 * BASELINE.limit
    changes = [s.ts for s in said if s.event in ("alarm", "false", "cleared")]
    assert all(b - a >= (1 - LEAVE_RATIO) * BASELINE.limit for a, b in pairwise(changes))
    events = [s.event for s in said if s.event in ("alarm", "false")]
    assert events == ["alarm", "false"] * (len(events) // 2) + ["alarm"] * (len(events) % 2)


def test_what_nobody_watched_is_neither_right_nor_false() -> None:
    """An alarm when the signal stops ends as not watched; the time it was blind is not watched time."""
    alarm, said = run(ARMED, [(NEAR, 0.1)] * 8 + [(None, None)] * 100)
    assert told(said) == [(4.0, "alarm"), (7 + BLIND_S + 1, "cleared")]
    assert "not watched" in str(next(s for s in said if s.event == "cleared").why)
    assert record(said).watched_s + alarm.watched_s == pytest.approx(7.0)


def test_an_alarm_that_nothing_follows_becomes_the_new_usual() -> None:
    """After five minutes of ringing without a breach the level is learnt: it ends as a false alarm, at most a second one follows."""
    steady = Alarm("poa_ttft", "armed", since=T0, baseline=learn("poa_ttft", np.zeros(400)), quiet=np.zeros(400))
    alarm, said = run(steady, [(2.0, 0.1)] * 3000)
    assert told(said)[:2] == [(0.0, "alarm"), (301.0, "false")]
    assert record(said).false_alarms <= 2 and alarm.state == "armed"


def test_what_has_rung_for_ages_announces_nothing() -> None:
    """An alarm still ringing from the breach before, or for more than 5 min, has no lead over the next: that one is missed."""
    still = [(NEAR, 0.1)] * 6 + [(NEAR, 2.0)] * 5 + [(NEAR, 0.1)] * 40 + [(NEAR, 2.0)] * 5
    _, said = run(ARMED, still)
    assert [s.lead_s for s in said if s.event == "breach"] == [2.0, None]
    _, said = run(ARMED, [(NEAR, 0.1)] * 320 + [(NEAR, 2.0)] * 5)
    assert [event for _, event in told(said)] == ["alarm", "false", "breach"]
    assert (record(said).missed, record(said).false_alarms) == (1, 1)


def test_watched_time_adds_up_and_is_told_each_minute() -> None:
    """The sum of `watched_s` is the armed time, however it is cut."""
    alarm, said = run(ARMED, [(FAR, 0.1)] * 601)
    assert len([s for s in said if s.event == "watch"]) == 10
    assert record(said).watched_s + alarm.watched_s == 600.0


def test_the_record_by_hand() -> None:
    """Two of three warned of, one more before it was armed; one false alarm in half an hour is two an hour."""
    base = Said(T0, "breach", "alarm", T0, lead_s=4.0, watched_s=600.0)
    said = [
        base,
        replace(base, lead_s=8.0),
        replace(base, state="armed", lead_s=None),
        replace(base, state="learning", lead_s=None, watched_s=0.0),
        Said(T0, "false", "armed", T0),
    ]
    assert record(said) == Record(3, (4.0, 8.0), 1, 1, 1800.0)
    assert record(said).missed == 1 and record(said).false_per_hour == 2.0
    assert record([]).false_per_hour is None


@pytest.mark.parametrize("signal", SIGNALS)
def test_what_is_hollow_or_stale_rings_nothing(signal: str) -> None:
    """A row without events, of an unknown regime or with a withheld PoA brings no value; another signal than before starts anew."""
    row: dict[str, Any] = {
        "ts": T0,
        "arrivals_per_s": 1.0,
        "regime": "below",
        "poa_withheld": None,
        "ttft_p99_censored_s": 0.1,
        "headroom_ratio": 0.5,
        "poa_ttft": 2.0,
        "poa_hat": 1.1,
        "ttft_ewma_s": 0.2,
    }
    assert watch(Alarm(signal), row, signal, 1.0).seen_at == T0
    hollow = row | {"arrivals_per_s": None, "regime": "unknown", "poa_withheld": "events are stale"}
    assert watch(Alarm(signal), hollow, signal, 1.0).seen_at is None
    other = SIGNALS[SIGNALS.index(signal) - 1]
    assert watch(replace(ARMED, signal=other), row, signal, 1.0).state == "learning"


def test_the_least_limit() -> None:
    """Quiet time without any movement still takes S to 5 before it rings."""
    baseline = learn("headroom", np.full(MIN_QUIET_S, 0.9))
    assert baseline is not None and baseline.limit == MIN_LIMIT and baseline.reference == pytest.approx(0.92)
