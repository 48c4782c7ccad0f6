import math
from typing import Any

import pytest

from app import status
from app.status import Objectives

SLO = Objectives(1.0, 0.05)
HELD = "regime: no requests: last state held"
STALE = "regime: no events for more than 15 s"


def row(**given: Any) -> dict[str, Any]:
    base = {"at": 1000.0, "regime": "below", "ttft_p99_s": 0.06, "itl_p99_s": 0.022, "inflight": 32.0, "knee_inflight": 99.0, "quality": []}
    return base | given


def tile(rows: list[dict[str, Any]], key: str) -> status.Tile:
    return next(t for t in status.tiles(rows, SLO) if t.key == key)


@pytest.mark.parametrize(
    ("given", "level", "answer"),
    [
        ({}, "calm", "No: below the knee."),
        ({"regime": "transition"}, "watch", "Close: in transition."),
        ({"regime": "saturated"}, "trouble", "Yes: saturated."),
        ({"ttft_p99_s": 2.0}, "trouble", "Yes: TTFT is past its objective, though below the knee."),
        ({"ttft_p99_censored_s": 3.0}, "trouble", "Yes: TTFT is past its objective, though below the knee."),
        ({"itl_p99_s": 0.2}, "watch", "Close: ITL is past its objective."),
        ({"regime": "unknown"}, "unknown", "Cannot tell: regime unknown."),
        ({"regime": "unknown", "inflight": 0.0, "ttft_p99_s": None, "quality": ["regime: no requests yet"]}, "calm", "No."),
        ({"regime": "unknown", "inflight": 0.0, "ttft_p99_s": None, "quality": [STALE]}, "unknown", "Cannot tell: regime unknown."),
        ({"regime": None, "inflight": None, "ttft_p99_s": None}, "unknown", "Cannot tell: requests in flight unknown."),
        ({"inflight": 120.0}, "watch", "Close: past the knee."),
        ({"inflight": 120.0, "ttft_p99_s": 2.0}, "trouble", "Yes: TTFT is past its objective, past the knee."),
        ({"inflight": 120.0, "regime": "transition"}, "watch", "Close: in transition."),
        ({"regime": "saturated", "inflight": 0.0, "ttft_p99_s": 3.0, "quality": [HELD]}, "calm", "No."),
        ({"regime": "saturated", "inflight": 0.0, "ttft_p99_s": 3.0}, "trouble", "Yes: saturated."),
    ],
)
def test_the_sentence_answers_the_question(given: dict[str, Any], level: str, answer: str) -> None:
    """Am I in trouble: yes, close, no, or cannot tell."""
    found = status.verdict(row(**given), 1.0, SLO)
    assert (found.level, found.answer) == (level, answer)


def test_in_trouble_the_sentence_names_the_lever() -> None:
    """The largest part of the lost time is named with what moves it; a PoA that is withheld, or little lost, accuses nobody."""
    parts = {"prefill_queue_s": 90.0, "imbalance_s": 10.0, "cache_miss_s": None, "other_s": -3.0}
    found = status.verdict(row(regime="saturated", poa_hat=1.6, poa_withheld=math.nan, **parts), 1.0, SLO)
    assert found.todo == "90 % of the lost time is prefill queue: prefill capacity or less load helps, τ and ω do not."
    assert status.verdict(row(regime="saturated", poa_hat=1.6, poa_withheld="2 gaps in the window", **parts), 1.0, SLO).todo == ""
    assert status.verdict(row(regime="saturated", poa_hat=1.05, **parts), 1.0, SLO).todo == ""


def test_old_signals_are_no_answer() -> None:
    """A saturated row of a minute ago says nothing about now."""
    assert status.verdict(row(regime="saturated"), 60.0, SLO).level == "unknown"
    assert status.verdict(None, None, SLO).level == "unknown"


def test_a_withheld_number_is_shown_hollow_with_its_reason() -> None:
    """PoA-hat that is withheld is not passed off as sound, and one that is NULL is no number at all."""
    held = tile([row(poa_hat=40.0, poa_withheld="3 finished < 8")], "poa")
    assert (held.state, held.value, held.trust) == ("hollow", "40.0", "withheld: 3 finished < 8")
    none = tile([row(poa_hat=None, poa_withheld="no requests finished")], "poa")
    assert (none.state, none.value) == ("none", "–")


def test_null_is_never_zero_and_says_why() -> None:
    """A NULL column is a dash with the reason that quality gives."""
    found = tile([row(kv_hit_ratio=None, quality=["kv_hit_ratio: no KV events from 2 of 3 workers"])], "kv")
    assert (found.value, found.unit, found.trust) == ("–", "", "no KV events from 2 of 3 workers")


def test_trend_is_against_a_minute_ago() -> None:
    """The change is measured against the row of a minute ago, and is left out when there is none."""
    assert tile([row(at=940.0, inflight=20.0), row()], "inflight").delta == "+12"
    assert tile([row(at=940.0, kv_hit_ratio=0.8), row(kv_hit_ratio=0.75)], "kv").delta == "−5.0 pt"
    assert tile([row(at=900.0), row()], "inflight").delta == ""


def test_numbers_carry_interval_count_and_time() -> None:
    """Trust is said beside the number: interval and n; and when it was true."""
    found = tile([row(poa_hat=1.84, poa_low=1.71, poa_high=1.97, poa_n=412)], "poa")
    assert (found.value, found.unit, found.trust, found.as_of) == ("1.84", "×", "1.71–1.97 · n 412", 1000.0)


def test_past_the_knee_is_an_alarm() -> None:
    """In flight is judged against the knee."""
    found = tile([row(inflight=128.0, headroom_ratio=-0.29)], "inflight")
    assert (found.state, found.unit, found.trust) == ("alarm", "of 99", "29 % past the knee")


def test_a_regime_that_is_only_held_is_over() -> None:
    """With nothing in flight the last regime is told as the past, in the sentence and on its tile."""
    idle = row(regime="transition", inflight=0.0, ttft_ewma_s=0.9, quality=[HELD])
    assert status.verdict(idle, 1.0, SLO).text == "Nothing is in flight. It was transition when the last requests were served."
    found = tile([idle], "regime")
    assert (found.state, found.value, found.trust) == ("hollow", "transition", "no requests: last state held")
    assert tile([row(regime="transition", ttft_ewma_s=0.9)], "regime").state == "warn"


def test_without_routing_events_nobody_says_there_is_no_traffic() -> None:
    """Requests in flight NULL: the page says what is missing and what brings it."""
    said = "events: requests run but no routing is heard; start the frontends with --router-replica-sync"
    found = status.verdict(row(inflight=None, regime="unknown", ttft_p99_s=None, quality=["regime: no requests yet", said]), 1.0, SLO)
    assert (found.level, found.todo) == ("unknown", said.partition(": ")[2])
