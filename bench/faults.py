"""The fault matrix's expensive rows: kill -9 of the dashboard, or of one of two routers, at each step of an override, on a real cluster.

Run: python bench/faults.py [--victim dashboard|router] [--dynamo 1.6.1]. Prints one line for each cell; ends with 1 when a final state is
wrong. The cheap rows (controller, NATS, gateway) are tests/controller/test_faults.py, on every run of the suite.

No step is a matter of luck: NATS, the controller or the routers are stopped (SIGSTOP), or what routers acknowledge is held on its way to
NATS, until the step is reached. The dashboard's overrides are pressed in a browser, with a "15 min" that lasts some seconds.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
from nats.aio.msg import Msg
from playwright.async_api import Page, async_playwright

from app.tokens import Tokens
from collectors.wire import Added, Message, Routed, decode
from controller import protocol
from controller.bus import Bus, connect
from controller.protocol import Intent, Target
from poascope.errors import PoascopeError
from testbed.cluster import Cluster
from testbed.keeper import Spec
from testbed.model import WORDS
from testbed.ports import free_base

protocol.MIN_EXPIRY_S = 1.0
PROGRAMS = Path(sys.executable).parent
LASTS_S = {"before": 40.0, "after": 15.0}
SHORT = "import controller.protocol as p; p.MIN_EXPIRY_S = 1.0; "
DASH = SHORT + "import app.override as o; o.EXPIRIES['15 min'] = {lasts}; "
MAIN = "from poascope.cli import main; main()"
STEPS = ("intent written", "target written", "applied", "acknowledged")
OVERRIDE, SAFE = (0.7, 1.0), (0.0, 1.0)
LATEST_S = 3.0  # past its end: 2 s are the controller's, and a router is asked each 0.1 s
BROWSER = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


class Door:
    """Between the routers and NATS. An acknowledgement that comes while it is shut waits, and never arrives: then its connection is cut."""

    def __init__(self, port: int) -> None:
        self.port, self.open = port, asyncio.Event()
        self.open.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there, away = await asyncio.open_connection("127.0.0.1", self.port)
            await asyncio.gather(self._pass(reader, away, b".ack.router"), self._pass(there, writer, None))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, held: bytes | None) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if held and held in data and not self.open.is_set():
                    await self.open.wait()
                    return
                writer.write(data)
                await writer.drain()


@dataclass
class Heard:
    """What the cluster did: requests that ended well or not (Unix s), whose router spoke, and under what each was routed."""

    well: list[float] = field(default_factory=list)
    badly: list[float] = field(default_factory=list)
    routers: list[tuple[float, int]] = field(default_factory=list)
    routed: list[tuple[float, tuple[float, float]]] = field(default_factory=list)

    def note(self, message: Msg) -> None:
        said = decode(message.subject, message.data)
        for event in said.events if isinstance(said, Message) else ():
            if isinstance(event, Added):
                self.routers.append((time.time(), event.router_id))
            elif isinstance(event, Routed):
                self.routed.append((time.time(), (event.tau, event.omega)))

    async def user(self, url: str, model: str) -> None:
        rng = random.Random()
        async with httpx.AsyncClient(timeout=20, trust_env=False) as http:
            while True:
                text = " ".join(rng.choices(WORDS, k=40))
                body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 8}
                try:
                    answer = await http.post(f"{url}/v1/chat/completions", json=body)
                    (self.well if answer.status_code == 200 else self.badly).append(time.time())
                except httpx.HTTPError:
                    self.badly.append(time.time())
                await asyncio.sleep(0.2)


async def until(what: str, true: Callable[[], Awaitable[Any]], timeout_s: float = 90) -> Any:
    deadline = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(PoascopeError, httpx.HTTPError):
            if answer := await true():
                return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s:.0f} s")
        await asyncio.sleep(0.1)


class Scene:
    """The cluster with two routers, the whole of poascope on it, users, and an operator with the Control page open."""

    def __init__(
        self, cluster: Cluster, folder: Path, nats: subprocess.Popen[bytes], nats_url: str, door: Door, bus: Bus, page: Page
    ) -> None:
        self.cluster, self.folder, self.nats, self.door, self.bus, self.page = cluster, folder, nats, door, bus, page
        base = free_base()
        self.dash, self.token = f"http://127.0.0.1:{base + 1}", Tokens(folder / "operators.json").add("ann")
        self.env = os.environ | {
            "POASCOPE_CONFIG": str(cluster.files.config),
            "POASCOPE_STORE": str(folder / "faults.duckdb"),
            "POASCOPE_API_PORT": str(base),
            "POASCOPE_DASH_PORT": str(base + 1),
            "POASCOPE_OPERATORS_FILE": str(folder / "operators.json"),
            "NATS_SERVER": nats_url,
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.heard = Heard()
        self.http = httpx.AsyncClient(timeout=2, trust_env=False)
        self.at: dict[str, list[tuple[float, tuple[float, float]]]] = {"router-1": [], "router-2": []}
        self.when = "before"

    def start(self, name: str) -> None:
        code = {"dash": DASH.format(lasts=LASTS_S[self.when]), "control": SHORT}.get(name, "") + MAIN
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen([sys.executable, "-c", code, name], env=self.env, stdout=log, stderr=log)

    def signal(self, number: signal.Signals, *names: str) -> None:
        for name in names:
            if process := self.processes.get(name):
                process.send_signal(number)
            elif name == "nats":
                self.nats.send_signal(number)
            else:
                os.kill(self.cluster.pids[name], number)

    async def open_page(self) -> None:
        await until("dashboard", lambda: self._get(f"{self.dash}/_stcore/health"))
        await self.page.context.request.post(f"{self.dash}/operator", form={"token": self.token}, max_redirects=0)
        await self.page.goto(f"{self.dash}/control")
        # Who presses before the chain is there has seen nothing, and is refused.
        await self.page.locator("[data-link=wanted]").filter(has_not_text="unknown").wait_for(timeout=60_000)

    async def _get(self, url: str) -> Any:
        return (await self.http.get(url)).raise_for_status().content

    async def watch_routers(self) -> None:
        """What each router says is in force, whenever that changes."""
        while True:
            for name, seen in self.at.items():
                with contextlib.suppress(httpx.HTTPError, PoascopeError, AttributeError):
                    said = await self.status(name)
                    pair = said["tau"], said["omega"]
                    if not seen or seen[-1][1] != pair:
                        seen.append((time.time(), pair))
            await asyncio.sleep(0.1)

    async def status(self, name: str) -> dict[str, Any]:
        process = self.cluster.state.process(name)
        assert process
        return dict((await self.http.get(f"{process.base_url}/engine/poascope")).raise_for_status().json())

    async def in_force(self, *names: str) -> bool:
        """All of these routers go by the newest target."""
        revision = (await self.bus.target("dynamo")).revision
        return all([(await self.status(name))["target_revision"] == revision for name in names])

    async def acknowledged(self, *names: str) -> bool:
        state = await self.bus.state("dynamo")
        acks = [state.acks[name].value if name in state.acks else None for name in names]
        return all(ack and ack.target_revision == state.target.revision and ack.error is None for ack in acks)

    async def screen(self) -> str:
        """The chain as the browser has it now, and what the page complains of."""
        told: list[str] = await self.page.evaluate(
            """() => [...document.querySelectorAll('[data-link], .pw-run, [role=alert], .pw-down, [data-source=dash]')]
               .filter((node) => node.checkVisibility())
               .map((node) => (node.dataset.link ? node.dataset.link + " " : "") +
                              (node.dataset.source ? node.innerText.split("\\n").slice(0, 2).join(" ") : node.innerText))"""
        )
        return "; ".join(" ".join(text.split()) for text in told if text.strip())

    async def press(self) -> None:
        await self.page.get_by_text("transition: ").click(timeout=60_000)
        await self.page.get_by_label("Reason").fill("fault matrix")
        await self.page.get_by_role("button", name="Review").click()
        await self.page.get_by_role("button", name="Confirm").click(timeout=60_000)

    async def write(self, mode: str, lasts_s: float | None) -> None:
        now = time.time()
        intent = Intent(
            mode=mode,  # type: ignore[arg-type]
            tau=OVERRIDE[0] if lasts_s else None,
            omega=OVERRIDE[1] if lasts_s else None,
            reason="fault matrix",
            operator="ann",
            idempotency_key=str(now),
            expected_revision=(await self.bus.intent("dynamo")).revision,
            expires_at=now + lasts_s if lasts_s else None,
        )
        await self.bus.put_intent("dynamo", intent, now)

    async def reach(self, victim: str, step: str) -> tuple[int, float]:
        """Have an override come as far as this step and no further. Returns its revision and its end (Unix s)."""
        before = (await self.bus.intent("dynamo")).revision
        if step == "intent written":
            self.signal(signal.SIGSTOP, "control")
        elif step == "target written":
            self.signal(signal.SIGSTOP, "router-1", "router-2")
        elif step == "applied":
            self.door.open.clear()
        if victim == "dashboard":
            await self.press()
        else:
            await self.write("manual", 1800.0 if self.when == "before" else LASTS_S["after"])
        await until("intent", lambda: self._newer(before))
        stored = await self.bus.intent("dynamo")
        assert stored.value
        assert stored.value.expires_at
        if step != "intent written":
            await until("target", lambda: self._set(stored.revision))
        if step in ("applied", "acknowledged"):
            await until("applied", lambda: self.in_force(*self.at))
        if step == "acknowledged":
            await until("acknowledged", lambda: self.acknowledged(*self.at))
        return stored.revision, stored.value.expires_at

    async def _newer(self, revision: int) -> bool:
        return (await self.bus.intent("dynamo")).revision > revision

    async def _set(self, revision: int) -> bool:
        target = (await self.bus.target("dynamo")).value
        return target is not None and target.intent_revision == revision

    async def release(self, victim: str) -> None:
        self.door.open.set()
        self.signal(signal.SIGCONT, "control", "router-2", *(("router-1",) if victim == "dashboard" else ()))

    async def auto(self) -> bool:
        target = (await self.bus.target("dynamo")).value
        return target is not None and target.mode == "auto"


@contextlib.asynccontextmanager
async def scene(folder: Path, dynamo: str, port_base: int | None) -> AsyncIterator[Scene]:
    base = free_base()
    direct, url = f"nats://127.0.0.1:{base}", f"nats://127.0.0.1:{base + 1}"
    command = [PROGRAMS / "nats-server", "-js", "-sd", folder / "js", "-a", "127.0.0.1", "-p", str(base)]
    nats = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    door = Door(base)
    server = await asyncio.start_server(door.serve, "127.0.0.1", base + 1)
    spec = Spec(dynamo=dynamo, port_base=port_base or free_base(), actuator="router", nats_url=url)
    made: Scene | None = None
    cluster: Cluster | None = None
    tasks: list[asyncio.Task[None]] = []
    try:
        cluster = await asyncio.to_thread(Cluster.up, folder / "tb", spec, leashed=True)
        async with connect(direct, patient=True) as bus, async_playwright() as driver:
            browser = await driver.chromium.launch(executable_path="/usr/bin/chromium", args=BROWSER)
            page = await browser.new_page(viewport={"width": 1280, "height": 1400})
            made = Scene(cluster, folder, nats, direct, door, bus, page)
            for subject in ("namespace.>", "poascope.*.routed"):
                await bus.hear(subject, made.heard.note)
            for name in ("control", "collect", "dash"):
                made.start(name)
            state = cluster.state
            tasks = [asyncio.create_task(made.heard.user(state.gateway_url, state.model)) for _ in range(4)]
            tasks.append(asyncio.create_task(made.watch_routers()))
            await until("controller", bus.controller_at)
            await made.write("auto", None)
            await made.open_page()
            await until("requests", lambda: _true(len(made.heard.well) > 20 if made else False))
            yield made
            for task in tasks:
                task.cancel()
            await browser.close()
    finally:
        for process in made.processes.values() if made else ():
            process.kill()
            process.wait()
        if cluster:
            await asyncio.to_thread(cluster.down)
        server.close()
        nats.kill()
        nats.wait()


async def _true(answer: bool) -> bool:
    return answer


async def between(scene: Scene) -> str:
    """The dashboard dies when Confirm was pressed and nothing was written yet: NATS does not answer it."""
    before = (await scene.bus.intent("dynamo")).revision
    scene.signal(signal.SIGSTOP, "nats")
    await scene.press()
    await asyncio.sleep(1)
    scene.processes["dash"].kill()
    scene.processes["dash"].wait()
    scene.signal(signal.SIGCONT, "nats")
    await asyncio.sleep(3)
    died = await scene.screen()
    assert (await scene.bus.intent("dynamo")).revision == before, "nothing was written"
    scene.start("dash")
    await scene.open_page()
    await scene.page.locator("[data-link=wanted]").filter(has_text="auto").wait_for(timeout=60_000)
    return f"| dashboard | pressed, not written | before | {died} | {await scene.screen()} | nothing was written, nothing changed | right |"


async def play(scene: Scene, victim: str, step: str) -> str:
    """One cell, and its line. Raises AssertionError where an end is wrong."""
    late = scene.when == "after"
    await until("quiet", lambda: scene.acknowledged(*scene.at))
    revision, ends = await scene.reach(victim, step)
    known = {router for _, router in scene.heard.routers}
    killed = time.time()
    if victim == "dashboard":
        scene.processes["dash"].kill()
        scene.processes["dash"].wait()
    else:
        await asyncio.to_thread(scene.cluster.kill, "router-1")
    await asyncio.sleep(0.3)
    await scene.release(victim)
    living = tuple(scene.at) if victim == "dashboard" else ("router-2",)
    await asyncio.sleep(6)
    died, back = await scene.screen(), ""
    await until("applied by who lives", lambda: scene.acknowledged(*living))
    if late:
        await asyncio.sleep(max(0.0, ends + 1 - time.time()))
        await until("over", scene.auto)
        await until("acknowledged by who lives", lambda: scene.acknowledged(*living))
        if victim == "router":
            await asyncio.sleep(3)
            back = f"after the end: {await scene.screen()}"
            assert "router-1, not yet the newest" in back, f"the dead router's word is told apart: {back}"
    returned = time.time()
    if victim == "dashboard":
        scene.start("dash")
        await scene.open_page()
    else:
        await asyncio.to_thread(scene.cluster.start, "router-1", 180)
    if not late:
        assert victim == "router" or ends > time.time() + 2, "the page is back before the end"
        shown = scene.page.locator("[data-link=wanted]").filter(has_text="transition τ 0.7 ω 1")
        await shown.wait_for(timeout=30_000)
        await until("in force everywhere", lambda: scene.in_force(*scene.at))
        await until("acknowledged everywhere", lambda: scene.acknowledged(*scene.at))
        await asyncio.sleep(2)
        back = await scene.screen()
        if victim == "router":
            await scene.write("auto", None)
            ends = time.time()
        else:
            await asyncio.sleep(max(0.0, ends - time.time()))
    await until("over", scene.auto)
    await until("acknowledged in the end", lambda: scene.acknowledged(*scene.at))
    await scene.page.locator("[data-link=wanted]").filter(has_text="auto").wait_for(timeout=60_000)
    await scene.page.wait_for_function("() => !document.body.innerText.includes('not yet the newest')", timeout=60_000)
    failed, well = (sum(at >= killed for at in times) for times in (scene.heard.badly, scene.heard.well))
    did = [f"{failed} of {failed + well} failed"]
    if victim == "router":
        last = max((at - killed for at in scene.heard.badly if at >= killed), default=0.0)
        others = {router for at, router in scene.heard.routers if killed + 1 < at < returned}
        assert len(others) == 1, f"while it is dead the other takes all: {others}"
        with contextlib.suppress(AssertionError):
            await until("it is used", lambda: _true(any(router not in known for _, router in scene.heard.routers)), 15)
        first = next((f"{at - returned:.0f} s after its start" for at, router in scene.heard.routers if router not in known), "never")
        did.append(f"the last {last:.0f} s after the kill; all others by the other; the new one is used {first}")
    elif scene.heard.badly:
        raise AssertionError(f"{len(scene.heard.badly)} requests failed, whom a dashboard's death is nothing")
    for name in scene.at:
        assert [pair for pair in [(await scene.status(name))] if (pair["tau"], pair["omega"]) == SAFE], (
            f"{name} ends at the safe parameters"
        )
    past = [at - ends for at, pair in scene.heard.routed if pair == OVERRIDE and at > killed]
    assert max(past, default=0.0) <= LATEST_S, f"routed under the override {max(past):.1f} s past its end"
    left = [at - ends for name in living for at, pair in scene.at[name][-1:] if pair == SAFE]
    history = await (await scene.bus.client.jetstream().key_value("poascope")).history("dynamo.target")
    targets = [msgspec.json.decode(entry.value or b"", type=Target) for entry in history]
    assert sum(target.mode == "manual" and target.intent_revision == revision for target in targets) == 1, "set once"
    ended = await scene.screen()
    return (
        f"| {victim} | {step} | {scene.when} | {died} | {back} | {'; '.join(did)} | "
        f"{ended}; left {max(left, default=0.0):+.1f} s, last request under it {max(past, default=float('nan')):+.1f} s |"
    )


async def run(victims: list[str], steps: tuple[str, ...], dynamo: str, port_base: int | None) -> int:
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        async with scene(Path(folder), dynamo, port_base) as made:
            for victim in victims:
                for when in ("before", "after"):
                    made.when = when
                    if victim == "dashboard":  # with the other "15 min"
                        made.processes["dash"].kill()
                        made.processes["dash"].wait()
                        made.start("dash")
                        await made.open_page()
                    cells: list[tuple[str, Callable[[], Awaitable[str]]]] = [
                        (step, lambda victim=victim, step=step: play(made, victim, step)) for step in steps
                    ]
                    if victim == "dashboard" and when == "before" and steps == STEPS:
                        cells.insert(0, ("pressed", lambda: between(made)))
                    for step, cell in cells:
                        made.heard.badly.clear()
                        try:
                            print(await cell(), flush=True)
                        except AssertionError as error:
                            wrong += 1
                            print(f"| {victim} | {step} | {when} | WRONG: {error} |", flush=True)
                            await made.release("dashboard")
                            await until("over", made.auto, 60)
    return 1 if wrong else 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--victim", choices=("dashboard", "router"), help="only this one")
    parser.add_argument("--step", choices=STEPS, help="only this one")
    parser.add_argument("--dynamo", default="0.9.0")
    parser.add_argument("--port-base", type=int)
    given = parser.parse_args()
    victims = [given.victim] if given.victim else ["dashboard", "router"]
    sys.exit(asyncio.run(run(victims, (given.step,) if given.step else STEPS, given.dynamo, given.port_base)))


if __name__ == "__main__":
    main()
