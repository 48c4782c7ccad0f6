import asyncio
import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from collectors.metrics import Raw, parse_series
from collectors.metrics_source import MetricsSource, Target, bases, by_target, fetch_samples
from poascope import ending
from poascope.settings import Profile, Settings
from tests.collectors.playback import lines
from tests.conftest import CAPTURES, free_port, wait_for_port

BODY = next(line["body"] for line in lines(CAPTURES / "cap-0.9.0-1p2d.jsonl.gz", "metrics") if line["target"] == "frontend")


class Exporter:
    """A frontend's /metrics, as it was recorded, on a port of its own; it may be told to fail."""

    def __init__(self) -> None:
        self.status, self.body = 200, BODY
        self.drips = False
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(exporter.status)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                with contextlib.suppress(OSError):  # a reader that has had enough
                    self.wfile.write(exporter.body.encode())
                    while exporter.drips:
                        self.wfile.write(b"#")
                        time.sleep(0.01)

            def log_message(self, *_: object) -> None:
                return None

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    exporter = Exporter()
    yield exporter
    exporter.close()


@pytest.fixture
def prometheus(exporter: Exporter, tmp_path: Path) -> Iterator[str]:
    """A real Prometheus server that scrapes the exporter each second."""
    port = free_port()
    config = tmp_path / "prometheus.yml"
    config.write_text(
        f"global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: dynamo, static_configs: [{{targets: ['{exporter.address}']}}]}}]\n"
    )
    process = subprocess.Popen(
        ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for_port(port)
    deadline = time.monotonic() + 30
    while httpx.get(f"http://127.0.0.1:{port}/-/ready", trust_env=False).status_code != 200:  # it answers 503 while it reads its log
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()


Fed = list[tuple[float, str, list[Raw]]]


async def read_until(source: MetricsSource, true: Callable[[], Any]) -> None:
    task = asyncio.create_task(source.run())
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, "did not happen in time"
        assert not task.done() or task.result() is None
        await asyncio.sleep(0.02)
    await ending.end([task])


async def test_one_target_that_fails_is_its_own_gap(exporter: Exporter) -> None:
    """A target that fails is down with its reason and ends as one gap; the others go on being read."""
    other = Exporter()
    settings = Settings(scrape=(exporter.address, f"http://{other.address}/metrics"), scrape_interval_s=0.05)
    fed: Fed = []
    gaps: list[tuple[Any, ...]] = []
    source = MetricsSource(settings, lambda *samples: fed.append(samples), lambda *gap: gaps.append(gap))
    mine, its = (f"http://{one.address}" for one in (exporter, other))
    await read_until(source, lambda: {target for _, target, _ in fed} == {mine, its})
    other.status = 500
    await read_until(source, lambda: source.targets[its].missed >= 3)
    assert "500" in source.targets[its].trouble
    assert source.targets[mine].trouble == ""
    other.status, other.body = 200, "this is { no exposition"
    fed.clear()
    await read_until(source, lambda: len([1 for _, target, _ in fed if target == mine]) > 2)
    other.body = BODY
    await read_until(source, lambda: gaps)
    ((name, kind, since, until, missed),) = gaps
    assert (name, kind, missed >= 3) == (f"metrics:{its}", "unreachable", True)
    assert since < until
    other.close()


async def test_a_target_that_never_ends_holds_up_no_other(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that sends a byte now and then for ever is down within the time limit, and meanwhile the others are read at their interval."""
    monkeypatch.setattr("collectors.metrics_source.TIMEOUT_S", 0.5)
    other = Exporter()
    other.drips = True
    settings = Settings(scrape=(exporter.address, other.address), scrape_interval_s=0.05)
    fed: Fed = []
    source = MetricsSource(settings, lambda *samples: fed.append(samples), lambda *_: None)
    mine, its = (f"http://{one.address}" for one in (exporter, other))
    await read_until(source, lambda: source.targets.get(its, Target()).missed >= 2)
    assert source.targets[its].trouble == "no whole answer within 0.5 s"
    assert source.targets[mine].trouble == ""
    assert len([1 for _, target, _ in fed if target == mine]) > 2
    other.drips = False
    other.close()


async def test_an_answer_without_end_is_cut_off(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a target can have to say is not kept."""
    monkeypatch.setattr("collectors.metrics_source.MAX_BODY", 2**20)
    exporter.body = "# " + "x" * 2**21
    source = MetricsSource(Settings(scrape=(exporter.address,), scrape_interval_s=0.05), lambda *_: None, lambda *_: None)
    await read_until(source, lambda: source.targets and next(iter(source.targets.values())).missed)
    assert next(iter(source.targets.values())).trouble == "more than 1 MiB of metrics"


async def test_prometheus_gives_the_same_series_as_scraping(exporter: Exporter, prometheus: str) -> None:
    """Through a real Prometheus server a target's name and typed series are those of its own exposition, at the scrape's time."""
    settings = Settings(prometheus_url=prometheus, scrape=(exporter.address,), scrape_interval_s=0.2)
    fed: Fed = []
    gaps: list[tuple[Any, ...]] = []
    source = MetricsSource(settings, lambda *samples: fed.append(samples), lambda *gap: gaps.append(gap))
    await read_until(source, lambda: fed)
    direct: Fed = []
    scraping = MetricsSource(Settings(scrape=(exporter.address,)), lambda *samples: direct.append(samples), lambda *gap: gaps.append(gap))
    await read_until(scraping, lambda: direct)
    assert fed[0][1] == direct[0][1] == f"http://{exporter.address}"
    for through, own in zip(parse_series(fed[0][2]), parse_series(direct[0][2]), strict=True):
        assert len(own) > 0
        assert sorted(through, key=str) == sorted(own, key=str)
    assert time.time() - 30 < fed[0][0] < time.time()
    times = [at for at, _, _ in fed]
    assert times == sorted(set(times))
    assert gaps == []


async def test_a_prometheus_that_is_away_is_waited_for() -> None:
    """Without an answer the server is down with its reason, and it is asked again."""
    settings = Settings(prometheus_url=f"http://127.0.0.1:{free_port()}", scrape_interval_s=0.05)
    gaps: list[tuple[Any, ...]] = []
    source = MetricsSource(settings, lambda *_: None, lambda *gap: gaps.append(gap))
    await read_until(source, lambda: source.targets and source.targets["prometheus"].missed >= 2)
    source.close(time.time())
    assert [gap[0] for gap in gaps] == ["metrics:prometheus"]


async def test_targets_are_read_without_a_proxy(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy for the way out of the house is none to a target in the cluster, nor does `record` take it."""
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    fed: Fed = []
    source = MetricsSource(Settings(scrape=(exporter.address,)), lambda *samples: fed.append(samples), lambda *_: None)
    await asyncio.wait_for(read_until(source, lambda: fed), 10)


async def test_a_pod_that_was_replaced_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target only Prometheus named is down while it was there lately, and then no more: pods come and go. One that was told stays."""
    monkeypatch.setattr("collectors.metrics_source.fetch_samples", lambda url: [])
    source = MetricsSource(Settings(prometheus_url="http://p", scrape=("h:1",)), lambda *_: None, lambda *_: None)
    now = time.time()
    for name, age_s in (("http://h:1", 700), ("pod:1", 700), ("pod:2", 100), ("pod:3", 1)):
        source.targets[name] = Target("", now - age_s)
    await source._ask_prometheus()
    assert {name: bool(target.trouble) for name, target in source.targets.items()} == {
        "http://h:1": True,
        "pod:2": True,
        "pod:3": False,
        "prometheus": False,
    }


async def test_a_prometheus_that_answers_something_else_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instant vector, or what is no vector, is no answer: the server is down with the reason, never ok."""
    for answer in ([{"metric": {"__name__": "a"}, "value": [1, "2"]}], [{"metric": {"__name__": "a"}, "values": []}], ["nonsense"]):
        monkeypatch.setattr("collectors.metrics_source.fetch_samples", lambda url, answer=answer: answer)
        source = MetricsSource(Settings(prometheus_url="http://p"), lambda *_: None, lambda *_: None)
        await source._ask_prometheus()
        assert "without the range vector" in source.targets["prometheus"].trouble


def test_the_newest_scrape_alone_counts() -> None:
    """A series that was not in its target's last scrape is gone, however recent its last sample; targets are called by their base URL."""
    result = [
        {"metric": {"__name__": "a", "instance": "h:1", "job": "x", "model": "m"}, "values": [[1.0, "1"], [2.0, "5"]]},
        {"metric": {"__name__": "b", "instance": "h:1", "job": "x"}, "values": [[1.0, "7"]]},
        {"metric": {"__name__": "a", "instance": "h:2", "job": "x"}, "values": [[1.5, "+Inf"]]},
    ]
    assert by_target(result, ["http://h:1"]) == {
        "http://h:1": (2.0, [("a", {"model": "m"}, 5.0)]),
        "h:2": (1.5, [("a", {}, float("inf"))]),
    }


def test_each_address_is_scraped_once() -> None:
    """Targets told in any spelling and the profiles' frontends are one list of base URLs."""
    settings = Settings(scrape=("h:1", "http://h:1/metrics", "https://h:2/"), profiles=(Profile("a", 0, 1, "http://h:1"),))
    assert bases(settings) == ("http://h:1", "https://h:2")


def test_a_server_that_refuses_raises(exporter: Exporter) -> None:
    """What is no Prometheus server is an error, never an empty answer."""
    with pytest.raises(ValueError, match="Expecting value"):
        fetch_samples(f"http://{exporter.address}")
