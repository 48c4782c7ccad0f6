"""The dashboard's row of the fault matrix, one cell; all of them are in `bench/faults.py`."""

import time
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.conftest import sign_in
from tests.e2e.conftest import Line, eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
SLOW_MS = 60_000


def test_an_override_outlives_the_dashboard_on_which_it_was_pressed(line: Line, load: Path, page: Page) -> None:
    """kill -9 as soon as the intent is written: it is applied all the same, and the page that comes back shows it and can end it."""

    def open_page() -> None:
        sign_in(page, line.dash, line.token)
        page.goto(f"{line.dash}/control")
        expect(page.get_by_role("button", name="Review")).to_be_visible(timeout=SLOW_MS)

    def told(kind: str, tau: float | None) -> bool:
        return any((row["kind"], row["tau"]) == (kind, tau) for row in line.rows("decisions", **{"from": since}))

    open_page()
    expect(page.locator("[data-link=wanted]")).to_contain_text("auto", timeout=SLOW_MS)  # who has seen nothing yet is refused
    page.get_by_text("transition: ").click(timeout=SLOW_MS)
    page.get_by_label("Reason").fill("e2e: the dashboard dies")
    page.get_by_role("button", name="Review").click()
    since = time.time()
    page.get_by_role("button", name="Confirm").click(timeout=SLOW_MS)
    eventually(lambda: told("intent", 0.7))
    line.kill("dash")
    eventually(lambda: told("ack", 0.7))
    line.start("dash")
    eventually(lambda: httpx.get(f"{line.dash}/_stcore/health").status_code == 200)
    open_page()
    expect(page.locator("[data-link=wanted]")).to_contain_text("transition τ 0.7 ω 1", timeout=SLOW_MS)
    expect(page.locator("[data-link=acknowledged]")).to_contain_text("τ 0.7 ω 1", timeout=SLOW_MS)
    expect(page.locator(".pw-run")).to_contain_text("for another 14 min", timeout=SLOW_MS)
    page.get_by_role("button", name="Cancel override").click(timeout=SLOW_MS)
    eventually(lambda: told("ack", 0.0))
    assert sum(row["kind"] == "target" and row["mode"] == "manual" for row in line.rows("decisions", **{"from": since})) == 1
