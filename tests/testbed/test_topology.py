import pytest

from poascope.errors import Misconfigured
from testbed.topology import Ports, Timing, Topology, parse_timing, parse_topology, plan_ports, profiles


def test_topology_counts_workers_of_each_kind() -> None:
    """nP/mD is n prefill and m decode workers, nA is n aggregated ones, in either case."""
    assert parse_topology("1P/2D") == Topology(1, 2)
    assert parse_topology("3p/5d") == Topology(3, 5)
    assert parse_topology("2A") == Topology(0, 0, 2)
    assert parse_topology("1P/2D").workers == (("prefill-1", "prefill"), ("decode-1", "decode"), ("decode-2", "decode"))


@pytest.mark.parametrize("text", ["", "1P", "0P/2D", "1P/0D", "0A", "1P2D", "-1P/2D", "9P/9D"])
def test_topology_that_cannot_serve_is_refused(text: str) -> None:
    """A topology without a worker of each kind, with too many, or in other words is a usage error that names the form."""
    with pytest.raises(Misconfigured, match="topology: "):
        parse_topology(text)


def test_timing_is_three_numbers() -> None:
    """base / per token / ITL in ms; anything else is a usage error."""
    assert parse_timing("5/0.39/20") == Timing(5, 0.39, 20)
    for text in ("", "5/0.39", "a/b/c", "-1/0.39/20", "5/0/20", "5/0.39/0", "nan/0.39/20"):
        with pytest.raises(Misconfigured, match="timing: "):
            parse_timing(text)


def test_ports_are_the_usual_ones_unless_shifted() -> None:
    """Without a base the documented ports; with one, every port lies in the 200 that start there and none twice."""
    assert plan_ports(None, 3) == Ports((8000, 8001, 8002), 8080, 2019, 4222, 8222, (9101, 9102, 9103))
    shifted = plan_ports(23_000, 16).all()
    assert len(set(shifted)) == len(shifted)
    assert all(23_000 <= port < 23_200 for port in shifted)
    for base in (80, 65_500):
        with pytest.raises(Misconfigured, match="port-base"):
            plan_ports(base, 3)


def test_profiles_are_the_papers() -> None:
    """The frontends in port order: below (0, 1), transition (0.7, 1), saturated (0.8, 0.1)."""
    found = [(p.name, p.tau, p.omega, p.url) for p in profiles(plan_ports(None, 1))]
    assert found == [
        ("below", 0.0, 1.0, "http://127.0.0.1:8000"),
        ("transition", 0.7, 1.0, "http://127.0.0.1:8001"),
        ("saturated", 0.8, 0.1, "http://127.0.0.1:8002"),
    ]
