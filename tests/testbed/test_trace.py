"""Mooncake traces: arrivals by time, prompts that share what their hash ids share, and refusals that name the line."""

import json
import random
from pathlib import Path

import pytest

from poascope.errors import Misconfigured
from testbed.prompts import traced
from testbed.scenario import choose
from testbed.trace import read_mooncake
from tests.conftest import CAPTURES

SAMPLE = CAPTURES / "traces/mooncake-toolagent.jsonl"
ROW = {"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}


def test_a_published_trace_is_a_scenario() -> None:
    """The head of the public tool-agent trace: nine arrivals, in order, with their lengths and blocks."""
    (phase,) = choose(str(SAMPLE)).phases
    assert len(phase.arrivals) == 9 and str(phase) == "9 req"
    assert phase.arrivals[0].input_tokens == 6758 and phase.arrivals[0].blocks == tuple(range(14))


def test_arrivals_come_by_time_from_the_first(tmp_path: Path) -> None:
    """Timestamps count from the earliest, whatever order lines have; --seconds stretches them; other spellings are understood."""
    file = tmp_path / "t.jsonl"
    other = {"created_time": 500, "input_tokens": 8, "output_tokens": 1}
    file.write_text("\n".join(json.dumps(row) for row in (ROW, other, ROW | {"timestamp": 2500})))
    assert [a.at_s for a in read_mooncake(file)] == [0.0, 0.5, 2.0]
    (phase,) = choose(str(file), seconds=20).phases
    assert [a.at_s for a in phase.arrivals] == [0.0, 5.0, 20.0] and phase.seconds == 20


def test_equal_hash_ids_are_equal_prefixes() -> None:
    """Two prompts share exactly the words of the blocks they share, and have as many words as tokens are asked for."""
    one = traced(1200, [1, 2, 3], 512, 7, random.Random(1)).split()
    other = traced(1100, [1, 2, 9], 512, 7, random.Random(2)).split()
    alone = traced(40, [], 512, 7, random.Random(3)).split()
    assert (len(one), len(other), len(alone)) == (1200, 1100, 40)
    assert one[:1024] == other[:1024] and one[1024:1100] != other[1024:1100]
    longer = traced(1700, [1, 2, 3], 512, 7, random.Random(4)).split()
    assert longer[:1200] == one and len(longer) == 1700


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"timestamp": 1}, "line 2: input_length - missing"),
        (ROW | {"input_length": -3}, "line 2: input_length -3"),
        (ROW | {"hash_ids": ["a"]}, "line 2: hash_ids"),
        (ROW | {"timestamp": "noon"}, "line 2: timestamp noon"),
        (ROW | {"delay": 30.0}, "line 2: delay - turns that wait"),
        ([], "line 2: not a JSON object"),
    ],
)
def test_what_is_no_such_row_is_named(tmp_path: Path, row: object, says: str) -> None:
    """A line that cannot be sent as it says is refused, with its number and the field."""
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps(ROW) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(Misconfigured, match=says):
        read_mooncake(file)
    with pytest.raises(Misconfigured, match="says itself when"):
        choose(str(SAMPLE), users=3)
    with pytest.raises(Misconfigured, match="no such file"):
        choose(str(tmp_path / "absent.jsonl"))
