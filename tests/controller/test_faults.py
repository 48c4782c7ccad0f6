"""The fault matrix: kill -9 at each step of an override, with the real controller, NATS and Caddy.

A row more is a name in `VICTIMS` with how it dies and comes back, a column more a step with what holds the line there.
`-o log_cli=true --log-cli-level=INFO` shows the table of docs/measured.md.
"""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
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
Victim = Literal["controller", "NATS"]
STEPS: tuple[Step, ...] = ("intent written", "target written", "applied", "acknowledged")
VICTIMS: tuple[Victim, ...] = ("controller", "NATS")
DEPLOYMENT = "dynamo"
# Five minutes is the least that an override may last; no test waits for that, so here, and in the controller's process, it is a second.
SHORT = "import controller.protocol as p; p.MIN_EXPIRY_S = 1.0; from poascope.cli import main; main()"
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Cell:
    """Who is killed, at which step, and whether it comes back only when the override is over, or before: then somebody cancels it."""

    victim: Victim
    step: Step
    late: bool


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
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError, httpx.HTTPError):
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

    def __init__(self, folder: Path, profiles: tuple[Profile, ...], http: httpx.AsyncClient) -> None:
        folder.mkdir()
        self.folder, self.profiles = folder, profiles
        self.nats, self.caddy = NatsServer(folder / "jetstream"), Caddy(folder / "caddy", profiles[0].url.removeprefix("http://"))
        self.gateway = Gateway(self.caddy.admin_url, profiles, http)
        self.door = AdminDoor(self.caddy, self.gateway)
        self.control: subprocess.Popen[bytes] | None = None
        self.bus: Bus
        self.seen: list[tuple[float, str | None]] = []
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
                self.control.kill()
                self.control.wait()
            self.caddy.kill()
            self.nats.kill()
            self.door.open.set()
            server.close()
            if watching:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    def start_control(self) -> None:
        known = {k: v for k, v in os.environ.items() if not k.startswith(("POASCOPE_", "DYN_", "NATS_"))}
        with (self.folder / "control.log").open("ab") as told:
            self.control = subprocess.Popen(
                [sys.executable, "-c", SHORT, "control"],
                env=known | {"NATS_SERVER": self.nats.url},
                cwd=self.folder,
                stdout=told,
                stderr=told,
            )

    async def _watch(self) -> None:
        """Where Caddy sends new requests, each time that this changes."""
        while True:
            await self.look()
            await asyncio.sleep(0.1)

    async def look(self) -> None:
        with contextlib.suppress(PoascopeError):
            profile = await self.gateway.in_force()
            if not self.seen or self.seen[-1][1] != (profile and profile.name):
                self.seen.append((time.time(), profile and profile.name))

    async def in_force(self, name: str) -> bool:
        profile = await self.gateway.in_force()
        return profile is not None and profile.name == name

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
        self.control.send_signal(signal.SIGSTOP)

    def kill(self, victim: Victim) -> None:
        assert self.control
        if victim == "NATS":
            self.nats.kill()
            self.control.send_signal(signal.SIGCONT)
        else:
            self.control.kill()
            self.control.wait()

    async def bring_back(self, victim: Victim) -> None:
        if victim == "NATS":
            await asyncio.to_thread(self.nats.start)
        else:
            self.start_control()


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


async def play(cell: Cell, folder: Path, profiles: tuple[Profile, ...], http: httpx.AsyncClient) -> str:
    """One cell, and its line of the table."""
    async with Scene(folder, profiles, http).running() as scene:
        await until(scene.bus.controller_at, PATIENCE_S)
        await until(lambda: _acked(scene.bus), PATIENCE_S)
        ends = await reach(scene, cell.step, 15.0 if cell.late else 1800.0)
        scene.kill(cell.victim)
        scene.door.open.set()
        died = await scene.screen()
        if cell.late:
            await asyncio.sleep(max(0.0, ends - time.time()))
            await until(lambda: scene.in_force("default"), PATIENCE_S)  # while its victim is still dead
            await asyncio.sleep(max(0.0, ends + 1 - time.time()))
        await scene.bring_back(cell.victim)
        await until(lambda: _answers(scene.bus), PATIENCE_S)
        if not cell.late:
            await until(lambda: scene.in_force("tuned"), PATIENCE_S)
            await until(scene.acknowledged, PATIENCE_S)
            back = await scene.screen()
            ends = await scene.cancel()
        unborn = cell.late and cell.step == "intent written"  # over before anybody could apply it
        await until(lambda: _over(scene, ends, unborn), PATIENCE_S)
        await until(lambda: scene.in_force("default"), PATIENCE_S)
        if not unborn:
            await until(scene.acknowledged, PATIENCE_S)
        await scene.look()
        ended = await scene.screen()
        targets: list[Target] = []
        with contextlib.suppress(NoKeysError):
            kv = await scene.bus.client.jetstream().key_value("poascope")
            targets = [msgspec.json.decode(entry.value or b"", type=Target) for entry in await kv.history(target_key(DEPLOYMENT))]
    overrides = [target for target in targets if target.mode == "manual"]
    assert len(overrides) == (0 if unborn else 1), "applied once, unless it was over before anybody could"
    assert unborn or ("has expired" if cell.late else "alice asked for auto") in targets[-1].why
    moves = "; ".join(f"{name} {at - ends:+.1f} s" for at, name in scene.seen)
    return (
        f"| {cell.victim} | {cell.step} | {'after' if cell.late else 'before'} | {died} | {'' if cell.late else back} | {moves} | {ended} |"
    )


async def _acked(bus: Bus) -> bool:
    with contextlib.suppress(PoascopeError):
        return (await bus.ack(DEPLOYMENT, REPLICA)).value is not None
    return False


async def _answers(bus: Bus) -> bool:
    with contextlib.suppress(PoascopeError):
        return await bus.controller_at() is not None
    return False


async def _over(scene: Scene, ends: float, unborn: bool) -> bool:
    if unborn:
        return any("expired before it was applied" in loop.why for loop in scene.loops)
    target = await scene.target("auto")
    return target is not None and target.decided_at >= ends


@pytest.mark.real
async def test_whoever_is_killed_an_override_is_applied_once_and_ends(
    tmp_path: Path, profiles: tuple[Profile, ...], http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every cell the cluster ends where it should be; the override is in force at most once and never again after its end."""
    monkeypatch.setattr(protocol, "MIN_EXPIRY_S", 1.0)
    cells = [Cell(victim, step, late) for late in (False, True) for victim in VICTIMS for step in STEPS]
    async with asyncio.TaskGroup() as tasks:
        lines = [tasks.create_task(play(cell, tmp_path / f"{n}", profiles, http)) for n, cell in enumerate(cells)]
    for line in lines:
        log.info("%s", line.result())
