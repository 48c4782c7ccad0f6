"""What a testbed consists of: `1P/2D`, its timing, its ports, its frontends. Pure."""

import re
from dataclasses import dataclass

from poascope.errors import Misconfigured
from poascope.settings import Profile

BLOCK_TOKENS = 16
MAX_WORKERS = 16
# name, τ, ω: the paper's three regimes, in the order of the ports; new requests start on the first.
REGIMES = (("below", 0.0, 1.0), ("transition", 0.7, 1.0), ("saturated", 0.8, 0.1))
# gateway: a frontend for each regime, Caddy chooses one. router: one frontend, and routers that take any parameters from the controller.
ACTUATORS = ("gateway", "router")
ROUTERS = 2


@dataclass(frozen=True, slots=True)
class Topology:
    """How many workers of each kind; aggregated workers do both jobs and exclude the other two."""

    prefill: int
    decode: int
    aggregated: int = 0

    @property
    def workers(self) -> tuple[tuple[str, str], ...]:
        """(name, role) of every worker process."""
        counts = (("prefill", self.prefill), ("decode", self.decode), ("aggregated", self.aggregated))
        return tuple((f"{role}-{i}", role) for role, count in counts for i in range(1, count + 1))


@dataclass(frozen=True, slots=True)
class Timing:
    """The mocker's clock: prefill of n tokens takes `base + n · per token`; one decode step takes about the ITL."""

    prefill_base_ms: float = 5.0
    prefill_token_ms: float = 0.39
    itl_ms: float = 20.0


@dataclass(frozen=True, slots=True)
class Ports:
    """Every port of one testbed. A base shifts them all into one block of 200."""

    frontends: tuple[int, ...]
    gateway: int
    admin: int
    nats: int
    nats_monitor: int
    workers: tuple[int, ...]
    routers: tuple[int, ...] = ()

    def all(self) -> tuple[int, ...]:
        return (self.nats, self.nats_monitor, *self.workers, *self.routers, *self.frontends, self.gateway, self.admin)


def parse_topology(text: str) -> Topology:
    """`1P/2D` or `2A`. Raises Misconfigured."""
    if pair := re.fullmatch(r"(\d+)P/(\d+)D", text.strip(), re.IGNORECASE):
        topology = Topology(int(pair[1]), int(pair[2]))
        least = min(topology.prefill, topology.decode)
    elif alone := re.fullmatch(r"(\d+)A", text.strip(), re.IGNORECASE):
        topology = Topology(0, 0, int(alone[1]))
        least = topology.aggregated
    else:
        raise Misconfigured(f"topology: {text} - must be like 1P/2D (prefill/decode) or 2A (aggregated)")
    if least < 1 or len(topology.workers) > MAX_WORKERS:
        raise Misconfigured(f"topology: {text} - needs at least one worker of each kind and at most {MAX_WORKERS} in all")
    return topology


def parse_timing(text: str) -> Timing:
    """`5/0.39/20`: prefill base ms, prefill ms per token, ITL ms. Raises Misconfigured."""
    try:
        base, token, itl = (float(part) for part in text.split("/"))
    except ValueError:
        raise Misconfigured(f"timing: {text} - must be like 5/0.39/20 (prefill base ms / ms per token / ITL ms)") from None
    if not (0 <= base <= 60_000 and 0 < token <= 1_000 and 1 <= itl <= 10_000):
        raise Misconfigured(f"timing: {text} - base within 0 and 60000 ms, token above 0 up to 1000 ms, ITL within 1 and 10000 ms")
    return Timing(base, token, itl)


def plan_ports(base: int | None, workers: int, actuator: str = "gateway") -> Ports:
    """Dynamo's, NATS's and Caddy's usual ports, or a block of 200 that starts at `base`. Raises Misconfigured."""
    if actuator not in ACTUATORS:
        raise Misconfigured(f"actuator: {actuator} - must be one of {', '.join(ACTUATORS)}")
    frontends, routers = (len(REGIMES), 0) if actuator == "gateway" else (1, ROUTERS)

    def some(first: int, count: int) -> tuple[int, ...]:
        return tuple(range(first, first + count))

    if base is None:
        return Ports(some(8000, frontends), 8080, 2019, 4222, 8222, some(9101, workers), some(8091, routers))
    if not 1024 <= base <= 65_300:
        raise Misconfigured(f"port-base: {base} - must be within 1024 and 65300")
    return Ports(some(base, frontends), base + 80, base + 19, base + 22, base + 23, some(base + 101, workers), some(base + 91, routers))


def profiles(ports: Ports) -> tuple[Profile, ...]:
    """The frontends behind the gateway, one for each regime; none where routers take any parameters."""
    if ports.routers:
        return ()
    return tuple(
        Profile(name, tau, omega, f"http://127.0.0.1:{port}") for (name, tau, omega), port in zip(REGIMES, ports.frontends, strict=True)
    )
