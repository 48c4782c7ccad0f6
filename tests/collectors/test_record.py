"""`record`: on a real NATS server, into a file that is worth something at every moment."""

import asyncio
import base64
import gzip
import http.server
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

from collectors.capture import Line, Reader, Recorder
from poascope.errors import Misconfigured
from tests.conftest import CAPTURES, NatsServer, free_port


class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"dynamo_frontend_queued_requests 3\n"
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def target() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def start(out: Path, url: str, *more: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-m", "poascope", "record", out, "--nats-url", url, *more], stderr=subprocess.PIPE)
    assert process.stderr
    process.stderr.readline()
    return process


def messages(n: int) -> list[Line]:
    return [line for line in Reader(CAPTURES / "aggregated-1.4.2.jsonl.gz") if line.src == "nats"][:n]


async def publish(url: str, lines: list[Line]) -> None:
    client = await nats.connect(url)
    for line in lines:
        await client.publish(line.subject or "", line.data or b"")
    await client.publish("orders.new", b"not ours")
    await client.flush()
    await client.close()


def test_what_is_said_is_what_is_recorded(nats_server: NatsServer, target: str, tmp_path: Path) -> None:
    """Every message of the event plane is in the file byte by byte, metrics beside it, nothing else, after an interrupt."""
    out = tmp_path / "out.jsonl.gz"
    process = start(out, nats_server.url, "--scrape", f"{target.removeprefix('http://')}/metrics")
    said = messages(300)
    asyncio.run(publish(nats_server.url, said))
    deadline = time.monotonic() + 30
    while not (heard := Counter(line.src for line in Reader(out))) >= Counter(nats=len(said), metrics=1):
        assert time.monotonic() < deadline, heard
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 0
    reader = Reader(out)
    lines = list(reader)
    assert [(line.subject, line.data) for line in lines if line.src == "nats"] == [(line.subject, line.data) for line in said]
    scrapes = [line for line in lines if line.src == "metrics"]
    assert scrapes and scrapes[0].target == target and scrapes[0].body == "dynamo_frontend_queued_requests 3\n"
    assert reader.truncated is None and not reader.counts["damaged"]
    with gzip.open(out, "rt") as file:
        first = next(line for line in map(json.loads, file) if line["src"] == "nats")
    assert base64.b64decode(first["data"]) == said[0].data


def test_a_recording_may_end_while_nats_is_away(nats_server: NatsServer, tmp_path: Path) -> None:
    """It ends as it should, and its last word is what it missed."""
    out = tmp_path / "out.jsonl.gz"
    process = start(out, nats_server.url)
    asyncio.run(publish(nats_server.url, messages(5)))
    time.sleep(0.5)
    nats_server.kill()
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=20)[1]
    assert process.returncode == 0, said
    last = list(Reader(out))[-1]
    assert (last.src, last.target, last.kind) == ("gap", "nats", "disconnected") and (last.since or 0) < (last.until or 0)


def test_a_killed_recording_loses_little(nats_server: NatsServer, tmp_path: Path) -> None:
    """After SIGKILL the file holds all but the last second or so, and is read up to its end."""
    out = tmp_path / "out.jsonl.gz"
    process = start(out, nats_server.url)
    asyncio.run(publish(nats_server.url, messages(200)))
    time.sleep(2)
    process.kill()
    process.communicate(timeout=20)
    reader = Reader(out)
    assert len(list(reader)) == 200 and reader.truncated


def test_recording_leaves_the_bus_as_it_was(nats_server: NatsServer, tmp_path: Path) -> None:
    """While it records, the server has the streams and consumers it had before: a plain subscription disturbs nobody."""

    async def state() -> list[tuple[str, int, int]]:
        client = await nats.connect(nats_server.url)
        streams = await client.jetstream().streams_info()
        await client.close()
        return [(s.config.name or "", s.state.messages, s.state.consumer_count) for s in streams]

    async def stream() -> None:
        client = await nats.connect(nats_server.url)
        await client.jetstream().add_stream(name="events", subjects=["namespace-d-component-c-kv-events.>"])
        await client.jetstream().publish("namespace-d-component-c-kv-events.kv-events", b"{}")
        await client.close()

    asyncio.run(stream())
    before = asyncio.run(state())
    process = start(tmp_path / "out.jsonl.gz", nats_server.url)
    during = asyncio.run(state())
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 0 and during == before == [("events", 1, 0)]


def test_without_nats_the_exit_code_is_three(tmp_path: Path) -> None:
    """Nothing listens: the error names the address and the flag, and a script can tell it from other failures."""
    url = f"nats://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "poascope", "record", str(tmp_path / "out.jsonl.gz"), "--nats-url", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and url in done.stderr and "--nats-url" in done.stderr
    assert not (tmp_path / "out.jsonl.gz").exists()


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    """An earlier recording is never lost to a later one of the same name."""
    with Recorder(tmp_path / "a.gz"):
        pass
    with pytest.raises(Misconfigured, match="exists already"):
        Recorder(tmp_path / "a.gz")
