"""`record`: what NATS and the metrics say, into a file, until told to stop. Nothing is created on, or written to, Dynamo's streams."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from typing import NoReturn

import httpx
import nats
from nats.aio.msg import Msg
from nats.errors import NoServersError

from collectors.capture import Line, Recorder
from collectors.metrics_source import FAILURES, bases
from poascope import ending
from poascope.errors import Unreachable
from poascope.settings import Settings

CONNECT_S = 5.0
# What a kill may cost.
FLUSH_S = 1.0
SUBJECTS = ("namespace.>", "*.kv-events", "poascope.>", "$KV.poascope.>")


async def record(settings: Settings, out: Recorder, seconds: float | None, started: Callable[[], None]) -> None:
    """Record until `seconds` are over, or SIGINT or SIGTERM. Raises Unreachable when NATS is not there to begin with."""
    down_since: list[float] = []
    listening = asyncio.Event()

    async def heard(message: Msg) -> None:
        out.write(Line(time.time(), "nats", subject=message.subject, data=message.data))

    async def disconnected() -> None:
        down_since[:] = down_since or [time.time()]

    async def reconnected() -> None:
        since = down_since.pop() if down_since else time.time()
        out.write(Line(time.time(), "gap", target="nats", kind="disconnected", since=since, until=time.time()))

    async def failed(error: Exception) -> None:
        # nats-py's own drops on a full queue come here; the recording must not look whole then.
        if listening.is_set():
            out.write(Line(time.time(), "gap", target="nats", kind=type(error).__name__, since=time.time(), until=time.time()))

    connecting = nats.connect(
        **settings.nats.options(),
        max_reconnect_attempts=-1,
        reconnect_time_wait=1,
        disconnected_cb=disconnected,
        reconnected_cb=reconnected,
        error_cb=failed,
    )
    try:
        client = await asyncio.wait_for(connecting, CONNECT_S)
    except (OSError, NoServersError, TimeoutError) as error:
        raise Unreachable(f"nats: {settings.nats.shown} - does not answer; start it, or name another with --nats-url") from error
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    for subject in SUBJECTS:
        await client.subscribe(subject, cb=heard)
    await client.flush()
    listening.set()
    started()
    async with httpx.AsyncClient(timeout=5, trust_env=False) as http:
        reads: list[asyncio.Task[object]] = [
            asyncio.create_task(_read(http, base, settings.scrape_interval_s, out)) for base in bases(settings)
        ]
        tasks: list[asyncio.Task[object]] = [asyncio.create_task(stop.wait()), asyncio.create_task(_flush(out)), *reads]
        done, running = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        await ending.end(running)
    if down_since:
        out.write(Line(time.time(), "gap", target="nats", kind="disconnected", since=down_since[0], until=time.time()))
    # The recording is complete. nats-py may wait for a server that has just gone, whichever of the two is called.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CONNECT_S):
            await (client.drain() if client.is_connected else client.close())
    for task in done:
        task.result()


async def _flush(out: Recorder) -> NoReturn:
    while True:
        await asyncio.sleep(FLUSH_S)
        out.flush()


async def _read(http: httpx.AsyncClient, base: str, every_s: float, out: Recorder) -> NoReturn:
    while True:
        try:
            reply = await http.get(f"{base}/metrics")
            reply.raise_for_status()
            out.write(Line(time.time(), "metrics", target=base, body=reply.text))
        except FAILURES as error:
            out.write(Line(time.time(), "metrics", target=base, error=repr(error)))
        await asyncio.sleep(every_s)
