"""The day after: what was on screen then is on screen again, and a reviewer's whole way through an incident."""

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from playwright.sync_api import Page, expect

from collectors.capture import Line as Said
from collectors.capture import Reader, Recorder
from controller.protocol import Intent, Target
from tests.conftest import CAPTURES, free_port, sign_in, wait_for_port
from tests.e2e.conftest import PROGRAMS, Line, eventually

pytestmark = pytest.mark.real
SECONDS = 60_000
OVERRIDE_S = 70.0  # into the recorded spike, when it is saturated


def series(body: dict[str, Any], panel: str) -> dict[int, dict[str, Any]]:
    """What each line of a panel has, by Unix ms."""
    found: dict[int, dict[str, Any]] = {}
    for uid, points in body["points"][panel].items():
        for at, value in zip(body["xs"][points["x"]], points["y"], strict=True):
            found.setdefault(at, {})[uid] = value
    return found


def test_the_replay_of_a_moment_is_what_the_page_showed(line: Line, load: Path) -> None:
    """Ten seconds of the live page under load with an override in them, as a viewer's browser asks for them: the replay shows the same
    tiles, sentences and points."""
    began = time.time()
    eventually(lambda: (line.fresh(began) or {}).get("finished_per_s"), 90)
    intent = [PROGRAMS / "poascope", "intent"]
    where = ["--deployment", "dynamo", "--config", line.cluster.files.config]
    override = ["set", "--mode", "freeze", "--expires", "5m", "--reason", "e2e: replayed later"]
    subprocess.run([*intent, *override, *where], check=True, timeout=60)
    shown: dict[float, dict[str, Any]] = {}

    def another() -> bool:
        body = httpx.get(f"{line.dash}/live", params={"deployment": "dynamo", "range": 300}, timeout=10).json()
        at = body["tiles"][0]["as_of"]
        if at is not None and body["now"] - at < 5 and at * 1e3 == body["cursor"]:
            shown.setdefault(at, body)
        time.sleep(0.3)
        return len(shown) >= 10

    try:
        eventually(another, 90)
    finally:
        subprocess.run([*intent, "cancel", "--reason", "e2e: done", *where], check=True, timeout=60)
    span = {"page": "live", "deployment": "dynamo", "start": min(shown) - 1, "end": max(shown) + 1}
    played = httpx.get(f"{line.dash}/past/span", params=span, timeout=60).json()
    assert "e2e: replayed later" in [event["why"] for event in played["events"]]
    for at, body in shown.items():
        again = httpx.get(f"{line.dash}/past/moment", params={"page": "live", "deployment": "dynamo", "at": at}, timeout=30).json()
        assert again["tiles"] == body["tiles"], at
        assert again["verdict"] == body["verdict"], at
        for panel in ("poa", "ttft", "lost", "throughput", "itl", "kv"):
            assert series(played, panel)[at * 1000] == series(body, panel)[at * 1000], (at, panel)


