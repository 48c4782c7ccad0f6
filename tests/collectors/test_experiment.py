import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from collectors.experiment import Client, Played, detection, early_warning, lines, play, read_client
from poascope.cli import cli
from poascope.errors import Misconfigured, PoascopeError
from poascope.settings import Settings
from tests.conftest import CAPTURES

CAPTURE = CAPTURES / "cap-0.9.0-1p2d.jsonl.gz"
T0 = 1_800_000_000.0


def client(*spans: tuple[float, float, float]) -> Client:
    """Ten requests a second: (from, to, TTFT) one after another."""
    sent = np.concatenate([np.arange(a, b, 0.1) for a, b, _ in spans]) + T0
    ttft = np.concatenate([np.full(len(np.arange(a, b, 0.1)), t) for a, b, t in spans])
    return Client(sent, sent + ttft)


def row(at: float, headroom: float) -> dict[str, Any]:
    return {
        "ts": T0 + at, "arrivals_per_s": 10.0, "regime": "below", "poa_withheld": None, "headroom_ratio": headroom, "poa_ttft": 1.0,
        "poa_hat": 1.0, "ttft_ewma_s": 0.1, "ttft_p99_censored_s": 0.1,
    }  # fmt: skip


def test_the_truth_is_the_median_of_what_is_sent_next() -> None:
    """Slow from the first request that met a slow median on; a burst of a tenth moves nothing; under 10 s is no span."""
    slow = client((0, 60, 0.05), (60, 90, 3.0), (90, 120, 0.05), (120, 123, 3.0), (123, 150, 0.05))
    ((start, end),) = slow.slow(1.0)
    assert start == pytest.approx(T0 + 57.5, abs=0.2) and end == pytest.approx(T0 + 87.5, abs=0.2)
    assert client((0, 60, 0.05)).slow(1.0) == []


def test_requests_without_a_first_token_are_slow() -> None:
    """Whoever never got one waited for ever."""
    sent = T0 + np.arange(0, 40, 0.1)
    assert Client(sent, np.full(len(sent), np.nan)).slow(1.0)[0][0] == sent[0]


def test_limits_are_learnt_on_half_of_the_quiet_and_judged_on_the_rest() -> None:
    """Headroom falls 18 s before the first slow token, by which the client's P99 breaks: a lead. What never moves misses it."""
    seen = client((0, 100, 0.05), (100, 130, 3.0), (130, 2200, 0.05))
    rows = [row(t, 0.0 if 85 <= t < 130 else 0.6) for t in range(2200)]
    table = {r["signal"]: r for r in early_warning(rows, seen, Settings())}
    headroom = table["headroom"]
    assert (headroom["breaches"], headroom["missed"], headroom["false_alarms"]) == (1, 0, 0)
    assert 15 <= headroom["lead_s"] <= 20
    assert headroom["learnt_s"] > 900 and headroom["watched_h"] > 0.25
    assert table["poa_ttft"]["missed"] == 1 and table["poa_ttft"]["lead_s"] is None


def test_without_enough_quiet_it_learns_on_the_way() -> None:
    """As a new deployment does: breaches before that are untested."""
    seen = client((0, 100, 0.05), (100, 130, 3.0), (130, 200, 0.05))
    (headroom, *_) = early_warning([row(t, 0.6) for t in range(200)], seen, Settings())
    assert (headroom["breaches"], headroom["untested"], headroom["learnt_s"], headroom["false_per_hour"]) == (0, 1, 0, None)


def states(*switches: tuple[float, str]) -> list[tuple[float, str]]:
    """A state a second over 300 s."""
    return [(T0 + t, next(name for at, name in reversed(switches) if at <= t)) for t in range(300)]


