"""`poascope dash FILE`: the pages over a closed file, at its own time, without collector or NATS, and saying so."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec
import pytest
from playwright.sync_api import expect, sync_playwright
from typer.testing import CliRunner

from app.data import Feed
from app.file import File, NoControl
from app.panels import LIVE
from poascope.cli import cli
from poascope.errors import PoascopeError
from poascope.settings import Settings
from store import Store
from tests.app.test_report import BROWSER
from tests.conftest import CAPTURES, free_port, wait_for_port


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("file")
    for args in (
        ["import", str(CAPTURES / "aggregated-1.4.2.jsonl.gz"), "--store", str(folder / "s.duckdb")],
        ["export", "--store", str(folder / "s.duckdb"), "--out", str(folder / "night.duckdb")],
    ):
        assert CliRunner().invoke(cli, args).exit_code == 0
    return folder / "night.duckdb"


async def test_a_feed_shows_the_end_of_the_file(bundle: Path) -> None:
    """The newest second is the file's last one, judged as it was then; sources and control say that a file is shown."""
    file = File(bundle)
    feed = Feed(file, NoControl(), Settings(), file.clock)
    try:
        await feed.tick()
        body = msgspec.json.decode(await feed.answer(None, 300, "light", None, page=LIVE))
    finally:
        await file.client.aclose()
    assert body["now"] == pytest.approx(file.clock(), abs=1e-3) and body["cursor"] / 1e3 == pytest.approx(file.end, abs=1)
    assert body["sources"][0]["detail"].startswith("Replay of a file: night.duckdb, 20")
    assert "checksums verified" in body["sources"][0]["detail"] and body["points"]["ttft"]["ttft_p99"]["y"]


def test_an_empty_store_has_nothing_to_show(tmp_path: Path) -> None:
    """Said as one line."""
    Store.open(tmp_path / "e.duckdb").close()
    with pytest.raises(PoascopeError, match="nothing to show"):
        File(tmp_path / "e.duckdb")


@pytest.mark.real
def test_the_pages_of_a_bundle_in_a_fresh_environment(bundle: Path, tmp_path: Path) -> None:
    """In another folder, without collector, NATS or configuration: charts, a banner, no way to steer, the file unchanged."""
    before, port = bundle.read_bytes(), free_port()
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "NATS_SERVER": "nats://127.0.0.1:9"}
    command = [sys.executable, "-m", "poascope", "dash", str(bundle), "--dash-port", str(port)]
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)
    try:
        wait_for_port(port, 60)
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=BROWSER)
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(f"http://127.0.0.1:{port}/")
            expect(page.get_by_text("Replay of a file: night.duckdb")).to_be_visible(timeout=60_000)
            expect(page.get_by_text("there is nothing to steer")).to_be_visible(timeout=60_000)
            page.wait_for_selector("[data-panel=ttft] .main-svg", timeout=60_000)
            expect(page.get_by_role("link", name="Control")).to_have_count(0)
            browser.close()
        assert httpx.get(f"http://127.0.0.1:{port}/_stcore/health", timeout=10).status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert bundle.read_bytes() == before
