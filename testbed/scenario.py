"""Load scenarios: phases of closed or open load. Pure, apart from reading the file that ships with the package."""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from poascope.errors import Misconfigured
from testbed.trace import Arrival, read_mooncake

SHIPPED = Path(__file__).parent / "scenarios.toml"
MAX_USERS, MAX_RATE = 2000, 1000.0


@dataclass(frozen=True, slots=True)
class Phase:
    """For `seconds`: `users` requests in flight (closed loop), `rate` Poisson arrivals a second, or the `arrivals` of a trace."""

    seconds: float
    users: int | None = None
    rate: float | None = None
    arrivals: tuple[Arrival, ...] = ()

    def __str__(self) -> str:
        if self.arrivals:
            return f"{len(self.arrivals)} req"
        return f"C={self.users}" if self.users is not None else f"λ={self.rate:g}/s"


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    about: str
    phases: tuple[Phase, ...]

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)


def parse_phase(where: str, given: dict[str, Any]) -> Phase:
    """Raises Misconfigured, naming `where`."""
    unknown = set(given) - {"users", "rate", "seconds"}
    if unknown:
        raise Misconfigured(f"{where}: {', '.join(sorted(unknown))} - a phase has users or rate, and seconds")
    users, rate, seconds = given.get("users"), given.get("rate"), given.get("seconds")
    if (users is None) == (rate is None):
        raise Misconfigured(f"{where}: {given} - a phase needs either users or rate")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds <= 86_400:
        raise Misconfigured(f"{where}: seconds {seconds} - must be above 0 and at most 86400")
    if users is not None and (not isinstance(users, int) or isinstance(users, bool) or not 0 <= users <= MAX_USERS):
        raise Misconfigured(f"{where}: users {users} - must be a whole number within 0 and {MAX_USERS}")
    if rate is not None and (not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 < rate <= MAX_RATE):
        raise Misconfigured(f"{where}: rate {rate} - must be above 0 and at most {MAX_RATE:g} per second")
    return Phase(float(seconds), users, None if rate is None else float(rate))


def parse_scenarios(text: str) -> dict[str, Scenario]:
    """Scenarios by name, from TOML as in scenarios.toml. Raises Misconfigured."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(f"scenarios: {error}") from error
    found = {}
    for name, table in tables.items():
        phases = table.get("phases") if isinstance(table, dict) else None
        if not isinstance(phases, list) or not phases:
            raise Misconfigured(f"scenario {name}: phases {phases} - must be a list with at least one phase")
        parsed = tuple(parse_phase(f"scenario {name}, phase {i}", phase) for i, phase in enumerate(phases, 1))
        found[name] = Scenario(name, str(table.get("about", "")), parsed)
    return found


def choose(name: str, *, users: int | None = None, rate: float | None = None, seconds: float | None = None) -> Scenario:
    """A shipped scenario, or one of a .toml file (`FILE.toml` with one table, or `FILE.toml:NAME`), or a Mooncake trace (`FILE.jsonl`).

    Raises Misconfigured. `users` or `rate` turn it into one phase of that load; `seconds` is that phase's length, or rescales the whole.
    """
    if name.endswith((".jsonl", ".jsonl.gz")):
        return _of_trace(Path(name), users, rate, seconds)
    file, _, wanted = name.partition(".toml")
    path = Path(f"{file}.toml") if wanted or name.endswith(".toml") else SHIPPED
    if not path.is_file():
        raise Misconfigured(f"scenario: {path} - no such file")
    scenarios = parse_scenarios(path.read_text())
    key = name if path is SHIPPED else wanted.removeprefix(":") or next(iter(scenarios), "")
    if key not in scenarios:
        raise Misconfigured(f"scenario: {key} - must be one of {', '.join(scenarios)}, or a .toml file")
    scenario = scenarios[key]
    if users is not None or rate is not None:
        given = {"users": users, "rate": rate, "seconds": scenario.seconds if seconds is None else seconds}
        one = parse_phase("load", {k: v for k, v in given.items() if v is not None})
        return Scenario(scenario.name, scenario.about, (one,))
    if seconds is not None:
        factor = seconds / scenario.seconds
        phases = [{"users": p.users, "rate": p.rate, "seconds": p.seconds * factor} for p in scenario.phases]
        scaled = tuple(parse_phase("load", {k: v for k, v in p.items() if v is not None}) for p in phases)
        return Scenario(scenario.name, scenario.about, scaled)
    return scenario


def _of_trace(path: Path, users: int | None, rate: float | None, seconds: float | None) -> Scenario:
    if users is not None or rate is not None:
        raise Misconfigured(f"load: {path} - a trace says itself when each request comes; leave out --users and --rate")
    arrivals = read_mooncake(path)
    length = arrivals[-1].at_s
    if seconds is not None:
        if not 0 < seconds <= 86_400:
            raise Misconfigured(f"load: seconds {seconds} - must be above 0 and at most 86400")
        factor = seconds / length if length else 1.0
        arrivals, length = tuple(replace(a, at_s=a.at_s * factor) for a in arrivals), seconds
    return Scenario(path.name, "the arrivals of a trace", (Phase(max(length, 0.001), arrivals=arrivals),))
