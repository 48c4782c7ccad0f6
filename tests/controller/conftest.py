"""A real Caddy in the testbed's configuration, and frontends that stream slowly and say who they are."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from controller.bus import Bus, connect
from controller.protocol import Arming, Intent, signals_subject
from poascope.settings import Profile
from testbed.gateway import caddy_config
from tests.conftest import NatsServer, free_port, wait_for_port

EVENTS = 12


class Caddy:
    """A gateway that a test may kill and start again. It reads its upstream from a file, or has it `fixed` in its configuration; then it
    comes back pointing at the first one."""

    def __init__(self, folder: Path, upstream: str, *, fixed: bool = False) -> None:
        self.folder, self.port, self.admin_port = folder, free_port(), free_port()
        self.url, self.admin_url = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.admin_port}"
        folder.mkdir()
        self.upstream = folder / "upstream"
        self.upstream.write_text(upstream)
        config = caddy_config(
            port=self.port, admin_port=self.admin_port, upstream=upstream if fixed else self.upstream, access_log=folder / "access.log"
        )
        (folder / "caddy.json").write_text(json.dumps(config))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [Path(sys.executable).parent / "caddy", "run", "--config", self.folder / "caddy.json"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"HOME": str(self.folder)},
        )
        wait_for_port(self.port)
        wait_for_port(self.admin_port)

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None


async def _stream(name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        for event in range(EVENTS):
            writer.write(f"data: {name} {event}\n\n".encode())
            await writer.drain()
            await asyncio.sleep(0.05)


@pytest_asyncio.fixture
async def profiles() -> AsyncIterator[tuple[Profile, ...]]:
    """Three frontends with the paper's parameters; each streams `data: <name> <n>` for about 0.6 s."""
    servers, made = [], []
    streams: set[asyncio.Task[None]] = set()
    for name, tau, omega in (("default", 0.0, 1.0), ("tuned", 0.7, 1.0), ("spread", 0.8, 0.1)):

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str = name) -> None:
            stream = asyncio.create_task(_stream(name, reader, writer))
            streams.add(stream)
            await asyncio.wait([stream])

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        servers.append(server)
        made.append(Profile(name, tau, omega, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
    yield tuple(made)
    for server in servers:
        server.close()
    for stream in streams:
        stream.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    await asyncio.sleep(0.05)  # for the transports to close


@pytest.fixture
def caddy(tmp_path: Path, profiles: tuple[Profile, ...]) -> Iterator[Caddy]:
    gateway = Caddy(tmp_path / "caddy", profiles[0].url.removeprefix("http://"))
    gateway.start()
    yield gateway
    gateway.kill()


@pytest_asyncio.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with connect(nats_server.url, patient=True) as connected:
        yield connected


@pytest_asyncio.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
        yield client


def intent(**changes: Any) -> Intent:
    """A valid manual intent for half an hour from now, with some fields changed."""
    fields: dict[str, Any] = {
        "mode": "manual",
        "tau": 0.7,
        "omega": 1.0,
        "reason": "queue is growing",
        "operator": "alice",
        "idempotency_key": "key-1",
        "expected_revision": 0,
        "expires_at": time.time() + 1800,
    }
    return Intent(**fields | changes)


async def arm(bus: Bus, deployment: str = "dynamo", armed: bool = True) -> None:
    """Let the controller act by itself, or no longer."""
    known = (await bus.arming(deployment)).revision
    key = f"arm-{known}"
    asked = Arming(armed=armed, reason="tested", operator="carol", idempotency_key=key, expected_revision=known)
    await bus.put_arming(deployment, asked, time.time())


async def pulse(bus: Bus, deployment: str = "dynamo", **fields: Any) -> None:
    """One `signals` message as the collector publishes it, and time for its listeners to have it."""
    said = {"ts": time.time(), "deployment": deployment, "regime": "below", "ttft_ewma_s": 0.1, "quality": [], "poa_hat": 1.01} | fields
    await bus.client.publish(signals_subject(deployment), msgspec.json.encode(said))
    await bus.client.flush()
    await asyncio.sleep(0.02)


async def until(there: Callable[[], Any], timeout_s: float = 15) -> Any:
    """The first truthy answer of an async question."""
    async with asyncio.timeout(timeout_s):
        while not (answer := await there()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return answer
