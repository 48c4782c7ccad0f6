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
from tests.conftest import CAPTURES, free_port, wait_for_port
from tests.e2e.conftest import PROGRAMS, Line, eventually

pytestmark = pytest.mark.real
SECONDS = 60_000
OVERRIDE_S = 70.0  # into the recorded spike, when it is saturated


def test_the_replay_of_a_moment_is_what_the_page_showed(line: Line, load: Path) -> None:
    """Ten seconds of the live page under load, as a viewer's browser asks for them: each of their tiles and sentences is shown again."""
    began = time.time()
    eventually(lambda: (line.fresh(began) or {}).get("finished_per_s"), 90)
    shown: dict[float, dict[str, Any]] = {}

    def another() -> bool:
        body = httpx.get(f"{line.dash}/live", params={"deployment": "dynamo", "range": 300, "points": 0}, timeout=10).json()
        at = body["tiles"][0]["as_of"]
        if at is not None and body["now"] - at < 5:
            shown.setdefault(at, body)
        time.sleep(0.3)
        return len(shown) >= 10

    eventually(another, 90)
    for at, body in shown.items():
        asked = {"page": "live", "deployment": "dynamo", "at": at}
        again = httpx.get(f"{line.dash}/past/moment", params=asked, timeout=30).json()
        assert again["tiles"] == body["tiles"], at
        assert again["verdict"] == body["verdict"], at


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
