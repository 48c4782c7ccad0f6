"""From the button to the first request under the new parameters: both actuators, a real cluster under load, 50 presses each.

Run: python bench/override.py [--dynamo 1.6.1] [--presses 50]. One run prints everything; beside it, in the same run on the same server,
what a write to the bucket takes to be heard. A press is an intent, as the page writes it; between it and the request lie the controller
(which writes the target), the actuator, and the wait for the next request to arrive at all: half a gap between two arrivals, or more.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from nats.aio.msg import Msg

from collectors.wire import Added, Message, decode
from controller.bus import Bus, connect
from controller.protocol import Intent
from testbed import probe
from testbed.cluster import Cluster
from testbed.keeper import Spec
from testbed.ports import free_base
from testbed.topology import REGIMES

PARAMETERS = [(tau, omega) for _, tau, omega in REGIMES[:2]]
PROGRAM = str(Path(sys.executable).parent / "poascope")


class Requests:
    """When each request was routed, and under what: as its router says, or by the frontend whose router it was."""

    def __init__(self) -> None:
        self.frontends: dict[int, tuple[float, float]] = {}
        self.seen: list[tuple[float, tuple[float, float] | None, int]] = []
        self._known: set[str] = set()
        self.by_word = False

    def note(self, message: Msg) -> None:
        now = time.time()
        if message.subject.endswith(".routed"):
            said = json.loads(message.data)
            self.by_word = True
            self.seen.append((said["at"], (said["tau"], said["omega"]), 0))
            return
        said = decode(message.subject, message.data)
        for event in said.events if isinstance(said, Message) and not self.by_word else ():
            if isinstance(event, Added) and event.request_id not in self._known:
                self._known.add(event.request_id)
                self.seen.append((now, self.frontends.get(event.router_id), event.router_id))

    async def first(self, pair: tuple[float, float], since: float) -> float:
        start = len(self.seen)
        async with asyncio.timeout(30):
            while True:
                for at, under, _ in self.seen[start:]:
                    if under == pair and at >= since:
                        return at
                start = len(self.seen)
                await asyncio.sleep(0.001)


async def round_trip_ms(bus: Bus, count: int) -> list[float]:
    """A write to the bucket until a subscriber hears that it was stored."""
    await bus.intent("dynamo")  # makes the bucket
    heard = asyncio.Event()
    await bus.hear("poascope-kv.bench.ack.x", lambda message: heard.set())
    times = []
    for _ in range(count):
        heard.clear()
        began = time.perf_counter()
        await bus.client.jetstream().publish("$KV.poascope.bench.ack.x", b"{}")
        await asyncio.wait_for(heard.wait(), 5)
        times.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.05)
    return times


async def learn_frontends(cluster: Cluster, requests: Requests) -> None:
    """Ask each frontend itself, and see whose router speaks: nothing else runs yet."""
    frontends = [p for p in cluster.state.processes if p.role == "frontend"]
    for process, (_, tau, omega) in zip(frontends, REGIMES, strict=True):
        start = len(requests.seen)
        with httpx.Client(timeout=20, trust_env=False) as http:
            await asyncio.to_thread(probe.complete, http, process.base_url, cluster.state.model)
        await asyncio.sleep(0.3)
        requests.frontends[requests.seen[start][2]] = tau, omega


async def press(bus: Bus, requests: Requests, pair: tuple[float, float], replicas: int) -> tuple[float, float]:
    """Milliseconds from an intent to the last actuator's application, and to the first request that went by it."""
    stored = await bus.intent("dynamo")
    began = time.time()
    intent = Intent(
        mode="manual",
        tau=pair[0],
        omega=pair[1],
        reason="bench",
        operator="bench",
        idempotency_key=str(began),
        expected_revision=stored.revision,
        expires_at=began + 3600,
    )
    await bus.put_intent("dynamo", intent, began)
    first = await requests.first(pair, began)
    applied = list[float]()
    async with asyncio.timeout(30):
        while len(applied) < replicas:
            await asyncio.sleep(0.01)
            state = await bus.state("dynamo")
            acks = [ack.value for ack in state.acks.values() if ack.value]
            applied = [ack.applied_at for ack in acks if (ack.tau, ack.omega) == pair and ack.target_revision == state.target.revision]
    return (max(applied) - began) * 1000, (first - began) * 1000


async def measure(cluster: Cluster, actuator: str, presses: int) -> None:
    requests = Requests()
    replicas = sum(p.role == "router" for p in cluster.state.processes) or 1
    async with connect(cluster.state.nats_url, patient=True) as bus:
        for subject in ("namespace.>", "poascope.>"):
            await bus.hear(subject, requests.note)
        if actuator == "gateway":
            await learn_frontends(cluster, requests)
        command = [PROGRAM, "testbed", "load", "steady", "--url", cluster.state.gateway_url, "--users", "8", "--seconds", "600"]
        command += ["--output-tokens", "16", "--input-tokens", "64", "--json"]
        load = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            raw = await round_trip_ms(bus, presses)
            async with asyncio.timeout(60):
                while await bus.controller_at() is None:
                    await asyncio.sleep(0.2)
            began, before = time.time(), len(requests.seen)
            times = []
            for n in range(presses):
                times.append(await press(bus, requests, PARAMETERS[(n + 1) % 2], replicas))
                await asyncio.sleep(random.uniform(0.1, 0.3))
            rate = (len(requests.seen) - before) / (time.time() - began)
        finally:
            load.send_signal(signal.SIGINT)  # as Ctrl-C: it still sums up
            out, _ = load.communicate(timeout=60)
        told = json.loads(out or b"{}").get("phases", [])
        failed = sum(n for phase in told for error, n in phase["errors"].items() if error != "interrupted")
        finished = sum(phase["finished"] for phase in told)
    for what, values in (
        ("bucket write until heard", raw),
        ("button until acknowledged", [a for a, _ in times]),
        ("button until first request", [f for _, f in times]),
    ):
        quantiles = statistics.quantiles(values, n=100, method="inclusive")
        print(f"{actuator:8} {what:28} P50 {quantiles[49]:6.1f} ms   P99 {quantiles[98]:6.1f} ms   n {len(values)}")
    print(f"{actuator:8} {rate:.1f} requests/s, {finished} finished, {failed} failed")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dynamo", default="0.9.0")
    parser.add_argument("--presses", type=int, default=50)
    parser.add_argument("--actuator", choices=("gateway", "router"), help="only this one")
    given = parser.parse_args()
    for actuator in (given.actuator,) if given.actuator else ("gateway", "router"):
        with tempfile.TemporaryDirectory() as folder:
            cluster = Cluster.up(Path(folder), Spec(dynamo=given.dynamo, port_base=free_base(), actuator=actuator), leashed=True)
            environment = os.environ | {"POASCOPE_CONFIG": str(cluster.files.config)}
            control = subprocess.Popen([PROGRAM, "control"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                asyncio.run(measure(cluster, actuator, given.presses))
            finally:
                control.terminate()
                control.wait(20)
                cluster.down()


if __name__ == "__main__":
    main()
