"""How fresh the live page is, and what a viewer costs: ours beside plain `st.plotly_chart` in a fragment, in one run.

    python bench/live.py [--viewers 1,5,20,50,200] [--seconds 15] [--out FILE.json]

A real store, the real read API and one row a second, stamped as it is written; each dashboard in a process of its own. Up to
BROWSERS viewers are real Chromium pages, beyond that viewers on the wire: a WebSocket session as the browser opens one, and for ours
the poll of live.js. Age: time of the newest point shown (or received) behind the clock, sampled five times a second.
Server CPU is that of the dashboard's process alone, without browsers.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import numpy as np
import pyarrow as pa
import uvicorn
import websockets
from playwright.async_api import async_playwright
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from collectors.api import application
from store import Store

BROWSERS = 5
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
NAIVE = Path(__file__).parent / "naive.py"
WORKERS = (
    ("prefill", "prefill", 16882743587675780000),
    ("decode", "backend", 16882743587675780001),
    ("decode", "backend", 16882743587675780002),
)


def free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Source:
    """The collector's side: ten minutes of rows, then one a second."""

    def __init__(self, folder: str) -> None:
        self.store, self.port, self.on = Store.open(Path(folder) / "bench.duckdb"), free_port(), True
        self.random = np.random.default_rng(7)
        now = int(time.time())
        self.put(range(now - 600, now))
        ready = {"ready": True, "now": 0.0, "sources": [{"name": "nats", "state": "ok", "age_s": 0.1, "detail": ""}], "counters": {}}
        api = application(self.store, lambda: ready, dict)
        self.server = uvicorn.Server(uvicorn.Config(api, port=self.port, log_level="critical"))
        threading.Thread(target=self.server.run, daemon=True).start()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self) -> None:
        while self.on:
            time.sleep(1 - time.time() % 1)
            self.put([round(time.time())])

    def put(self, seconds: Any) -> None:
        rows, loads = [], []
        for second in seconds:
            at, jitter = datetime.fromtimestamp(second, UTC).replace(tzinfo=None), float(self.random.normal(1, 0.03))
            row: dict[str, Any] = {"ts": at, "deployment": "dynamo", "regime": "below", "poa_n": 190, "quality": []}
            row |= dict.fromkeys(("inflight", "arrivals_per_s", "finished_per_s", "queued", "knee_inflight"), 32 * jitter)
            row |= dict.fromkeys(("ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "ttft_p99_censored_s", "itl_p50_s", "itl_p99_s"), 0.05 * jitter)
            row |= dict.fromkeys(("kv_hit_ratio", "poa_hat", "poa_low", "poa_high", "poa_ttft", "poa_frozen"), jitter)
            rows.append(row)
            common = {"ts": at, "deployment": "dynamo", "dp_rank": 0, "source": "events"}
            loads += [common | {"role": r, "component": c, "worker_id": w, "inflight": int(8 * jitter)} for r, c, w in WORKERS]
        for table, values in (("signals", rows), ("workers", loads)):
            schema = self.store.cursor().sql(f"SELECT * FROM {table} LIMIT 0").to_arrow_table().schema
            self.store.append(table, pa.Table.from_pylist(values, schema=schema))

    def stop(self) -> None:
        self.on = False
        self.server.should_exit = True


def start(kind: str, api_port: int) -> tuple[subprocess.Popen[bytes], int]:
    port = free_port()
    if kind == "ours":
        flags = [
            "-m",
            "poascope",
            "dash",
            "--dash-port",
            str(port),
            "--api-port",
            str(api_port),
            "--nats-url",
            f"nats://127.0.0.1:{free_port()}",
        ]
    else:
        flags = [
            "-m",
            "streamlit",
            "run",
            str(NAIVE),
            "--server.port",
            str(port),
            "--server.address",
            "127.0.0.1",
            "--server.headless",
            "true",
        ]
        flags += ["--browser.gatherUsageStats", "false", "--server.fileWatcherType", "none"]
    environment = os.environ | {"BENCH_API": f"http://127.0.0.1:{api_port}"}
    process = subprocess.Popen([sys.executable, *flags], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(120):
        try:
            if httpx.get(f"http://127.0.0.1:{port}/_stcore/health", timeout=1).status_code == 200:
                return process, port
        except httpx.HTTPError:
            time.sleep(0.5)
    raise TimeoutError(f"{kind}: port {port} - not up after 60 s")


# What the newest point in the DOM is: ours is the array that Plotly drew, the naive page's likewise.
NEWEST = """() => {
  const plots = [...document.querySelectorAll('.js-plotly-plot')];
  const last = (p) => {
    const t = p.data?.find((t) => t.x?.length);
    return t ? +new Date(t.x[t.x.length - 1]) : null;
  };
  const found = plots.map(last).filter((v) => v);
  return found.length ? Math.min(...found) : null;
}"""


async def browsers(kind: str, port: int, count: int, seconds: float) -> tuple[list[float], float]:
    ages: list[float] = []
    received = {"bytes": 0}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGS)
        pages = []
        for _ in range(count):
            page = await (await browser.new_context(viewport={"width": 1280, "height": 900})).new_page()
            session = await page.context.new_cdp_session(page)
            await session.send("Network.enable")
            session.on("Network.dataReceived", lambda e: received.__setitem__("bytes", received["bytes"] + e["encodedDataLength"]))
            session.on(
                "Network.webSocketFrameReceived",
                lambda e: received.__setitem__("bytes", received["bytes"] + len(e["response"]["payloadData"]) * 3 // 4),
            )
            await page.goto(f"http://127.0.0.1:{port}/")
            await page.wait_for_selector(".js-plotly-plot .main-svg", timeout=60_000)
            pages.append(page)
        await asyncio.sleep(4)
        received["bytes"] = 0
        async with measured(seconds):
            end = time.time() + seconds
            while time.time() < end:
                for page in pages:
                    newest = await page.evaluate(NEWEST)
                    if newest:
                        ages.append(time.time() - newest / 1e3)
                await asyncio.sleep(0.2)
        await browser.close()
    return ages, received["bytes"]


def cpu_s(pid: int) -> float:
    """Seconds of user and system CPU that a process has used."""
    after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after[11]) + int(after[12])) / os.sysconf("SC_CLK_TCK")


class measured:  # noqa: N801 - read as `async with measured(seconds)`
    """CPU of the dashboard over the block, in `cores`."""

    pid = 0
    cores = 0.0

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def __aenter__(self) -> None:
        self.cpu, self.at = cpu_s(measured.pid), time.time()

    async def __aexit__(self, *_: object) -> None:
        measured.cores = (cpu_s(measured.pid) - self.cpu) / (time.time() - self.at)


async def session(port: int, received: dict[str, float], on_message: Any) -> None:
    """One viewer's Streamlit session, as the browser opens it."""
    url = f"ws://127.0.0.1:{port}/_stcore/stream"
    async with websockets.connect(url, subprotocols=["streamlit"], max_size=None, compression=None, open_timeout=60) as socket:  # type: ignore[list-item]
        rerun = BackMsg()
        rerun.rerun_script.query_string = ""
        await socket.send(rerun.SerializeToString())
        fragments: dict[str, float] = {}

        async def repeat(identity: str, interval: float) -> None:
            while True:
                await asyncio.sleep(interval)
                again = BackMsg()
                again.rerun_script.query_string = ""
                again.rerun_script.fragment_id = identity
                again.rerun_script.is_auto_rerun = True
                await socket.send(again.SerializeToString())

        timers: list[asyncio.Task[None]] = []
        try:
            async for data in socket:
                received["bytes"] += len(data)
                message = ForwardMsg()
                message.ParseFromString(data if isinstance(data, bytes) else data.encode())
                if message.WhichOneof("type") == "auto_rerun" and message.auto_rerun.fragment_id not in fragments:
                    fragments[message.auto_rerun.fragment_id] = message.auto_rerun.interval
                    timers.append(asyncio.create_task(repeat(message.auto_rerun.fragment_id, message.auto_rerun.interval)))
                on_message(message)
        finally:
            for timer in timers:
                timer.cancel()


async def wire(kind: str, port: int, count: int, seconds: float) -> tuple[list[float], float]:
    received = {"bytes": 0.0}
    newest: list[float | None] = [None] * count

    def hear(viewer: int) -> Any:
        def take(message: ForwardMsg) -> None:
            if message.WhichOneof("type") == "delta" and message.delta.new_element.WhichOneof("type") == "plotly_chart":
                spec = message.delta.new_element.plotly_chart.spec
                at = spec.find('"bench_newest":')
                if at >= 0:
                    newest[viewer] = float(spec[at + 15 : spec.find("}", at)].split(",")[0]) / 1e3

        return take

    async def poll(viewer: int, client: aiohttp.ClientSession) -> None:
        cursor = None
        while True:
            query = {"range": "300", "theme": "light"} | ({"after": str(cursor)} if cursor else {})
            async with client.get(f"http://127.0.0.1:{port}/live", params=query) as answer:
                raw = await answer.read()
                received["bytes"] += int(answer.headers.get("Content-Length", len(raw)))
            body = json.loads(raw)
            cursor = body.get("cursor", cursor)
            newest[viewer] = cursor / 1e3 if cursor else None
            await asyncio.sleep(body["next_ms"] / 1e3 + 0.04 + 0.16 * (viewer % 20) / 20)

    ages: list[float] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        tasks = []
        for viewer in range(count):
            tasks.append(asyncio.create_task(session(port, received, hear(viewer))))
            if kind == "ours":
                tasks.append(asyncio.create_task(poll(viewer, client)))
            await asyncio.sleep(0.05)
        await asyncio.sleep(max(6, count / 10))  # sessions that open at once queue for their first run: not what is measured
        received["bytes"] = 0
        async with measured(seconds):
            end = time.time() + seconds
            while time.time() < end:
                ages += [time.time() - at for at in newest if at]
                await asyncio.sleep(0.2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return ages, received["bytes"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--viewers", default="1,5,20,50,200")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        source = Source(folder)
        for count in map(int, given.viewers.split(",")):
            for kind in ("ours", "plotly_chart"):
                process, port = start(kind, source.port)
                measured.pid = process.pid
                way = browsers if count <= BROWSERS else wire
                ages, size = asyncio.run(way(kind, port, count, given.seconds))
                process.send_signal(signal.SIGKILL)
                process.wait()
                p50, p95 = (statistics.median(ages), float(np.quantile(ages, 0.95))) if ages else (None, None)
                row = {"viewers": count, "page": kind, "by": "browser" if way is browsers else "wire", "age_p50_s": p50, "age_p95_s": p95}
                row |= {"cpu_per_viewer_ms_per_s": measured.cores * 1e3 / count, "cpu_cores": measured.cores}
                row |= {"bytes_per_s_and_viewer": size / count / given.seconds}
                rows.append(row)
                print(line(row), flush=True)
            ours, naive = rows[-2], rows[-1]
            ratio = {
                k: naive[k] / ours[k] for k in ("age_p50_s", "age_p95_s", "cpu_cores", "bytes_per_s_and_viewer") if naive[k] and ours[k]
            }
            print(f"{count:>4} viewers: plotly_chart / ours = " + ", ".join(f"{k} {v:.1f}×" for k, v in ratio.items()), flush=True)
        source.stop()
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1))


def line(row: dict[str, Any]) -> str:
    age = "no point" if row["age_p50_s"] is None else f"age P50 {row['age_p50_s']:.2f} s P95 {row['age_p95_s']:.2f} s"
    cost = f"{row['cpu_per_viewer_ms_per_s']:.1f} ms CPU/s/viewer ({row['cpu_cores']:.2f} core)"
    cost += f", {row['bytes_per_s_and_viewer'] / 1e3:.1f} kB/s/viewer"
    return f"{row['viewers']:>4} {row['page']:<12} ({row['by']}): {age}, {cost}"


if __name__ == "__main__":
    main()
