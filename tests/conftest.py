"""What every test may use: real servers on free ports, and what real clusters said."""

import gc
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from testbed.cluster import Cluster
from testbed.keeper import Spec
from testbed.ports import free_base

CAPTURES = Path(__file__).parent / "captures"


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Where the cyclic collector is off (tests/__main__.py says why) it has its turn between modules."""
    if not gc.isenabled() and (nextitem is None or nextitem.path != item.path):
        gc.collect()


_given: set[int] = set()


def free_port() -> int:
    """Never the same twice: of a hundred that nobody listens on yet, two would be one in every third run."""
    while True:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = int(s.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port


def wait_for_port(port: int, timeout_s: float = 15) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with socket.socket() as s:
            s.settimeout(0.2)
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"port {port} - nothing listens after {timeout_s} s")


def sign_in(page: Page, url: str, token: str) -> None:
    """Give the page's browser an operator's cookie of the dashboard at `url`."""
    answer = page.context.request.post(f"{url}/operator", form={"token": token}, max_redirects=0)
    assert answer.status == 303, answer.text()


class NatsServer:
    """A real nats-server with JetStream that a test may kill and start again on the same port and store."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.monitor_port = folder, free_port(), free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = Path(sys.executable).parent / "nats-server"
        self.process = subprocess.Popen(
            [program, "-js", "-sd", self.folder, "-a", "127.0.0.1", "-p", str(self.port), "-m", str(self.monitor_port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for_port(self.port)

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "jetstream")
    server.start()
    yield server
    server.kill()


@pytest.fixture(params=["0.9.0", "1.6.1"])
def capture(request: pytest.FixtureRequest) -> Path:
    """One of the recordings of real clusters: 560 requests on 0.9.0, 613 on 1.6.1."""
    return CAPTURES / f"cap-{request.param}-1p2d.jsonl.gz"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real Dynamo 0.9.0, 1P/2D, three frontends and the gateway, on free ports; gone afterwards, however this process ends.

    Shared by all tests: leave it as it was (`cluster.start(name)` after `cluster.kill(name)`, upstreams back on the first frontend).
    """
    cluster = Cluster.up(tmp_path_factory.mktemp("cluster"), Spec(port_base=free_base()), leashed=True)
    yield cluster
    cluster.down()
