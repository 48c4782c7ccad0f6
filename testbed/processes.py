"""The command line and environment of every process of a testbed. Pure; the differences between Dynamo's versions live here."""

from dataclasses import dataclass
from pathlib import Path

from testbed.topology import BLOCK_TOKENS, REGIMES, Ports, Topology

ROUTER = Path(__file__).parents[1] / "controller" / "router.py"  # runs by its path, in Dynamo's environment


@dataclass(frozen=True, slots=True)
class Process:
    """One process to run. `base_url` answers /metrics where `scraped`; `env` adds to the cleaned environment."""

    name: str
    role: str
    port: int
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    scraped: bool = False

    @property
    def base_url(self) -> str:
        return f"{'nats' if self.role == 'nats' else 'http'}://127.0.0.1:{self.port}"


@dataclass(frozen=True, slots=True)
class Files:
    """Where things are in the state dir."""

    dir: Path

    @property
    def model(self) -> Path:
        return self.dir / "model"

    @property
    def timing(self) -> Path:
        return self.dir / "timing.npz"

    @property
    def discovery(self) -> Path:
        return self.dir / "discovery"

    @property
    def jetstream(self) -> Path:
        return self.dir / "jetstream"

    @property
    def access_log(self) -> Path:
        return self.dir / "access.jsonl"

    @property
    def upstream(self) -> Path:
        return self.dir / "upstream"

    @property
    def caddy_config(self) -> Path:
        return self.dir / "caddy.json"

    @property
    def config(self) -> Path:
        return self.dir / "poascope.toml"

    @property
    def state(self) -> Path:
        return self.dir / "state.json"

    @property
    def lock(self) -> Path:
        return self.dir / "lock"

    def log(self, name: str) -> Path:
        return self.dir / "logs" / f"{name}.log"

    def wanted(self, name: str) -> Path:
        return self.dir / "wanted" / name


def _is_09(version: str) -> bool:
    return version.startswith("0.9")


def plan(
    *, version: str, python: Path, programs: Path, files: Files, topology: Topology, ports: Ports, namespace: str, nats_url: str = ""
) -> tuple[Process, ...]:
    """Every process in the order in which they start: NATS (unless `nats_url` names one that runs), workers, routers where the ports have
    any, frontends, gateway."""
    dynamo_env = (
        ("NATS_SERVER", nats_url or f"nats://127.0.0.1:{ports.nats}"),
        ("HF_HUB_OFFLINE", "1"),
        ("DYN_LOG", "warn"),
        ("DYN_EVENT_PLANE", "nats"),
        # 0.9 reads the first name, 1.x the second.
        ("DYN_STORE_KV", "file"),
        ("DYN_DISCOVERY_BACKEND", "file"),
        ("DYN_FILE_KV", str(files.discovery)),
        # Loopback everywhere; without these, Dynamo looks for the address of a network card.
        ("DYN_TCP_RPC_HOST", "127.0.0.1"),
        # An address to 1.6 and the name of an interface to 1.4; 0.9 does not know it.
        ("DYN_TCP_RESPONSE_STREAM_HOST", "lo" if version.startswith("1.4") else "127.0.0.1"),
        ("DYN_SYSTEM_HOST", "127.0.0.1"),
        ("DYN_NAMESPACE", namespace),
    )
    nats = Process(
        "nats",
        "nats",
        ports.nats,
        (
            *(str(programs / "nats-server"), "-js", "-sd", str(files.jetstream)),
            *("-a", "127.0.0.1", "-p", str(ports.nats), "-m", str(ports.nats_monitor)),
        ),
    )
    workers = tuple(
        Process(
            name,
            role,
            port,
            (
                *(str(python), "-m", "dynamo.mocker", "--model-path", str(files.model), "--num-workers", "1"),
                *("--block-size", str(BLOCK_TOKENS), "--planner-profile-data", str(files.timing)),
                *("--endpoint", f"dyn://{namespace}.{'prefill' if role == 'prefill' else 'backend'}.generate"),
                *_role_flags(version, role),
            ),
            (*dynamo_env, ("DYN_SYSTEM_PORT", str(port))),
            scraped=True,
        )
        for (name, role), port in zip(topology.workers, ports.workers, strict=True)
    )
    routers = tuple(
        Process(
            f"router-{i}",
            "router",
            port,
            (
                *(str(python), str(ROUTER), "--model-path", str(files.model), "--block-size", str(BLOCK_TOKENS)),
                *("--worker", f"dyn://{namespace}.backend.generate"),
                *(("--prefill", f"dyn://{namespace}.prefill.generate") if topology.prefill else ()),
                *("--serve", f"dyn://{namespace}-front.router.generate", "--replica", f"router-{i}"),
            ),
            (*dynamo_env, ("DYN_SYSTEM_PORT", str(port))),
        )
        for i, port in enumerate(ports.routers, 1)
    )
    shared = ("--http-host", "127.0.0.1", "--kv-cache-block-size", str(BLOCK_TOKENS))
    frontends = tuple(
        Process(
            f"frontend-{regime}",
            "frontend",
            port,
            (
                *(str(python), "-m", "dynamo.frontend", "--router-mode", "kv", "--router-replica-sync", *shared),
                *("--http-port", str(port), "--namespace", namespace, "--router-temperature", str(tau)),
                # 0.9's ω weighs the blocks left to prefill; 1.x calls that weight the prefill load scale.
                *("--kv-overlap-score-weight" if _is_09(version) else "--router-prefill-load-scale", str(omega)),
            ),
            dynamo_env,
            scraped=True,
        )
        for (regime, tau, omega), port in zip(REGIMES, ports.frontends, strict=False)
    )
    if routers:
        # In a namespace of its own the routers are the only model that it finds.
        path = (str(python), "-m", "dynamo.frontend", "--router-mode", "round-robin", *shared)
        port, front = ports.frontends[0], f"{namespace}-front"
        argv = (*path, "--http-port", str(port), "--namespace", front)
        frontends = (Process("frontend", "frontend", port, argv, (*dynamo_env, ("DYN_NAMESPACE", front)), scraped=True),)
    gateway = Process(
        "gateway",
        "gateway",
        ports.gateway,
        (str(programs / "caddy"), "run", "--config", str(files.caddy_config)),
        (("XDG_CONFIG_HOME", str(files.dir / "caddy")), ("XDG_DATA_HOME", str(files.dir / "caddy"))),
    )
    return (*(() if nats_url else (nats,)), *workers, *routers, *frontends, gateway)


def _role_flags(version: str, role: str) -> tuple[str, ...]:
    if role == "aggregated":
        return ()
    return (f"--is-{role}-worker",) if _is_09(version) else ("--disaggregation-mode", role)
