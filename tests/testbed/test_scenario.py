from pathlib import Path

import pytest

from poascope.errors import Misconfigured
from testbed.scenario import SHIPPED, Phase, choose, parse_scenarios


def test_shipped_scenarios_are_those_documented() -> None:
    """steady, ramp, spike and spike-long ship; the spikes go 32, 128, 32, the ramp in steps of 8 up to 160 and back."""
    scenarios = parse_scenarios(SHIPPED.read_text())
    assert set(scenarios) == {"steady", "ramp", "spike", "spike-long"}
    assert [(p.users, p.seconds) for p in scenarios["spike"].phases] == [(32, 40), (128, 60), (32, 40)]
    assert [(p.users, p.seconds) for p in scenarios["spike-long"].phases] == [(32, 120), (128, 180), (32, 120)]
    assert [p.users for p in scenarios["ramp"].phases] == [*range(8, 161, 8), 8]


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        ("{ seconds = 5 }", "either users or rate"),
        ("{ users = 1, rate = 2, seconds = 5 }", "either users or rate"),
        ("{ users = 1 }", "seconds None"),
        ("{ users = 1, seconds = 0 }", "seconds 0"),
        ("{ users = 1.5, seconds = 5 }", "users 1.5"),
        ("{ users = true, seconds = 5 }", "users True"),
        ("{ rate = 0, seconds = 5 }", "rate 0"),
        ("{ rate = nan, seconds = 5 }", "rate nan"),
        ("{ users = 1, seconds = 5, ramp = 3 }", "ramp"),
    ],
)
def test_a_wrong_phase_is_named(phase: str, message: str) -> None:
    """A phase that makes no sense is refused with its place and what is wrong."""
    with pytest.raises(Misconfigured, match="scenario odd, phase 1") as refused:
        parse_scenarios(f"[odd]\nphases = [{phase}]")
    assert message in str(refused.value)


def test_flags_replace_or_rescale_the_phases(tmp_path: Path) -> None:
    """--users or --rate make one phase; --seconds alone keeps the phases in proportion; a file of one's own works the same."""
    assert choose("spike", users=8).phases == (Phase(140, 8),)
    assert choose("spike", rate=2.5, seconds=10).phases == (Phase(10, None, 2.5),)
    assert [p.seconds for p in choose("spike", seconds=14).phases] == [4, 6, 4]
    own = tmp_path / "own.toml"
    own.write_text("[a]\nphases = [{ rate = 3, seconds = 2 }]\n[b]\nphases = [{ users = 0, seconds = 1 }]")
    assert choose(str(own)).name == "a"
    assert choose(f"{own}:b").phases == (Phase(1, 0),)


def test_an_unknown_scenario_lists_the_known() -> None:
    """The error names what there is; users and rate together are refused."""
    with pytest.raises(Misconfigured, match="steady, ramp, spike, spike-long"):
        choose("storm")
    with pytest.raises(Misconfigured, match="no such file"):
        choose("absent.toml")
    with pytest.raises(Misconfigured, match="either users or rate"):
        choose("spike", users=1, rate=1)
