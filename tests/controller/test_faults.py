"""The fault matrix: kill -9 at each step of an override, with the real controller, NATS and Caddy.

A row more is a name in `VICTIMS` with how it dies and comes back, a column more a step with what holds the line there. Dashboard and
router die in `bench/faults.py`, on a real cluster.
`-o log_cli=true --log-cli-level=INFO` shows the table of docs/measured.md.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
import msgspec
import pytest
from nats.js.errors import NoKeysError

from app.chain import chain
from controller import protocol
from controller.bus import Bus, connect
from controller.gateway import REPLICA, Gateway
from controller.protocol import Loop, Target, target_key
from poascope.errors import PoascopeError
from poascope.settings import Profile
from tests.conftest import NatsServer
from tests.controller.conftest import Caddy, intent, until

log = logging.getLogger("faults")

Step = Literal["intent written", "target written", "applied", "acknowledged"]
Victim = Literal["controller", "NATS", "gateway"]
STEPS: tuple[Step, ...] = ("intent written", "target written", "applied", "acknowledged")
VICTIMS: tuple[Victim, ...] = ("controller", "NATS", "gateway")
DEPLOYMENT = "dynamo"
# Five minutes is the least that an override may last; no test waits for that, so here, and in the controllers' processes, it is a second.
# Each controller is a process of its own. It takes a second of CPU to import all that it needs, so one process does that, and forks.
FORKS = """
import json, os, signal, sys
import controller.bus, controller.gateway, controller.guard, controller.loop, controller.protocol, httpx
from poascope.cli import main
controller.protocol.MIN_EXPIRY_S = 1.0
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    wanted = json.loads(line)
    if pid := os.fork():
        print(pid, flush=True)
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(wanted["folder"])
    os.environ["NATS_SERVER"] = wanted["nats"]
    for fd, (name, flags) in enumerate([("/dev/null", os.O_RDONLY), *[("control.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)] * 2]):
        os.dup2(os.open(name, flags), fd)
    sys.argv = ["poascope", "control"]
    main()
    os._exit(0)
"""
PATIENCE_S = 120.0


class Forks:
    """`poascope control`, as often as wanted. What still runs when this is closed is killed."""

    def __init__(self) -> None:
        known = {k: v for k, v in os.environ.items() if not k.startswith(("POASCOPE_", "DYN_", "NATS_"))}
        self.parent = subprocess.Popen([sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=known)

    def start(self, folder: Path, nats_url: str) -> int:
        assert self.parent.stdin
        assert self.parent.stdout
        self.parent.stdin.write(json.dumps({"folder": str(folder), "nats": nats_url}) + "\n")
        self.parent.stdin.flush()
        return int(self.parent.stdout.readline())

    async def kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            while True:
                os.kill(pid, 0)
                await asyncio.sleep(0.02)

    def close(self) -> None:
        self.parent.communicate()


@pytest.fixture
def forks() -> Iterator[Forks]:
    made = Forks()
    yield made
    made.close()


@dataclass(frozen=True)
class Cell:
    """Who is killed, at which step, and whether it comes back only when the override is over, or before: then somebody cancels it.

    `fixed`: the gateway has its first upstream in its configuration, and comes back with that; else it reads a file.
    """

    victim: Victim
    step: Step
    late: bool
    fixed: bool = False

    @property
    def unborn(self) -> bool:
        """The override is over before anybody could apply it."""
        return self.late and self.step == "intent written" and self.victim != "gateway"


class AdminDoor:
    """Stands before Caddy's admin API and holds what the gateway asks, before it is done or when it is done."""

    def __init__(self, caddy: Caddy, gateway: Gateway) -> None:
        self.caddy, self.gateway = caddy, gateway
        self.open = asyncio.Event()
        self.open.set()
        self.until_in_force: str | None = None

    def hold(self, *, until_in_force: str | None = None) -> None:
        """Everything from now on, or from when this profile is in force."""
        self.until_in_force = until_in_force
        self.open.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError, httpx.HTTPError, PoascopeError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                line, *headers = head.decode().split("\r\n")
                method, path, _ = line.split(" ")
                length = next((int(h.split(":")[1]) for h in headers if h.lower().startswith("content-length:")), 0)
                body = await reader.readexactly(length)
                if not self.open.is_set():
                    profile = await self.gateway.in_force()
                    if self.until_in_force in (None, profile and profile.name):
                        await self.open.wait()
                sent = {"content-type": "application/json"} if body else {}
                answer = await self.gateway.client.request(method, f"{self.caddy.admin_url}{path}", content=body, headers=sent)
                writer.write(f"HTTP/1.1 {answer.status_code} x\r\ncontent-length: {len(answer.content)}\r\n\r\n".encode() + answer.content)
                await writer.drain()


class Scene:
    """One deployment's line: NATS, the controller with the gateway's actuator, Caddy, and an operator with the page open."""

    def __init__(self, folder: Path, profiles: tuple[Profile, ...], http: httpx.AsyncClient, forks: Forks, *, fixed: bool) -> None:
        folder.mkdir()
        self.folder, self.profiles, self.forks = folder, profiles, forks
        self.nats = NatsServer(folder / "jetstream")
        self.caddy = Caddy(folder / "caddy", profiles[0].url.removeprefix("http://"), fixed=fixed)
        self.gateway = Gateway(self.caddy.admin_url, profiles, http)
        self.door = AdminDoor(self.caddy, self.gateway)
        self.control: int | None = None
        self.bus: Bus
        self.seen: list[tuple[float, str]] = []
        self.loops: list[Loop] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Scene"]:
        server = await asyncio.start_server(self.door.serve, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        tables = "".join(f'[[profiles]]\nname = "{p.name}"\ntau = {p.tau}\nomega = {p.omega}\nurl = "{p.url}"\n' for p in self.profiles)
        (self.folder / "poascope.toml").write_text(f'namespaces = ["{DEPLOYMENT}"]\ncaddy_admin_url = "{address}"\n{tables}')
        watching: asyncio.Task[None] | None = None
        try:
            await asyncio.gather(asyncio.to_thread(self.nats.start), asyncio.to_thread(self.caddy.start))
            self.start_control()
            async with connect(self.nats.url, patient=True) as self.bus:
                await self.bus.hear_loops(lambda _, loop: self.loops.append(loop))
                watching = asyncio.create_task(self._watch())
                yield self
                watching.cancel()
        finally:
            if self.control:
                await self.forks.kill(self.control)
            self.caddy.kill()
            self.nats.kill()
            self.door.open.set()
            server.close()
            if watching:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    def start_control(self) -> None:
        self.control = self.forks.start(self.folder, self.nats.url)

    async def _watch(self) -> None:
        """Where Caddy sends new requests, each time that this changes."""
        while True:
            await self.look()
            await asyncio.sleep(0.1)

    async def look(self) -> None:
        try:
            profile = await self.gateway.in_force()
            found = profile.name if profile else "another"
        except PoascopeError:
            found = "gone"
        if not self.seen or self.seen[-1][1] != found:
            self.seen.append((time.time(), found))

    async def in_force(self, name: str) -> bool:
        with contextlib.suppress(PoascopeError):
            profile = await self.gateway.in_force()
            return profile is not None and profile.name == name
        return False

    async def target(self, mode: str) -> Target | None:
        with contextlib.suppress(PoascopeError):
            found = (await self.bus.target(DEPLOYMENT)).value
            return found if found and found.mode == mode else None
        return None

    async def acknowledged(self) -> bool:
        with contextlib.suppress(PoascopeError):
            target, ack = await self.bus.target(DEPLOYMENT), await self.bus.ack(DEPLOYMENT, REPLICA)
            return bool(target.value and ack.value and ack.value.target_revision == target.revision and not ack.value.error)
        return False

    async def failed(self) -> bool:
        ack = (await self.bus.ack(DEPLOYMENT, REPLICA)).value
        return ack is not None and ack.error is not None

    async def screen(self) -> str:
        """What the chain on the page says now."""
        try:
            async with asyncio.timeout(5):
                shown = chain(await self.bus.state(DEPLOYMENT), None, time.time())
        except (PoascopeError, TimeoutError) as error:
            return f"NATS does not answer ({type(error).__name__})"
        return "; ".join(
            f"{link.name.lower()} {link.text} ({link.by})" if link.by else f"{link.name.lower()} {link.text}" for link in shown.links[:3]
        )

    async def cancel(self) -> float:
        """Press Cancel. Returns when (Unix s)."""
        now, seen = time.time(), (await self.bus.intent(DEPLOYMENT)).revision
        auto = intent(mode="auto", tau=None, omega=None, expires_at=None, expected_revision=seen, idempotency_key="cancel")
        await self.bus.put_intent(DEPLOYMENT, auto, now)
        return now

    def stop_controller(self) -> None:
        assert self.control
        os.kill(self.control, signal.SIGSTOP)

    async def kill(self, victim: Victim) -> None:
        assert self.control
        if victim == "controller":
            await self.forks.kill(self.control)
            return
        (self.nats if victim == "NATS" else self.caddy).kill()
        os.kill(self.control, signal.SIGCONT)

    async def bring_back(self, victim: Victim) -> None:
        if victim == "controller":
            self.start_control()
        else:
            await asyncio.to_thread(self.nats.start if victim == "NATS" else self.caddy.start)


async def reach(scene: Scene, step: Step, lasts_s: float) -> float:
    """Send an override and let it come as far as this step and no further. Returns its end (Unix s)."""
    match step:
        case "intent written":
            scene.stop_controller()
        case "target written":
            scene.door.hold()
        case "applied":
            scene.door.hold(until_in_force="tuned")
    ends = time.time() + lasts_s
    await scene.bus.put_intent(DEPLOYMENT, intent(tau=0.7, omega=1.0, expires_at=ends), time.time())
    match step:
        case "target written":
            await until(lambda: scene.target("manual"), PATIENCE_S)
        case "applied":
            await until(lambda: scene.in_force("tuned"), PATIENCE_S)
        case "acknowledged":
            await until(lambda: scene.in_force("tuned"), PATIENCE_S)
            await until(scene.acknowledged, PATIENCE_S)
    return ends


async def play(cell: Cell, folder: Path, profiles: tuple[Profile, ...], http: httpx.AsyncClient, forks: Forks) -> str:
    """One cell, and its line of the table."""
    async with Scene(folder, profiles, http, forks, fixed=cell.fixed).running() as scene:
        await until(scene.bus.controller_at, PATIENCE_S)
        await until(lambda: _acked(scene.bus), PATIENCE_S)
        ends = await reach(scene, cell.step, 15.0 if cell.late else 1800.0)
        await scene.kill(cell.victim)
        scene.door.open.set()
        if cell.victim == "gateway":
            await until(scene.failed, PATIENCE_S)
        died, back = await scene.screen(), ""
        if cell.late:
            await asyncio.sleep(max(0.0, ends - time.time()))
            if cell.victim == "gateway":
                await until(lambda: _over(scene, ends), PATIENCE_S)
            else:
                await until(lambda: scene.in_force("default"), PATIENCE_S)  # while its victim is still dead
            await asyncio.sleep(max(0.0, ends + 3 - time.time()))
        returned = time.time()
        await scene.bring_back(cell.victim)
        await until(lambda: _answers(scene.bus), PATIENCE_S)
        if not cell.late:
            await until(lambda: scene.in_force("tuned"), PATIENCE_S)
            await until(scene.acknowledged, PATIENCE_S)
            back = await scene.screen()
            ends = await scene.cancel()
        await until(lambda: _unborn(scene) if cell.unborn else _over(scene, ends), PATIENCE_S)
        await until(lambda: scene.in_force("default"), PATIENCE_S)
        if not cell.unborn:
            await until(scene.acknowledged, PATIENCE_S)
        await scene.look()
        ended = await scene.screen()
        targets: list[Target] = []
        with contextlib.suppress(NoKeysError):
            kv = await scene.bus.client.jetstream().key_value("poascope")
            targets = [msgspec.json.decode(entry.value or b"", type=Target) for entry in await kv.history(target_key(DEPLOYMENT))]
    overrides = [target for target in targets if target.mode == "manual"]
    assert len(overrides) == (0 if cell.unborn else 1), "applied once, unless it was over before anybody could"
    assert not cell.late or "tuned" not in [name for at, name in scene.seen if at >= returned], "who comes back finds it ended"
    assert cell.unborn or ("has expired" if cell.late else "alice asked for auto") in targets[-1].why
    moves = "; ".join(f"{name} {at - ends:+.1f} s" for at, name in scene.seen)
    victim = f"{cell.victim}, fixed" if cell.fixed else cell.victim
    return f"| {victim} | {cell.step} | {'after' if cell.late else 'before'} | {died} | {back} | {moves} | {ended} |"


async def _acked(bus: Bus) -> bool:
    with contextlib.suppress(PoascopeError):
        return (await bus.ack(DEPLOYMENT, REPLICA)).value is not None
    return False


async def _answers(bus: Bus) -> bool:
    with contextlib.suppress(PoascopeError):
        return await bus.controller_at() is not None
    return False


async def _unborn(scene: Scene) -> bool:
    return any("expired before it was applied" in loop.why for loop in scene.loops)


async def _over(scene: Scene, ends: float) -> bool:
    target = await scene.target("auto")
    return target is not None and target.decided_at >= ends


@pytest.mark.real
async def test_whoever_is_killed_an_override_is_applied_once_and_ends(
    tmp_path: Path, profiles: tuple[Profile, ...], http: httpx.AsyncClient, forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every cell the cluster ends where it should be; the override is in force at most once and never again after its end."""
    monkeypatch.setattr(protocol, "MIN_EXPIRY_S", 1.0)
    cells = [Cell(victim, step, late) for late in (False, True) for victim in VICTIMS for step in STEPS]
    cells += [Cell("gateway", step, late, fixed=True) for late in (False, True) for step in STEPS]
    async with asyncio.TaskGroup() as tasks:
        lines = [tasks.create_task(play(cell, tmp_path / f"{n}", profiles, http, forks)) for n, cell in enumerate(cells)]
    for line in lines:
        log.info("%s", line.result())
