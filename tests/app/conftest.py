"""The real read API over a real store, which a test may kill and start again on the same port; the dashboard as its own process."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import uvicorn

from app.tokens import Tokens
from collectors.api import application
from store import Store
from tests.conftest import free_port, wait_for_port

HOSTILE = "<img src=x onerror=window.pwned=1>" + "y" * 10_000
BASE = {
    "inflight": 32.0,
    "ttft_p50_s": 0.05,
    "ttft_p99_s": 0.06,
    "itl_p99_s": 0.022,
    "kv_hit_ratio": 0.8,
    "poa_hat": 1.02,
    "poa_n": 190,
    "knee_inflight": 99.0,
    "regime": "below",
    "tau": 0.0,
    "omega": 1.0,
}


def stamp(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC).replace(tzinfo=None)


class Api:
    """The read API in a thread; `stop` closes its port, `start` opens it again."""

    def __init__(self, folder: Path) -> None:
        self.store, self.port = Store.open(folder / "t.duckdb"), free_port()
        self.sources: list[dict[str, Any]] = [{"name": "nats", "state": "ok", "age_s": 0.1, "detail": ""}]
        self.asked: list[str] = []
        self.server: uvicorn.Server | None = None

    def put(self, table: str, rows: list[dict[str, Any]]) -> None:
        schema = self.store.cursor().sql(f"SELECT * FROM {table} LIMIT 0").to_arrow_table().schema
        self.store.append(table, pa.Table.from_pylist(rows, schema=schema))

    def signal(self, at: float, deployment: str = "dynamo", **given: Any) -> None:
        self.put("signals", [{"ts": stamp(at), "deployment": deployment} | BASE | given])

    def worker(self, at: float, worker: int, deployment: str = "dynamo", component: str = "backend", role: str = "decode") -> None:
        row = {"deployment": deployment, "component": component, "role": role, "worker_id": worker, "dp_rank": 0}
        self.put("workers", [row | {"ts": stamp(at), "source": "events", "inflight": 4}])

    def start(self) -> None:
        ready = {"ready": True, "now": 0.0, "sources": self.sources, "counters": {}}
        inner = application(self.store, lambda: ready, dict)

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                self.asked.append(scope["path"])
            await inner(scope, receive, send)

        self.server = uvicorn.Server(uvicorn.Config(counted, port=self.port, log_level="critical", timeout_graceful_shutdown=1))
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        wait_for_port(self.port)

    def stop(self) -> None:
        if self.server:
            self.server.should_exit = True
            self.thread.join(10)
            self.server = None


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    api = Api(tmp_path)
    api.start()
    yield api
    api.stop()
    api.store.close()


class Dash:
    """`poascope dash` as its own process. `token`: that of the operator ann, for `sign_in`."""

    def __init__(self, api_port: int, nats_url: str, folder: Path, port: int | None = None, **env: str) -> None:
        self.token = Tokens(folder / "operators.json").add("ann")
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        flags = ["--dash-port", str(self.port), "--api-port", str(api_port), "--nats-url", nats_url]
        env = os.environ | {"POASCOPE_OPERATORS_FILE": str(folder / "operators.json")} | env
        self.process = subprocess.Popen([sys.executable, "-m", "poascope", "dash", *flags], stdout=subprocess.DEVNULL, env=env)
        wait_for_port(self.port, 120)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Pulse:
    """One row a second, as a collector writes them."""

    def __init__(self, api: Api, deployment: str = "dynamo") -> None:
        self.api, self.deployment, self.on = api, deployment, True
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        n = 0
        while self.on:
            n += 1
            self.api.signal(time.time(), self.deployment, inflight=float(n))
            time.sleep(1)

    def stop(self) -> None:
        self.on = False
        self.thread.join()
