"""The whole line on a real Dynamo: from a request to a pixel, and from a click to the request that is routed by it."""

import json
import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from testbed.cluster import Cluster
from testbed.gateway import read_access_log
from testbed.keeper import Spec
from testbed.ports import free_base
from tests.conftest import free_port, sign_in
from tests.e2e.conftest import PROGRAMS, Line, eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


def seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def client(record: Path) -> list[dict[str, Any]]:
    """What the client wrote of its requests so far; a last line under way is left out."""
    return [json.loads(text) for text in record.read_text().splitlines(keepends=True) if text.endswith("\n")]


def test_up_needs_nothing_but_the_address_of_nats(line: Line, load: Path, tmp_path: Path) -> None:
    """`poascope up --nats URL` against a running cluster finds deployment and pools by itself, and shows their numbers."""
    ports = {"api": free_port(), "dash": free_port()}
    flags = [
        "--nats",
        line.cluster.state.nats_url,
        "--store",
        tmp_path / "up.duckdb",
        "--api-port",
        ports["api"],
        "--dash-port",
        ports["dash"],
    ]
    up = subprocess.Popen(
        [sys.executable, "-m", "poascope", "up", *map(str, flags)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        env=os.environ,
    )

    def asked(query: str) -> list[dict[str, Any]]:
        answer = httpx.get(f"http://127.0.0.1:{ports['api']}/query/{query}", params={"format": "json"}).json()
        return [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]

    def seen() -> bool:
        rows = asked("signals")
        return bool(rows) and rows[-1]["deployment"] == "dynamo" and bool(rows[-1]["inflight"]) and rows[-1]["ttft_p99_s"] is not None

    try:
        eventually(seen)
        eventually(lambda: httpx.get(f"http://127.0.0.1:{ports['dash']}/_stcore/health").status_code == 200)
        eventually(lambda: {"prefill", "decode"} <= {row["role"] for row in asked("workers")})
    finally:
        up.terminate()
        up.wait(30)


def test_what_the_collector_says_is_what_the_client_measured(line: Line, load: Path) -> None:
    """Requests of the store carry the workers that Dynamo told the client, and times near the client's own clock."""
    since = time.time()
    eventually(lambda: len(line.rows("requests", **{"from": since})) >= 12)
    told = {str(record["id"]).removeprefix("chatcmpl-"): record for record in client(load)}
    rows = [row for row in line.rows("requests", **{"from": since}) if row["request_id"] in told]
    assert len(rows) >= 8
    for row in rows:
        workers = told[row["request_id"]]["nvext"]["worker_id"]
        assert row["prefill_worker"] == str(workers["prefill_worker_id"])
        assert row["decode_worker"] == str(workers["decode_worker_id"])
        assert row["outcome"] == "finished"


def test_a_click_changes_how_requests_are_routed(line: Line, load: Path, page: Page) -> None:
    """Pressed in the browser: wanted, acknowledged, observed; new requests go to the other frontend, open streams end where they were."""
    frontends = [p.base_url.removeprefix("http://") for p in line.cluster.state.processes if p.role == "frontend"]
    first, second = frontends[:2]
    sign_in(page, line.dash, line.token)
    eventually(lambda: load.exists() and client(load), 90)  # streams are under way
    page.goto(line.dash)
    number = page.locator("[data-tile=ttft] strong")
    expect(number).not_to_have_text("–", timeout=60_000)
    age = page.locator("[data-tile=ttft]").inner_text()
    expect(page.locator("[data-tile=ttft]")).not_to_have_text(age, timeout=15_000)
    expect(page.locator("[data-link=observed]")).to_contain_text("τ 0 ω 1", timeout=60_000)

    page.goto(f"{line.dash}/control")
    expect(page.locator("[data-link=wanted]")).not_to_be_empty(timeout=60_000)  # whoever has not seen what is wanted is refused
    page.get_by_text("transition: τ").click(timeout=60_000)
    page.get_by_label("Reason").fill("e2e: does a click arrive?")
    page.get_by_role("button", name="Review").click()
    pressed = time.time()
    page.get_by_role("button", name="Confirm").click(timeout=30_000)
    expect(page.locator("[data-link=wanted]")).to_contain_text("transition τ 0.7 ω 1", timeout=15_000)
    expect(page.locator("[data-link=acknowledged]")).to_contain_text("τ 0.7 ω 1", timeout=15_000)
    expect(page.locator("[data-link=observed]")).to_contain_text("τ 0.7 ω 1", timeout=60_000)
    time.sleep(7)  # a request takes some 5.4 s: until then streams of both frontends are open

    page.get_by_role("button", name="Cancel override").click()
    expect(page.locator("[data-link=wanted]")).to_contain_text("auto", timeout=15_000)
    expect(page.locator("[data-link=observed]")).to_contain_text("τ 0 ω 1", timeout=60_000)
    eventually(lambda: not line.rows("decisions", **{"from": time.time() - 7}))

    told = line.rows("decisions", **{"from": pressed})
    assert [row["mode"] for row in told if row["kind"] == "intent"] == ["manual", "auto"]
    assert {row["actor"] for row in told if row["kind"] == "intent"} == {"ann"}
    applied, ended = [next(seconds(row["ts"]) for row in told if row["kind"] == "ack" and row["tau"] == tau) for tau in (0.7, 0.0)]
    # What happened is in the gateway's own log: by whom each stream was served, from its first byte to its last.
    log = [(entry.ended_at - entry.duration_s, entry) for entry in read_access_log(line.cluster.files.access_log) if entry.duration_s]
    across = [entry for began, entry in log if pressed < entry.ended_at and began < applied - 0.5 and entry.ended_at > applied + 0.5]
    between = [entry for began, entry in log if applied + 0.5 < began < ended - 0.5]
    assert across and between
    assert {(entry.upstream, entry.status) for entry in across} == {(first, 200)}
    assert {(entry.upstream, entry.status) for entry in between} == {(second, 200)}
    whole = {record["id"].removeprefix("chatcmpl-"): record for record in client(load)}
    assert {whole[entry.request_id]["chunks"] for entry in across if entry.request_id in whole} == {257}


SAYS = {
    "collect": ("[data-testid=live][data-source=down]", "No answer from the collector"),
    "control": ("[data-link=decided]", "no controller answers"),
    "dash": ("[data-testid=live][data-source=dash]", "The dashboard has not answered"),
    "nats": (".pw-down", "nats"),
    "decode-2": (".pw-down", "metrics"),
}
LOST = {"collect": {"collector"}, "nats": {"nats"}, "decode-2": {"metrics"}}


@pytest.mark.parametrize("victim", sorted(SAYS))
def test_a_death_is_said_and_survived(line: Line, load: Path, page: Page, victim: str) -> None:
    """kill -9 of any one: nothing else dies, the screen says within 10 s what is missing, data resume, and `gaps` has what was lost."""
    page.goto(line.dash)
    expect(page.locator("[data-tile=ttft] strong")).not_to_have_text("–", timeout=60_000)
    expect(page.locator("[data-link=decided]")).not_to_contain_text("no controller", timeout=30_000)
    others = line.alive() - {victim}
    mine, killed = victim in line.processes, time.time()
    line.kill(victim) if mine else line.cluster.kill(victim)
    where, words = SAYS[victim]
    expect(page.locator(where)).to_contain_text(words, timeout=10_000)
    assert line.alive() == others
    line.start(victim) if mine else line.cluster.start(victim)
    back = time.time()
    eventually(lambda: (line.fresh(back) or {}).get("finished_per_s"))
    expect(page.locator("[data-testid=live]")).to_have_attribute("data-source", "ok", timeout=30_000)
    expect(page.locator("[data-link=decided]")).not_to_contain_text("no controller", timeout=30_000)
    expect(page.locator(".pw-down")).to_be_hidden(timeout=30_000)
    assert line.alive() == others | ({victim} if mine else set())
    sources = {row["source"].partition(":")[0] for row in line.rows("gaps", **{"from": killed - 1})}
    assert LOST.get(victim, set()) <= sources


def test_two_deployments_on_one_bus(line: Line, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A second Dynamo, aggregated and under its own namespace, on the same NATS is a deployment of its own: one pool, its own numbers."""
    folder = tmp_path_factory.mktemp("second")
    spec = Spec(topology="1A", namespace="second", port_base=free_base(), nats_url=line.cluster.state.nats_url)
    other = Cluster.up(folder, spec, leashed=True)
    try:
        since = time.time()
        command = [PROGRAMS / "poascope", "testbed", "load", "steady", "--dir", folder, "--users", "4", "--seconds", "12"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
        eventually(lambda: len(line.rows("requests", deployment="second", **{"from": since})) >= 4)
        rows = line.rows("requests", deployment="second", **{"from": since})
        assert {row["prefill_worker"] for row in rows} == {None}
        workers = {p.worker_id for p in other.state.processes if p.worker_id}
        assert {row["decode_worker"] for row in rows} == workers
        assert "second" in {row["deployment"] for row in line.rows("deployments")}
        assert not [row for row in line.rows("requests", deployment="dynamo", **{"from": since}) if row["decode_worker"] in workers]
    finally:
        other.down()
