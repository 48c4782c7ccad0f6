from typing import Any

import pandas as pd
import pytest

from app import warning
from app.panels import LIVE
from app.status import Objectives, Verdict


def row(**given: Any) -> dict[str, Any]:
    base = {
        "signal": "headroom", "state": "armed", "since": pd.Timestamp("2026-11-29T21:03:10"), "why": None, "value": 0.61, "reference": 0.25,
        "breaches": 10, "warned": 8, "untested": 0, "lead_s": 12.0, "lead_low_s": 4.0, "lead_high_s": 24.0, "false_alarms": 3,
        "watched_s": 36000.0,
    }  # fmt: skip
    return base | given


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Warned of 8 of 10 breaches, lead 12 s median (4 to 24); 0.3 false alarms/h over 10.0 h."),
        ({"breaches": 0, "warned": 0, "lead_s": None}, "No breach yet: untested. 0.3 false alarms/h over 10.0 h."),
        ({"warned": 0, "lead_s": float("nan")}, "Warned of 0 of 10 breaches; 0.3 false alarms/h over 10.0 h."),
        ({"watched_s": 0.0, "untested": 2}, "No record yet: untested. 2 came before it had learnt."),
        ({"breaches": 0, "watched_s": 600.0, "false_alarms": 0}, "No breach yet: untested. 0 false alarms in 10 min."),
    ],
)
def test_the_record_is_always_there(given: dict[str, Any], said: str) -> None:
    """What it was worth, over how long; without a record it says so, and rates stand only on an hour and more."""
    assert warning.record(row(**given)) == said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "Quiet since 21:03:10 UTC. It listens to headroom, which counts below 25 %."),
        ({"state": "alarm", "value": 0.08}, "Ringing since 21:03:10 UTC: headroom at 8 %, which counts below 25 %."),
        (
            {"state": "learning", "why": "120 of 300 s of quiet time learnt", "reference": None},
            "Learning what is usual of headroom: 120 of 300 s of quiet time learnt. It does not ring before.",
        ),
        ({"signal": "poa_ttft", "reference": 7.5}, "Quiet since 21:03:10 UTC. It listens to PoA of TTFT, which counts above 7.50."),
        ({"signal": "ttft_ewma", "reference": 0.4}, "Quiet since 21:03:10 UTC. It listens to TTFT EWMA, which counts above 400 ms."),
    ],
)
def test_the_state_names_signal_and_limit(given: dict[str, Any], said: str) -> None:
    """What it listens to, from where on that counts, and since when."""
    assert warning.state(row(**given)) == said


def test_a_calm_verdict_yields_to_a_ringing_alarm() -> None:
    """Only a calm one: trouble and doubt are said by themselves."""
    calm, trouble = Verdict("calm", "No.", ""), Verdict("trouble", "Yes.", "")
    ringing = {"alarm_record": [row(state="alarm")]}
    assert warning.warned(calm, ringing).answer == "Close: the early warning rings."
    assert warning.warned(trouble, ringing) is trouble
    assert warning.warned(calm, {"alarm_record": [row()]}) is calm
    assert warning.warned(calm, {"alarm_record": []}) is calm


def test_the_live_page_has_it() -> None:
    """A panel of its own, whose sentences come with the head."""
    assert "alarm" in {panel.key for panel in LIVE.panels} and "alarm_record" in LIVE.latest
    head = LIVE.head({"signals": [], "alarm_record": [row()]}, 0.0, Objectives(1.0, 0.05))
    assert head.said["alarm"] == [warning.state(row()), warning.record(row())]
