"""The whole line on a real cluster: the commands of the compose file, each a process of its own, load from the testbed's client."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from playwright.sync_api import Page, sync_playwright

from app.tokens import Tokens
from controller.bus import Bus, call
from controller.protocol import Intent
from testbed.cluster import Cluster
from tests.conftest import free_port

ROOT = Path(__file__).parents[2]
COMMANDS = {name: service["command"] for name, service in yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].items()}
PROGRAMS = Path(sys.executable).parent
BROWSER = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


def eventually(true: Callable[[], Any], timeout_s: float = 60) -> Any:
    """Poll until the answer is true, and return it. A transport error is a no."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if answer := true():
                return answer
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s"
        time.sleep(0.2)


class Line:
    """collect, control and dash on one cluster. `token`: that of the operator ann, for `sign_in`."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.api, self.dash = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
        self.env = {
            "POASCOPE_CONFIG": str(cluster.files.config),
            "POASCOPE_STORE": str(folder / "e2e.duckdb"),
            "POASCOPE_API_PORT": self.api.rpartition(":")[2],
            "POASCOPE_DASH_PORT": self.dash.rpartition(":")[2],
        }
        self.env["POASCOPE_OPERATORS_FILE"] = str(folder / "operators.json")
        self.token = Tokens(folder / "operators.json").add("ann")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        program, *args = COMMANDS[name]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen([PROGRAMS / program, *args], env=os.environ | self.env, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def alive(self) -> set[str]:
        return {name for name, process in self.processes.items() if process.poll() is None}

    def rows(self, query: str, **parameters: Any) -> list[dict[str, Any]]:
        """Rows of a named query, as JSON has them."""
        answer = httpx.get(f"{self.api}/query/{query}", params={**parameters, "format": "json"}, timeout=30).raise_for_status().json()
        return [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]

    def fresh(self, since: float, **wanted: Any) -> dict[str, Any] | None:
        """The newest signals row of the cluster after `since` (Unix s), when it has the wanted values."""
        rows = self.rows("signals", deployment="dynamo", **{"from": since})
        return rows[-1] if rows and all(rows[-1][key] == value for key, value in wanted.items()) else None

    def sources(self) -> dict[str, str]:
        """State of every source of the collector, by name."""
        return {s["name"]: s["state"] for s in httpx.get(f"{self.api}/readyz", timeout=10).json()["sources"]}

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="session")
def line(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    line = Line(cluster, tmp_path_factory.mktemp("line"))
    for name in ("collect", "control", "dash"):
        line.start(name)
    eventually(lambda: httpx.get(f"{line.dash}/_stcore/health").status_code == 200)
    yield line
    line.close()


@pytest.fixture(autouse=True)
def nothing_in_force(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test finds the override of another one: the line is one for all."""
    shared = {"cluster", "line"} <= set(request.fixturenames)
    cluster = request.getfixturevalue("cluster") if shared else None
    yield
    if cluster is None:
        return

    async def calm(bus: Bus) -> None:
        stored = await bus.intent("dynamo")
        if stored.value and stored.value.mode != "auto":
            key = f"calm-{stored.revision}"
            auto = Intent(mode="auto", reason="the test is over", operator="tests", idempotency_key=key, expected_revision=stored.revision)
            await bus.put_intent("dynamo", auto, time.time())

    call(cluster.state.nats_url, calm)


@pytest.fixture
def load(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Eight users without a pause while the test runs; the path of the client's own record, complete after the test only."""
    out = tmp_path / "requests.jsonl"
    command = [
        PROGRAMS / "poascope",
        "testbed",
        "load",
        "steady",
        "--dir",
        cluster.files.dir,
        "--users",
        "8",
        "--seconds",
        "600",
        "--out",
        out,
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield out
    process.terminate()
    process.wait(30)


@pytest.fixture
def page() -> Iterator[Page]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=BROWSER)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        yield page
        browser.close()
