import asyncio
import json
import math
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import nats
import pytest

from collectors.capture import Reader
from collectors.importer import feed
from collectors.process import Collector, signals_subject
from collectors.wire import parse_subject
from controller import protocol
from poascope.settings import Settings
from queries import named
from store import Store
from tests.collectors.playback import play
from tests.conftest import CAPTURES, NatsServer

CAPTURE = CAPTURES / "cap-0.9.0-1p2d.jsonl.gz"


class Collect:
    """`poascope collect` as a process of its own."""

    def __init__(self, nats_url: str, store: Path, *more: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "poascope", "collect", "--nats", nats_url, "--store", str(store), "--api-port", "0", *more],
            stderr=subprocess.PIPE,
            text=True,
            cwd=store.parent,
        )
        assert self.process.stderr
        self.said = ""
        while not (found := re.search(r"read API on (\S+)", self.said)):
            line = self.process.stderr.readline()
            assert line, self.said
            self.said += line
        self.url = found[1]
        self.http = httpx.Client(base_url=self.url, timeout=10)

    def ready(self) -> dict[str, Any]:
        return dict(self.http.get("/readyz").json())

    def state(self, name: str) -> str | None:
        return next((source["state"] for source in self.ready()["sources"] if source["name"] == name), None)

    def rows(self, name: str, **params: Any) -> list[dict[str, Any]]:
        answer = self.http.get(f"/query/{name}", params={"format": "json", **params})
        assert answer.status_code == 200, answer.text
        body = answer.json()
        return [dict(zip(body["columns"], row, strict=True)) for row in body["rows"]]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.http.close()
        self.process.send_signal(number)
        assert self.process.stderr
        self.said += self.process.stderr.read()
        self.process.stderr.close()
        return self.process.wait()


@contextmanager
def collecting(nats_url: str, store: Path, *more: str) -> Iterator[Collect]:
    collect = Collect(nats_url, store, *more)
    try:
        yield collect
    finally:
        if collect.process.poll() is None:
            assert collect.end() == 0, collect.said


async def until(true: Callable[[], Any], timeout_s: float = 30) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (value := true()):
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.05)
    return value


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[nats.NATS]:
    client = await nats.connect(nats_server.url)
    yield client
    await client.close()


async def test_what_a_cluster_says_is_stored_served_and_published(nats_server: NatsServer, bus: nats.NATS, tmp_path: Path) -> None:
    """Events of a real cluster become requests and a row of signals a second, the same over the API, on NATS and in the closed file."""
    path = tmp_path / "s.duckdb"
    published = await bus.subscribe("poascope.dynamo.signals")
    with collecting(nats_server.url, path) as collect:
        await until(lambda: collect.state("nats") == "ok")
        assert collect.state("events") == "absent"
        await play(nats_server.url, CAPTURE, 8)
        await until(lambda: collect.rows("requests"))
        assert collect.state("events:dynamo") == "ok"
        assert collect.ready()["ready"]
        rows = await until(lambda: collect.rows("signals", deployment="dynamo"))
        said = msgspec.json.decode((await published.next_msg(5)).data)
        row = next(row for row in rows if row["ts"].startswith(time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(said["ts"]))))
        assert set(said) == set(row)
        assert {k: v for k, v in said.items() if k != "ts"} == {k: v for k, v in row.items() if k != "ts"}
        assert "poascope_messages_total" in collect.http.get("/metrics").text
        over_http = collect.http.get("/query/requests").content
    with Store.open(path, read_only=True) as store, store.cursor() as cursor:
        requests = named.requests(cursor).to_pylist()
        assert named.deployments(cursor)["deployment"].to_pylist() == ["dynamo"]
    assert len(requests) > 5
    assert all(row["prefill_worker"] and row["decode_worker"] for row in requests if row["outcome"] == "finished")
    assert len(over_http) > 0


async def test_nats_dies_and_data_resume(nats_server: NatsServer, tmp_path: Path) -> None:
    """A kill -9 of NATS leaves the collector running and saying so; with NATS back data go on, and the time between is in gaps."""
    with collecting(nats_server.url, tmp_path / "s.duckdb") as collect:
        await until(lambda: collect.state("nats") == "ok")
        await play(nats_server.url, CAPTURE, 3)
        nats_server.kill()
        await until(lambda: collect.state("nats") == "down", 10)
        assert collect.http.get("/readyz").status_code == 503
        assert collect.http.get("/healthz").status_code == 200
        nats_server.start()
        await until(lambda: collect.state("nats") == "ok")
        before = collect.ready()["counters"]["messages_total"]
        await play(nats_server.url, CAPTURE, 3, from_s=3)
        await until(lambda: collect.ready()["counters"]["messages_total"] > before)
        gaps = await until(lambda: [row for row in collect.rows("gaps") if row["source"] == "nats"])
        assert {gap["kind"] for gap in gaps} == {"disconnected"}  # more than one where the new server was slow to answer


async def test_it_starts_before_nats(nats_server: NatsServer, tmp_path: Path) -> None:
    """Without NATS the API is up and says what is missing; data come as soon as NATS is there."""
    nats_server.kill()
    with collecting(nats_server.url, tmp_path / "s.duckdb") as collect:
        source = next(source for source in collect.ready()["sources"] if source["name"] == "nats")
        assert source["state"] == "down"
        assert "--nats" in source["detail"]
        nats_server.start()
        await until(lambda: collect.state("nats") == "ok")
        await play(nats_server.url, CAPTURE, 2)
        await until(lambda: collect.rows("signals"))


