"""What collecting costs: `python bench/ingest.py [CAPTURE]`. Compare the ratios; the absolute numbers are this machine's.

1. The recording said again at its own pace to a real nats-server: CPU of `poascope collect`, phase by phase.
2. The recording said eight times as fast as it is taken: nats-py with a callback that does nothing, and our whole pipeline behind
   the same client. The one that speaks runs beside it, on the other core, and is about as fast as the idle callback.
"""

import asyncio
import base64
import gzip
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import nats
import pyarrow as pa

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from collectors.core import Core  # noqa: E402
from collectors.nats_source import NatsSource  # noqa: E402
from collectors.writer import Writer  # noqa: E402
from poascope.nats import Nats  # noqa: E402
from poascope.settings import Settings  # noqa: E402
from store import Store  # noqa: E402
from tests.conftest import NatsServer  # noqa: E402

REPEATS = 8
TICK = os.sysconf("SC_CLK_TCK")


def read(capture: Path) -> list[dict[str, Any]]:
    with gzip.open(capture, "rt") as file:
        return [json.loads(text) for text in file]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


async def paced(url: str, lines: list[dict[str, Any]], folder: Path) -> None:
    command = [sys.executable, "-m", "poascope", "collect", "--nats", url, "--store", str(folder / "paced.duckdb"), "--api-port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    api = ""
    while not api:
        found = re.search(r"read API on (\S+)", process.stderr.readline())
        api = found[1] if found else ""
    async with httpx.AsyncClient(base_url=api) as http:
        while not (await http.get("/readyz")).is_success:
            await asyncio.sleep(0.1)
    client = await nats.connect(url)
    began, start = time.monotonic(), lines[0]["t"]
    phase, since, used, count = "start", time.monotonic(), cpu_s(process.pid), 0

    def report() -> None:
        wall, spent = time.monotonic() - since, cpu_s(process.pid) - used
        if wall > 1:
            print(f"  C={phase:>5}  {wall:5.1f} s  {count / wall:7.0f} messages/s  {100 * spent / wall:5.1f} % of one core")

    for line in lines:
        wait = line["t"] - start - (time.monotonic() - began)
        if wait > 0.005:
            await asyncio.sleep(wait)
        if line["src"] == "phase":
            report()
            phase, since, used, count = str(line["concurrency"]), time.monotonic(), cpu_s(process.pid), 0
        elif line["src"] == "nats":
            await client.publish(line["subject"], base64.b64decode(line["data"]))
            count += 1
    report()
    await client.close()
    async with httpx.AsyncClient(base_url=api) as http:
        counters = (await http.get("/readyz")).json()["counters"]
    whole = {
        name: round(counters[name], 3) for name in ("messages_total", "rows_written_total", "pulse_seconds_total", "flush_seconds_total")
    }
    print(f"  {whole}")
    process.send_signal(signal.SIGTERM)
    process.stderr.read()
    process.wait()


async def flood(url: str, messages: list[tuple[str, bytes]], folder: Path, ours: bool) -> float:
    """Messages a second that one process takes off the server."""
    heard = 0
    speaker = await nats.connect(url)
    with Store.open(folder / f"flood-{ours}.duckdb") as store:
        core = Core(Settings())

        def take(at: float, subject: str, data: bytes) -> None:
            nonlocal heard
            heard += 1
            if ours:
                core.advance(at)
                core.feed_nats(at, subject, data)

        source = NatsSource(Nats(url), take, take, core.gap, 0.0)
        writer = Writer(store, core.take, lambda: core.rows.dropped, core.gap)
        tasks = [asyncio.create_task(source.run()), asyncio.create_task(writer.run())]
        while source.down_since is not None:
            await asyncio.sleep(0.01)
        script = (
            "import asyncio, nats, pickle, sys\n"
            "async def main():\n"
            "    client = await nats.connect(sys.argv[1])\n"
            "    for subject, data in pickle.load(open(sys.argv[2], 'rb')):\n"
            "        await client.publish(subject, data)\n"
            "    await client.flush(60)\n"
            "asyncio.run(main())\n"
        )
        saying = subprocess.Popen([sys.executable, "-c", script, url, str(folder / "messages")])
        while not heard:
            await asyncio.sleep(0)
        began = time.perf_counter()
        while heard + source.counters["dropped_total"] < len(messages):
            await asyncio.sleep(0.005)
        rate = len(messages) / (time.perf_counter() - began)
        print(f"  {'our pipeline' if ours else 'no-op callback':15} {rate:9.0f} messages/s, {source.counters['dropped_total']} dropped")
        saying.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await writer.flush()
    await speaker.close()
    return rate


async def main(capture: Path) -> None:
    lines = read(capture)
    messages = [(line["subject"], base64.b64decode(line["data"])) for line in lines if line["src"] == "nats"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "messages").write_bytes(pickle.dumps(messages * REPEATS))
        pa.table({"warm": [None, 1]}).to_pandas()
        server = NatsServer(folder / "jetstream")
        server.start()
        try:
            print(f"{capture.name}: {len(messages)} messages\nat its own pace")
            await paced(server.url, lines, folder)
            print("as fast as they come")
            raw = await flood(server.url, messages * REPEATS, folder, ours=False)
            print(f"  ratio {await flood(server.url, messages * REPEATS, folder, ours=True) / raw:.2f}")
        finally:
            server.kill()


asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests/captures/cap-0.9.0-1p2d.jsonl.gz"))
