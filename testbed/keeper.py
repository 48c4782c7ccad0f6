"""The process that keeps a testbed: starts everything in order, starts again what it is asked to, and ends everything.

Single-threaded, because the kernel's leash on each child is tied to the thread that started it. When the keeper dies, even by
SIGKILL, every child dies with it.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import httpx
import msgspec

from poascope.errors import PoascopeError
from testbed import discovery, environment, ports, probe
from testbed.gateway import caddy_config
from testbed.model import write_model, write_timing
from testbed.processes import Files, Process, plan
from testbed.state import Running, State, is_alive, read_state, signal_group, start_ticks, stop_all, write_state
from testbed.topology import Ports, Timing, parse_topology, plan_ports, profiles

LEASH = str(Path(__file__).parent / "leash.py")
WORKERS = ("prefill", "decode", "aggregated")
WATCHES = {"gateway": 39, "router": 28}  # inotify instances of all that discovers workers, by 1.6; 0.9 has 33 and 22
PATIENCE_S = 10.0  # a frontend needs up to 6 s to shut down
POLL_S = 0.1


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What to bring up. `nats_url`: a NATS server that runs already and is used instead of one of our own."""

    dynamo: str = environment.DEFAULT_VERSION
    topology: str = "1P/2D"
    timing: Timing = Timing()
    namespace: str = "dynamo"
    port_base: int | None = None
    nats_url: str = ""
    actuator: str = "gateway"


class Stop(BaseException):
    """Someone asked the keeper to end."""