def test_delay_false_switches_and_returns_by_hand() -> None:
    """Onset at 97.5 s: one source comes 7 s later and flutters once, one rings at 20 s and stays, one never comes."""
    seen = client((0, 100, 0.05), (100, 160, 3.0), (160, 300, 0.05))
    played = Played(
        CAPTURE,
        [],
        {
            "censored": states((0, "below"), (105, "saturated"), (120, "below"), (130, "saturated"), (170, "below")),
            "events": states((0, "below"), (20, "saturated"), (290, "below")),
            "prometheus": states((0, "below"), (30, "saturated"), (40, "unknown")),
        },
        None,
    )
    found = {(r["source"], r["regime"]): r for r in detection([played], seen, Settings())}
    good, stuck, blind = (found[s, "saturated"] for s in ("censored", "events", "prometheus"))
    assert good["delay_s"] == pytest.approx(7.5, abs=0.3) and (good["false_switches"], good["oscillations"], good["already"]) == (0, 1, 0)
    assert good["recovery_s"] == pytest.approx(12.5, abs=1.0) and good["wrong_ratio"] == 0
    assert (stuck["already"], stuck["delay_s"], stuck["false_switches"]) == (1, None, 1) and stuck["wrong_ratio"] > 0.7
    assert (blind["missed"], blind["false_switches"]) == (1, 1)


def test_every_return_counts_for_who_was_there_before_the_onset() -> None:
    """In the regime long before, out of it and back twice: two oscillations, though none of them is a detection."""
    seen = client((0, 100, 0.05), (100, 160, 3.0), (160, 300, 0.05))
    fluttering = states(
        (0, "below"), (20, "saturated"), (110, "below"), (120, "saturated"), (130, "below"), (140, "saturated"), (170, "below")
    )
    played = Played(CAPTURE, [], dict.fromkeys(("censored", "events", "prometheus"), fluttering), None)
    found = next(r for r in detection([played], seen, Settings()) if r["regime"] == "saturated")
    assert (found["already"], found["delay_s"], found["oscillations"]) == (1, None, 2)


def test_a_recording_is_played_as_it_was_lived() -> None:
    """The same core: the regime of the censored source is that of the rows, second by second."""
    played = play(CAPTURE, Settings())
    assert [name for _, name in played.regimes["censored"]] == [r["regime"] for r in played.rows]
    assert {len(seen) for seen in played.regimes.values()} == {len(played.rows)}
    assert "saturated" in {name for _, name in played.regimes["prometheus"]}


def test_the_client_lines_of_a_recording_are_the_truth() -> None:
    """560 requests, in order of sending; a file without any is refused by name."""
    truth = read_client([CAPTURE])
    assert len(truth.sent) == 560 and (np.diff(truth.sent) >= 0).all()
    with pytest.raises(PoascopeError, match=r"client: .*README\.md - no request in it"):
        read_client([CAPTURES / "README.md"])
    with pytest.raises(Misconfigured, match="no such file"):
        read_client([CAPTURES / "absent.jsonl"])


def test_the_verb_prints_a_table_and_json(tmp_path: Path) -> None:
    """By default for reading, with --json whole; it says on what."""
    out = tmp_path / "client.jsonl"
    truth = read_client([CAPTURE])
    out.write_text("\n".join(json.dumps({"sent": s, "first": f}) for s, f in zip(truth.sent, truth.first, strict=True)))
    told = CliRunner().invoke(cli, ["experiment", "early-warning", str(CAPTURE), "--client", str(out), "--json"])
    assert told.exit_code == 0, told.output
    done = json.loads(told.output)
    assert {r["signal"] for r in done["table"]} == {"headroom", "poa_ttft", "poa_hat", "ttft_ewma"}
    assert done["on"]["requests"] == 560 and {r["untested"] for r in done["table"]} == {1}
    said = CliRunner().invoke(cli, ["experiment", "detection", str(CAPTURE)])
    assert said.exit_code == 0 and "prometheus" in said.output and "560 requests" in said.output


def test_recordings_that_overlap_are_refused() -> None:
    """Two clusters at once, or one recording twice: no second has two rows."""
    told = CliRunner().invoke(cli, ["experiment", "detection", str(CAPTURE), str(CAPTURE)])
    assert told.exit_code == 2 and "overlap in time" in told.output


def test_an_empty_table_has_no_lines() -> None:
    """And numbers that are not there are a dash, never a zero."""
    assert list(lines([])) == []
    assert list(lines([{"a": None, "b": 1.0}])) == ["a     b", "–  1.00"]
