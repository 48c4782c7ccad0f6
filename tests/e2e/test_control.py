"""The Control page on a real cluster: from a look at the numbers to the log of what they brought."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from app.tokens import Tokens
from tests.conftest import sign_in
from tests.e2e.conftest import BROWSER, Line, eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
SLOW_MS = 60_000


@pytest.fixture
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=BROWSER)
        yield browser
        browser.close()


@pytest.fixture
def bob(line: Line) -> Iterator[str]:
    """The token of a second operator."""
    tokens = Tokens(line.folder / "operators.json")
    yield tokens.add("bob", renew=True)
    tokens.remove("bob")


def operator(browser: Browser, line: Line, token: str) -> Page:
    """A browser of its own, signed in, on the Control page."""
    page = browser.new_context(viewport={"width": 1280, "height": 1400}).new_page()
    sign_in(page, line.dash, token)
    page.goto(f"{line.dash}/control")
    expect(page.get_by_role("button", name="Review")).to_be_visible(timeout=SLOW_MS)
    expect(page.locator("[data-link=wanted]")).to_contain_text("auto", timeout=SLOW_MS)
    return page


def review(page: Page, choice: str, reason: str) -> None:
    page.get_by_text(f"{choice}: ").click()
    page.get_by_label("Reason").fill(reason)
    page.get_by_role("button", name="Review").click()
    expect(page.get_by_role("button", name="Confirm")).to_be_visible(timeout=SLOW_MS)


def test_two_operators_one_override_and_the_log_of_it(line: Line, load: Path, browser: Browser, bob: str) -> None:
    """Reviewed, confirmed twice, applied once, seen in requests and on the Live chart; the second operator is told who was first."""
    ann, other = operator(browser, line, line.token), operator(browser, line, bob)
    expect(ann.get_by_test_id("board")).to_contain_text("Next decision", timeout=SLOW_MS)
    expect(ann.locator("[data-link=observed]")).to_contain_text("τ 0 ω 1", timeout=SLOW_MS)
    since = time.time()
    review(ann, "transition", "e2e <i>control</i>")
    review(other, "saturated", "e2e second")
    asked = ann.locator(".pw-note[data-kind=ask]")
    expect(asked).to_contain_text("Set τ 0.7 ω 1 (transition) on dynamo for 15 min, then back to auto.")
    expect(asked).to_contain_text("As ann: e2e <i>control</i>")
    expect(asked).to_contain_text("Expected effect of τ 0.7 ω 1:")

    ann.get_by_role("button", name="Confirm").dblclick()
    expect(ann.locator("[data-link=wanted]")).to_contain_text("transition τ 0.7 ω 1", timeout=SLOW_MS)
    expect(ann.locator("[data-link=acknowledged]")).to_contain_text("τ 0.7 ω 1", timeout=SLOW_MS)
    other.get_by_role("button", name="Confirm").click()
    expect(other.locator(".pw-note[data-kind=bad]")).to_contain_text("overtaken by ann", timeout=SLOW_MS)
    expect(ann.locator("[data-link=observed]")).to_contain_text("τ 0.7 ω 1", timeout=SLOW_MS)
    expect(other.locator(".pw-run")).to_contain_text("for another 14 min", timeout=SLOW_MS)
    before = ann.locator(".pw-run").inner_text()
    expect(ann.locator(".pw-run")).not_to_have_text(before, timeout=SLOW_MS)

    other.goto(line.dash)
    signs = other.locator("[data-panel=poa] .annotation-text-g")
    expect(signs.last).to_be_visible(timeout=SLOW_MS)

    def told() -> str:
        """What the last sign says while the mouse is on it."""
        signs.last.hover(force=True)
        return other.locator("[data-panel=poa] .hoverlayer").text_content() or ""

    eventually(lambda: other.wait_for_timeout(300) or "e2e <i>control</i>" in told())
    assert "ann: intent, manual τ 0.7 ω 1" in told()

    ann.get_by_role("button", name="Cancel override").click()
    expect(ann.locator("[data-link=wanted]")).to_contain_text("auto", timeout=SLOW_MS)
    expect(ann.locator("[data-link=observed]")).to_contain_text("τ 0 ω 1", timeout=SLOW_MS)
    rows = line.rows("decisions", **{"from": since})
    assert [(row["actor"], row["mode"]) for row in rows if row["kind"] == "intent"] == [("ann", "manual"), ("ann", "auto")]
    assert [row["actor"] for row in rows if row["kind"] == "refusal"] == ["bob"]

    log = ann.get_by_test_id("log")
    expect(log.locator("li[data-kind=intent]").filter(has_text="e2e <i>control</i>")).to_contain_text("ann", timeout=SLOW_MS)
    expect(log.locator("li[data-kind=refusal]").filter(has_text="overtaken by ann")).to_contain_text("bob")
    ann.get_by_label("Who").fill("bob")
    ann.get_by_label("Who").press("Enter")
    expect(log.locator("li[data-kind=intent]")).to_have_count(0, timeout=SLOW_MS)
    expect(log.locator("li[data-kind=refusal]").first).to_contain_text("bob")