def test_an_incident_is_marked_and_found_again(line: Line, load: Path, page: Page) -> None:
    """An operator names a span on a chart; the list has it with author and notes as text, and its name leads back, also to take it off."""
    page.set_default_timeout(SECONDS)
    sign_in(page, line.dash, line.token)
    began = time.time()
    eventually(lambda: line.fresh(began), 90)
    page.goto(f"{line.dash}/replay?deployment=dynamo&from={began - 60:.0f}&to={began:.0f}")
    expect(page.get_by_test_id("past")).to_have_attribute("data-source", "ok", timeout=SECONDS)
    page.locator(".pw-bar").get_by_role("button", name="mark as incident").click()
    title = f"tenant <b>4</b> {began:.0f}"
    page.get_by_label("Title").fill(title)
    page.get_by_label("Notes").fill("<script>window.pwned = 1</script>")
    page.get_by_role("button", name="Mark", exact=True).click()
    expect(page.get_by_text("It is on the list of incidents.")).to_be_visible(timeout=SECONDS)
    eventually(lambda: [r for r in line.rows("incidents", deployment="dynamo") if r["title"] == title])
    page.goto(f"{line.dash}/replay")
    row = page.locator(".po-table tr", has_text=title)
    expect(row).to_contain_text("ann", timeout=SECONDS)
    expect(row).to_contain_text("<script>window.pwned = 1</script>")
    assert page.evaluate("window.pwned") is None
    row.get_by_role("link").click()
    expect(page.get_by_test_id("past")).to_have_attribute("data-source", "ok", timeout=SECONDS)
    page.get_by_role("button", name="Rename, or take off the list").click()
    page.get_by_role("button", name="Take off the list", exact=True).click()
    expect(page.get_by_text("Taken off the list.")).to_be_visible(timeout=SECONDS)
    eventually(lambda: not [r for r in line.rows("incidents", deployment="dynamo") if r["title"] == title])


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dashboard on a bundle of the recorded spike, in the midst of which somebody changed the routing."""
    folder = tmp_path_factory.mktemp("night")
    lines = list(Reader(CAPTURES / "spike-0.9.0-1p2d.jsonl.gz"))
    when = lines[0].t + OVERRIDE_S
    with Recorder(folder / "spike.jsonl.gz") as out:
        for line in sorted([*lines, *acted(when)], key=lambda line: line.t):
            out.write(line)
    port = free_port()
    for verb in (
        ["import", folder / "spike.jsonl.gz", "--store", folder / "s.duckdb"],
        ["export", "--store", folder / "s.duckdb", "--out", folder / "night.duckdb"],
    ):
        subprocess.run([PROGRAMS / "poascope", *verb], check=True, stdout=subprocess.DEVNULL, timeout=180)
    dash = subprocess.Popen([PROGRAMS / "poascope", "dash", folder / "night.duckdb", "--dash-port", str(port)], stdout=subprocess.DEVNULL)
    wait_for_port(port, 90)
    yield f"http://127.0.0.1:{port}"
    dash.terminate()
    dash.wait(30)


def acted(at: float) -> list[Said]:
    """What the bucket says of an override: the intent, and the target that followed."""
    expires = at + 900
    intent = Intent(
        mode="manual",
        tau=0.7,
        omega=1.0,
        reason="TTFT is gone <b>!</b>",
        operator="ann",
        idempotency_key="k",
        expected_revision=0,
        expires_at=expires,
    )
    target = Target(tau=0.7, omega=1.0, regime="saturated", mode="manual", why="ann: TTFT is gone", decided_at=at, expires_at=expires)
    parts = (("intent", 0.0, intent), ("target", 0.02, target))
    return [Said(at + s, "nats", subject=f"$KV.poascope.dynamo.{kind}", data=msgspec.json.encode(body)) for kind, s, body in parts]


def moment(page: Page) -> str:
    return page.get_by_test_id("moment").inner_text()


def test_the_reviewers_way(night: str, page: Page, tmp_path: Path) -> None:
    """List, open, play, jump to the override, ask what if, look at the slowest request, and take a report along."""
    page.set_default_timeout(SECONDS)
    page.goto(f"{night}/replay")
    incident = page.get_by_role("link", name="saturated")
    expect(incident).to_be_visible(timeout=SECONDS)
    incident.click()
    past = page.get_by_test_id("past")
    expect(past).to_have_attribute("data-source", "ok", timeout=SECONDS)
    expect(past.locator(".pw-verdict b")).to_have_text("Yes: saturated.", timeout=SECONDS)
    for panel in ("poa", "ttft", "workers"):
        expect(past.locator(f"[data-panel={panel}] .js-line").first).to_be_attached(timeout=SECONDS)

    before = moment(page)
    page.locator(".pw-bar select").select_option("60")
    page.get_by_test_id("play").click()
    eventually(lambda: moment(page) != before)
    page.get_by_test_id("play").click()
    expect(page.get_by_test_id("play")).to_have_text("play")

    override = page.get_by_test_id("events").locator("li[data-kind=override]")
    expect(override).to_contain_text("manual τ 0.7 ω 1 · by ann · TTFT is gone <b>!</b>")
    override.get_by_role("button").click()
    expect(override).to_have_attribute("aria-current", "true")
    expect(page.get_by_test_id("moment")).to_contain_text(override.locator("time").inner_text())
    eventually(lambda: re.search(r"[?&]at=\d{10}", page.url))
    expect(past.locator("[data-tile=regime] strong")).to_have_text("saturated", timeout=SECONDS)

    page.get_by_role("button", name="Play it again so").click()
    expect(page.locator(".po-table", has_text="its error")).to_contain_text("1P/2D, round-robin", timeout=SECONDS)
    expect(page.get_by_text("Arrivals are a closed loop of up to 128 users")).to_be_visible()
    page.get_by_role("button", name="When would it have switched?").click()
    expect(page.get_by_text(re.compile(r"\d+ switches as it was, \d+ as asked"))).to_be_visible(timeout=SECONDS)

    page.get_by_role("tab", name="Requests").click()
    facts = page.locator(".po-table", has_text="Best overlap elsewhere")
    expect(facts).to_contain_text("6.7", timeout=SECONDS)
    expect(page.locator(".js-plotly-plot", has_text="prefill queue")).to_be_visible(timeout=SECONDS)

    page.get_by_role("tab", name="Hand on").click()
    page.get_by_role("button", name="Make the report").click()
    offered = page.get_by_role("button", name=re.compile(r"Download .*\.html"))
    expect(offered).to_be_visible(timeout=SECONDS)
    with page.expect_download() as download:
        offered.click()
    download.value.save_as(tmp_path / "report.html")
    assert "ann" in (tmp_path / "report.html").read_text() and (tmp_path / "report.html").stat().st_size < 10e6