async def test_sigkill_and_a_new_start(nats_server: NatsServer, tmp_path: Path) -> None:
    """After a kill -9 the store opens, keeps what was flushed, and the time until the next start is a gap."""
    path = tmp_path / "s.duckdb"
    first = Collect(nats_server.url, path)
    await until(lambda: first.state("nats") == "ok")
    await play(nats_server.url, CAPTURE, 4)
    kept = await until(lambda: first.rows("signals"))
    first.end(signal.SIGKILL)
    with collecting(nats_server.url, path) as second:
        assert second.rows("signals")[: len(kept)] == kept
        (gap,) = await until(lambda: [row for row in second.rows("gaps") if row["source"] == "collector"])
        assert gap["kind"] == "not running"
        assert gap["from"] >= kept[-1]["ts"]
        assert gap["to"] is not None


def test_the_second_collector_is_told_of_the_first(nats_server: NatsServer, tmp_path: Path) -> None:
    """On the same store, or on the same port, a second collector exits with 1 and says who or what is in its way."""

    def fails(*args: object) -> tuple[int, str]:
        command = [sys.executable, "-m", "poascope", "collect", "--nats", nats_server.url, *map(str, args)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stderr

    path = tmp_path / "s.duckdb"
    with collecting(nats_server.url, path) as first:
        code, said = fails("--store", path, "--api-port", 0)
        assert (code, f"in use by pid {first.process.pid}" in said) == (1, True), said
        port = first.url.rpartition(":")[2]
        code, said = fails("--store", tmp_path / "t.duckdb", "--api-port", port)
        assert (code, port in said) == (1, True), said
    code, said = fails("--store", path, "--api-host", "0.0.0.0")
    assert (code, "api_token" in said) == (2, True), said


async def test_control_is_recorded_from_the_bucket(nats_server: NatsServer, bus: nats.NATS, tmp_path: Path) -> None:
    """An intent written while nobody collected is a row of decisions after the start, and one once, however often it starts."""
    bucket = await bus.jetstream().create_key_value(bucket="poascope", history=8)
    intent = {"mode": "auto", "reason": "why <b>not</b>", "operator": "ada", "idempotency_key": "k", "expected_revision": 0}
    await bucket.put("dynamo.intent", json.dumps(intent).encode())
    path = tmp_path / "s.duckdb"
    with collecting(nats_server.url, path) as collect:
        (row,) = await until(lambda: collect.rows("decisions"))
        assert (row["kind"], row["actor"], row["why"]) == ("intent", "ada", "why <b>not</b>")
    with collecting(nats_server.url, path) as collect:
        await bucket.put(
            "dynamo.target", json.dumps({"tau": 0.7, "omega": 1.0, "regime": "transition", "mode": "auto", "why": "w"}).encode()
        )
        rows = await until(lambda: len(found := collect.rows("decisions")) == 2 and found)
        assert [row["kind"] for row in rows] == ["intent", "target"]


@pytest.mark.parametrize("deployment", ["dynamo", "a.b", "τ*>", "with space", "=41"])
def test_signals_go_where_the_control_protocol_says(deployment: str) -> None:
    """The collector and the controller spell a deployment's subject alike."""
    assert signals_subject(deployment) == protocol.signals_subject(deployment)


def test_the_early_warning_survives_a_restart(tmp_path: Path) -> None:
    """What it learnt and what it was worth come from the store: armed at once, its record as before."""
    settings = Settings(api_port=0, store=str(tmp_path / "s.duckdb"))
    collector = Collector(settings)
    base = math.floor(time.time()) - 700.0
    for second in range(600):
        row = {"ts": base + second, "deployment": "dynamo", "arrivals_per_s": 5.0, "regime": "below", "headroom_ratio": 0.7}
        collector.core.rows.put("signals", **row, ttft_p99_censored_s=0.1)
    breach = {"event": "breach", "state": "alarm", "since": base, "lead_s": 20.0, "watched_s": 600.0}
    collector.core.rows.put("alarms", ts=base, deployment="dynamo", signal="headroom", **breach)
    collector.store.append_all(collector.core.take())
    collector.store.close()
    collector.listener.close()
    again = Collector(settings)
    assert again.core.alarms["dynamo"].state == "armed"
    learnt = again.core.alarms["dynamo"].baseline
    with again.store.cursor() as cursor:
        (record,) = named.alarm_record(cursor, "dynamo").to_pylist()
    assert (record["warned"], record["lead_s"], record["watched_s"]) == (1, 20.0, 600.0)
    for line in list(Reader(CAPTURE))[:200]:
        feed(again.core, line)
    memory = again.core.deployments["dynamo"].memory
    assert memory is not None and memory.alarm.baseline == learnt
    again.store.close()
    again.listener.close()


def test_lost_messages_are_counted_for_prometheus() -> None:
    """What `gaps` says was lost is what `lost_messages_total` of /metrics says."""
    collector = Collector(Settings(api_port=0, store=":memory:"))
    lines = [line for line in Reader(CAPTURE) if line.subject and parse_subject(line.subject).topic == "active_sequences_events"]
    for line in lines[:300] + lines[307:600]:
        collector.core.advance(line.t)
        feed(collector.core, line)
    lost = sum(collector.core.take()["gaps"]["count"].to_pylist())
    assert collector.counters()["lost_messages_total"] == lost == 7
    collector.store.close()
    collector.listener.close()
