import math
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from queries.whatif.classify import Rule, play, recorded_switches

Recorded = Callable[[str], dict[str, pa.Table]]


def names(switches: tuple[object, ...]) -> list[str]:
    return [s.after for s in switches]  # type: ignore[attr-defined]


def test_the_rule_of_the_recording_switches_as_it_did(recorded: Recorded) -> None:
    """Thresholds, α, dwell and P99 as they were: the same switches, each within a step of the live ones."""
    tables = recorded("cap-0.9.0-1p2d")
    was, now = recorded_switches(tables["signals"]), play(tables["requests"], tables["signals"], Rule()).switches
    assert names(now) == names(was) == ["transition", "saturated", "below"]
    assert [s.at for s in now] == pytest.approx([s.at for s in was], abs=5.0)


def test_other_rules_switch_otherwise(recorded: Recorded) -> None:
    """Higher thresholds: never saturated; a heavier newest P99, or those who wait counted: not later; a long dwell: later down."""
    tables = recorded("cap-0.9.0-1p2d")

    def at(rule: Rule, after: str) -> float:
        played = play(tables["requests"], tables["signals"], rule)
        return next((s.at for s in played.switches if s.after == after), np.inf)

    assert at(Rule((1.0, 10.0)), "saturated") == np.inf
    assert at(Rule(alpha=0.9), "saturated") <= at(Rule(), "saturated") <= at(Rule(alpha=0.05), "saturated")
    assert at(Rule(), "saturated") <= at(Rule(source="events"), "saturated")
    assert at(Rule(dwell_s=60.0), "below") > at(Rule(), "below")


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (Rule(source="guess"), "no such P99"),
        (Rule((2.0, 0.3)), "θ₁ < θ₂"),
        (Rule(alpha=0.0), "α"),
        (Rule(dwell_s=math.nan), "dwell"),
        (Rule(source="prometheus"), "was stored"),
    ],
)
def test_what_cannot_be_played_is_refused(recorded: Recorded, rule: Rule, why: str) -> None:
    """Rules that mean nothing, and a P99 that was not recorded, give a reason instead of a line."""
    tables = recorded("cap-0.9.0-1p2d")
    signals = tables["signals"]
    empty = pa.nulls(signals.num_rows, pa.float64())
    played = play(
        tables["requests"],
        signals.set_column(signals.schema.get_field_index("ttft_p99_prometheus_s"), "ttft_p99_prometheus_s", empty),
        rule,
    )
    assert played.refused and why in played.refused and not played.switches


def test_the_stored_p99_of_prometheus_is_played(recorded: Recorded) -> None:
    """What the papers' controller saw switches too, and later or never up."""
    tables = recorded("cap-0.9.0-1p2d")
    played = play(tables["requests"], tables["signals"], Rule(source="prometheus"))
    assert played.refused is None and "Prometheus" in " ".join(played.assumptions)
    assert np.nanmax(played.p99_s) > 1.0


def test_no_requests_no_replay(recorded: Recorded) -> None:
    """An empty span says so."""
    tables = recorded("cap-0.9.0-1p2d")
    assert play(tables["requests"].slice(0, 0), tables["signals"], Rule()).refused == "no requests in this span"