class Keeper:
    def __init__(self, folder: Path, spec: Spec, tell: Callable[[str], None]) -> None:
        self.files, self.spec, self.tell = Files(folder.resolve()), spec, tell
        self.topology = parse_topology(spec.topology)
        self.ports: Ports = plan_ports(spec.port_base, len(self.topology.workers), spec.actuator)
        self.plan: tuple[Process, ...] = ()
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.state = State(
            phase="starting",
            detail="",
            keeper_pid=os.getpid(),
            keeper_started=start_ticks(os.getpid()) or 0,
            dynamo=spec.dynamo,
            topology=spec.topology,
            namespace=spec.namespace,
            model=str(self.files.model),
            gateway_url=f"http://127.0.0.1:{self.ports.gateway}",
            admin_url=f"http://127.0.0.1:{self.ports.admin}",
            nats_url=spec.nats_url or f"nats://127.0.0.1:{self.ports.nats}",
        )
        self.http = httpx.Client(timeout=20, trust_env=False)

    def run(self, on_ready: Callable[[State], None]) -> None:
        """Bring everything up, keep it until a signal, take everything down. Raises PoascopeError when it does not come up."""
        self.files.dir.mkdir(parents=True, exist_ok=True)
        with self._lock():
            reap_stale(self.files)
            previous = {number: signal.signal(number, _raise_stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
            failure = ""
            try:
                self._up()
                self._report("ready", "")
                on_ready(self.state)
                self._keep()
            except Stop:
                self.tell("stopping")
            except PoascopeError as error:
                failure = str(error)
                raise
            finally:
                # From here a second Ctrl-C takes the short way: the keeper dies and the kernel takes the children.
                for number in previous:
                    signal.signal(number, signal.SIG_DFL)
                self._down(failure)
                for number, handler in previous.items():
                    signal.signal(number, handler)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        with self.files.lock.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                state = read_state(self.files.state)
                pid = f" (pid {state.keeper_pid})" if state else ""
                where = self.files.dir
                raise PoascopeError(f"testbed: {where} - already running{pid}; poascope testbed down --dir {where}") from None
            yield

    def _up(self) -> None:
        theirs = {self.ports.nats, self.ports.nats_monitor} if self.spec.nats_url else set()
        ports.require_free(set(self.ports.all()) - theirs)
        discovery.require_watches(WATCHES[self.spec.actuator])
        python = environment.ensure(self.spec.dynamo, self.tell)
        programs = Path(sys.executable).parent
        self.plan = plan(
            version=self.spec.dynamo,
            python=python,
            programs=programs,
            files=self.files,
            topology=self.topology,
            ports=self.ports,
            namespace=self.spec.namespace,
            nats_url=self.spec.nats_url,
        )
        for folder in (self.files.discovery, self.files.jetstream, self.files.dir / "logs", self.files.dir / "wanted"):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        self.files.access_log.unlink(missing_ok=True)
        write_model(self.files.model)
        write_timing(self.files.timing, self.spec.timing)
        self.files.upstream.write_text(f"127.0.0.1:{self.ports.frontends[0]}")
        config = caddy_config(
            port=self.ports.gateway, admin_port=self.ports.admin, upstream=self.files.upstream, access_log=self.files.access_log
        )
        self.files.caddy_config.write_text(json.dumps(config, indent=1))
        self.files.config.write_text(self._poascope_toml())

        by_role = {role: [p for p in self.plan if p.role == role] for role in {p.role for p in self.plan}}
        for process in by_role.get("nats", []):
            self.tell("NATS")
            self._spawn(process)
            self._until(lambda: probe.nats_ready(self.http, self.ports.nats_monitor), 15, "NATS does not answer", ("nats",))
        # Workers first: a router or frontend that reads a registration while it is being written misses that worker for good.
        for kind, roles in (("workers", WORKERS), ("routers", ("router",))):
            processes = [p for p in self.plan if p.role in roles]
            if not processes:
                continue
            self.tell(f"{kind}: {', '.join(p.name for p in processes)}")
            for process in processes:
                self._spawn(process)
            names = tuple(p.name for p in processes)
            self._until(lambda names=names: self._registered(names), 60, f"{kind} did not register", names)  # type: ignore[misc]
        self.tell("frontends")
        for process in by_role["frontend"]:
            self._spawn(process)
        for process in by_role["frontend"]:
            self._ready_frontend(process)
        self.tell("gateway")
        gateway = by_role["gateway"][0]
        self._spawn(gateway)
        self._answers(gateway)

    def _keep(self) -> None:
        """Report deaths, and start what `Cluster.start` asks for."""
        reported: set[int] = set()
        while True:
            time.sleep(POLL_S)
            for name, child in self.children.items():
                if child.poll() is not None and child.pid not in reported:
                    reported.add(child.pid)
                    self.tell(f"{name} ended ({_ending(child)}); start it again with: poascope testbed start {name}")
                    self._report("ready", f"{name} ended ({_ending(child)})")
            for process in self.plan:
                wanted = self.files.wanted(process.name)
                if wanted.exists():
                    wanted.unlink()
                    try:
                        self._restart(process)
                        self._report("ready", f"{process.name} started")
                    except PoascopeError as error:
                        self.tell(str(error))
                        self._report("ready", str(error))

    def _restart(self, process: Process) -> None:
        child = self.children.get(process.name)
        if child and child.poll() is None:
            raise PoascopeError(f"{process.name}: pid {child.pid} - runs already")
        ports.require_free((process.port,))
        former = self.state.process(process.name)
        # A killed worker stays registered for about 10 s, and requests sent to it fail until then. A new one that registers before
        # that is overlooked by nearly every frontend of 0.9, later ones by half of them.
        self._until(lambda: not self._is_registered(former), 60, f"the former {process.name} stays registered", ())
        self._spawn(process)
        if process.role == "nats":
            self._until(lambda: probe.nats_ready(self.http, self.ports.nats_monitor), 15, "NATS does not answer", ("nats",))
        elif process.role == "frontend":
            self._ready_frontend(process)
        elif process.role == "gateway":
            self._answers(process)
        else:
            self._until(lambda: self._registered((process.name,)), 60, f"{process.name} did not register", (process.name,))
            for frontend in self.plan:
                if frontend.role == "frontend" and self._lives(frontend.name):
                    self._ready_frontend(frontend)

    def _ready_frontend(self, frontend: Process) -> None:
        """A completed request, and every living worker used.

        With file discovery a frontend may overlook a worker for good (0.9 often does when one registers while it runs): started
        again, it finds all.
        """
        missing: set[str] = set()
        for attempt in (1, 2, 3):
            try:
                self._answers(frontend, 60 if attempt == 3 else 30)
            except PoascopeError:
                # It overlooked all of them, or the routers.
                if attempt == 3 or not self._lives(frontend.name):
                    raise
                self.tell(f"{frontend.name} serves nothing: starting it again")
                self._kill(frontend.name)
                self._spawn(frontend)
                continue
            by_name = self._missed(frontend)
            missing = {worker for workers in by_name.values() for worker in workers}
            if not missing:
                return
            if attempt < 3:
                for name, workers in by_name.items():
                    self.tell(f"{name} missed worker {', '.join(sorted(workers))}: starting it again")
                    self._kill(name)
                    former = self.state.process(name)
                    self._until(lambda former=former: not self._is_registered(former), 60, f"{name} stays registered", ())  # type: ignore[misc]
                    self._spawn(next(p for p in self.plan if p.name == name))
                routers = tuple(name for name in by_name if name != frontend.name)
                self._until(lambda routers=routers: self._registered(routers), 60, "routers did not register", routers)  # type: ignore[misc]
        raise PoascopeError(f"{frontend.name}: never uses worker {', '.join(sorted(missing))} - {self._tail(frontend.name)}")

    def _missed(self, frontend: Process) -> dict[str, set[str]]:
        """Frontend, or router, to the ids of the living workers that it overlooks; a router says what it knows."""
        living = {p.worker_id for p in self.state.processes if p.worker_id and p.role in WORKERS and self._lives(p.name)}
        routers = [p for p in self.plan if p.role == "router" and self._lives(p.name)]
        if routers:
            known = {p.name: probe.workers_known(self.http, p.base_url, living) for p in routers}
            return {name: living - workers for name, workers in known.items() if living - workers}
        missing = self._overlooked(frontend, living)
        return {frontend.name: missing} if missing else {}

    def _overlooked(self, frontend: Process, living: set[str]) -> set[str]:
        """Those of the workers that serve none of many requests to that frontend."""
        missing = set(living)
        deadline = time.monotonic() + 3
        while missing and time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError):
                missing -= probe.workers_used(self.http, frontend.base_url, str(self.files.model), 4 * len(self.topology.workers))
        return missing

    def _answers(self, process: Process, timeout_s: float = 60) -> None:
        trouble = "no answer yet"

        def completed() -> bool:
            nonlocal trouble
            trouble = probe.complete(self.http, process.base_url, str(self.files.model)) or ""
            return not trouble

        names = tuple(self.children) if self.state.phase == "starting" else (process.name,)
        self._until(completed, timeout_s, lambda: f"{process.name} completes no request ({trouble})", names, process.name)

    def _registered(self, names: tuple[str, ...]) -> bool:
        """Whether each of these workers is registered; learns their ids."""
        ids = discovery.worker_of_pid(self.files.discovery)
        known = tuple(
            msgspec.structs.replace(p, worker_id=ids.get(p.pid, p.worker_id)) if p.name in names else p for p in self.state.processes
        )
        if known != self.state.processes:
            self._report(self.state.phase, self.state.detail, known)
        return all(any(p.name == name and p.worker_id for p in known) for name in names)

    def _is_registered(self, former: Running | None) -> bool:
        return former is not None and former.worker_id is not None and former.worker_id in discovery.worker_instances(self.files.discovery)

    def _until(
        self, done: Callable[[], bool], timeout_s: float, otherwise: str | Callable[[], str], watch: tuple[str, ...], subject: str = ""
    ) -> None:
        """Poll until done. A watched process that ends, or too long a wait, raises PoascopeError with the tail of its log."""
        deadline = time.monotonic() + timeout_s
        while not done():
            for name in watch:
                child = self.children[name]
                if child.poll() is not None:
                    raise PoascopeError(f"{name}: ended while starting ({_ending(child)}) - {self._tail(name)}")
            if time.monotonic() > deadline:
                what = otherwise if isinstance(otherwise, str) else otherwise()
                raise PoascopeError(f"testbed: {what} after {timeout_s:.0f} s - {self._tail(subject or watch[0])}")
            time.sleep(POLL_S)

    def _spawn(self, process: Process) -> None:
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("DYN_", "NATS_", "PYTHON", "VIRTUAL_ENV"))}
        log = self.files.log(process.name)
        with log.open("ab") as output:
            child = subprocess.Popen(
                [sys.executable, "-S", "-E", LEASH, str(os.getpid()), *process.argv],
                env=environ | dict(process.env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.files.dir,
                start_new_session=True,
            )
        self.children[process.name] = child
        running = Running(process.name, process.role, child.pid, start_ticks(child.pid) or 0, process.base_url, str(log))
        others = tuple(p for p in self.state.processes if p.name != process.name)
        self._report(self.state.phase, self.state.detail, (*others, running))

    def _kill(self, name: str) -> None:
        child = self.children[name]
        running = self.state.process(name)
        if running:
            signal_group(running, signal.SIGKILL)
        child.wait()

    def _lives(self, name: str) -> bool:
        return name in self.children and self.children[name].poll() is None

    def _report(self, phase: str, detail: str, processes: tuple[Running, ...] | None = None) -> None:
        order = [p.name for p in self.plan]
        kept = sorted(self.state.processes if processes is None else processes, key=lambda p: order.index(p.name))
        self.state = msgspec.structs.replace(self.state, phase=phase, detail=detail, processes=tuple(kept))
        write_state(self.files.state, self.state)

    def _tail(self, name: str) -> str:
        path = self.files.log(name)
        lines = path.read_text(errors="replace").splitlines()[-12:] if path.exists() else []
        return f"{path} ends:\n" + "\n".join(f"  {line}" for line in lines) if lines else f"{path} is empty"

    def _poascope_toml(self) -> str:
        """What `poascope up --config` needs to watch this testbed. JSON strings and arrays are TOML's too."""
        lines = [
            f"nats_url = {json.dumps(self.state.nats_url)}",
            f"scrape = {json.dumps([p.base_url for p in self.plan if p.scraped])}",
        ]
        if profiles(self.ports):
            lines += [f"caddy_admin_url = {json.dumps(self.state.admin_url)}", f"gateway_namespace = {json.dumps(self.spec.namespace)}"]
        for profile in profiles(self.ports):
            lines += [
                "",
                "[[profiles]]",
                f"name = {json.dumps(profile.name)}",
                f"tau = {profile.tau}",
                f"omega = {profile.omega}",
                f"url = {json.dumps(profile.url)}",
            ]
        return "\n".join(lines) + "\n"

    def _down(self, failure: str) -> None:
        self.http.close()
        if self.state.processes:
            self._report("failed" if failure else "stopping", failure)
        # NATS last, so that Dynamo can say goodbye.
        nats = tuple(p for p in self.state.processes if p.role == "nats")
        stop_all(tuple(p for p in self.state.processes if p.role != "nats"), PATIENCE_S)
        stop_all(nats, PATIENCE_S)
        self.files.config.unlink(missing_ok=True)
        self.files.state.unlink(missing_ok=True)


def reap_stale(files: Files) -> list[str]:
    """Kill what a keeper that is gone may have left, and forget its state. Returns the names of what was killed."""
    state = read_state(files.state)
    if state is None:
        return []
    left = tuple(p for p in state.processes if is_alive(p.pid, p.started))
    for process in left:
        signal_group(process, signal.SIGKILL)
    stop_all(left, 2)
    files.config.unlink(missing_ok=True)
    files.state.unlink(missing_ok=True)
    return [process.name for process in left]


def _ending(child: subprocess.Popen[bytes]) -> str:
    code = child.returncode
    return signal.Signals(-code).name if code and code < 0 else f"exit {code}"


def _raise_stop(number: int, frame: FrameType | None) -> None:
    raise Stop


def main() -> None:
    """`python -m testbed.keeper DIR SPEC`: the keeper of a detached testbed, its story on stdout."""
    folder, spec = Path(sys.argv[1]), msgspec.json.decode(sys.argv[2].encode(), type=Spec)

    def tell(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    try:
        Keeper(folder, spec, tell).run(lambda state: tell("ready"))
    except PoascopeError as error:
        tell(f"failed: {error}")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
