"""The page in a real browser, over the real read API."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.app.conftest import HOSTILE, Api, Dash, Pulse, stamp
from tests.conftest import NatsServer, sign_in

ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    # Opened at the address of a page, Streamlit asks for itself below it first, and is told 404.
    own = "/control/_stcore/"
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" and own not in m.location["url"] else None)
    yield page
    context.close()
    assert not errors


@pytest.fixture
def dash(api: Api, nats_server: NatsServer, tmp_path: Path) -> Iterator[Dash]:
    dash = Dash(api.port, nats_server.url, tmp_path)
    yield dash
    dash.stop()


@pytest.fixture
def pulse(api: Api) -> Iterator[Callable[[], None]]:
    """Call it for a row of signals a second from now on."""
    started: list[Pulse] = []
    yield lambda: started.append(Pulse(api))
    for each in started:
        each.stop()


def text(page: Page, selector: str) -> str:
    return page.locator(selector).inner_text()


def test_numbers_change_a_zoom_survives_and_the_source_comes_back(api: Api, dash: Dash, page: Page, pulse: Callable[[], None]) -> None:
    """The page lives without navigation, keeps what the viewer zoomed to, and says within 10 s that its source is dead."""
    for i in range(60):
        api.signal(time.time() - 61 + i)
    pulse()
    page.goto(dash.url)
    expect(page.locator("[data-tile=inflight] strong")).not_to_have_text("–", timeout=30_000)
    page.wait_for_selector("[data-panel=ttft] .main-svg")
    navigations: list[str] = []
    page.on("framenavigated", lambda frame: navigations.append(frame.url))
    before = text(page, "[data-tile=inflight] strong")
    expect(page.locator("[data-tile=inflight] strong")).not_to_have_text(before, timeout=5_000)

    box = page.locator("[data-panel=ttft] .nsewdrag").first.bounding_box()
    assert box
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.85, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.95, middle, steps=5)
    page.mouse.up()
    expect(page.get_by_role("button", name="reset zoom").first).to_be_visible()
    ranges = "() => [...document.querySelectorAll('.pw-plot')].map(p => p.layout.xaxis.range.map(v => +new Date(v)))"
    page.wait_for_function(f"() => new Set(({ranges})().map(String)).size === 1", timeout=10_000)
    zoomed = page.evaluate(ranges)
    points = page.evaluate("() => document.querySelector('[data-panel=ttft] .pw-plot').data[4].x.length")
    page.wait_for_function(f"() => document.querySelector('[data-panel=ttft] .pw-plot').data[4].x.length > {points}", timeout=5_000)
    assert page.evaluate(ranges) == zoomed

    # The early warning is a line of words on the same page, and a calm verdict yields to it.
    now = stamp(time.time())
    rang = {"event": "alarm", "state": "alarm", "since": now, "value": 0.08, "reference": 0.25, "watched_s": 60.0}
    api.put("alarms", [{"ts": now, "deployment": "dynamo", "signal": "headroom"} | rang])
    expect(page.locator("[data-panel=alarm]")).to_contain_text("Ringing since", timeout=30_000)
    expect(page.locator("[data-panel=alarm]")).to_contain_text("No breach yet: untested.")
    expect(page.locator(".pw-verdict")).to_contain_text("the early warning rings", timeout=30_000)

    api.stop()
    expect(page.locator("[data-testid=live]")).to_have_attribute("data-source", "down", timeout=10_000)
    assert text(page, "[data-tile=inflight] strong") != "–"
    api.start()
    expect(page.locator("[data-testid=live]")).to_have_attribute("data-source", "ok", timeout=10_000)
    assert not navigations


def test_hostile_names_are_text(api: Api, dash: Dash, page: Page) -> None:
    """Markup in names of deployments and workers, and in the audit log, is shown, not run, and breaks no layout."""
    now = time.time()
    said = {"ts": stamp(now - 2), "deployment": HOSTILE, "kind": "intent", "actor": HOSTILE, "mode": HOSTILE, "why": HOSTILE}
    api.put("decisions", [said | {"tau": 0.7, "omega": 1.0}])
    for i in range(5):
        api.signal(now - 5 + i, HOSTILE, quality=["<img src=x onerror=window.pwned=1>"])
        api.worker(now - 5 + i, 2**64 - 1, HOSTILE, component=HOSTILE, role="")
    page.goto(dash.url)
    expect(page.locator("[data-panel=workers] .pw-legend button")).to_have_count(1, timeout=30_000)
    assert "<img src" in text(page, "[data-panel=workers] .pw-legend")
    page.locator("[data-panel=workers] .nsewdrag").first.hover()
    page.wait_for_timeout(500)
    assert page.evaluate("window.pwned === undefined && document.querySelectorAll('[data-testid=live] img').length === 0")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.goto(f"{dash.url}/control")
    expect(page.get_by_test_id("log").locator("li")).to_contain_text("<img src=x", timeout=30_000)
    assert page.evaluate("window.pwned === undefined && document.querySelectorAll('.pw img').length === 0")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_an_empty_page_fills_by_itself(api: Api, dash: Dash, page: Page, pulse: Callable[[], None]) -> None:
    """Before any deployment the page says what is missing; the first one brings numbers and what is in force without a reload."""
    api.sources[:] = [{"name": "events", "state": "absent", "age_s": None, "detail": "start the frontends with --router-replica-sync"}]
    sign_in(page, dash.url, dash.token)
    page.goto(dash.url)
    expect(page.locator(".pw-blank")).to_contain_text("--router-replica-sync", timeout=30_000)
    expect(page.locator(".pw-tiles")).to_be_hidden()
    pulse()
    expect(page.locator("[data-tile=poa] strong")).to_have_text("1.02", timeout=10_000)
    expect(page.locator("[data-link=wanted]")).to_contain_text("auto", timeout=60_000)


def test_an_override_typed_and_clicked_twice_is_one(
    api: Api, dash: Dash, page: Page, nats_server: NatsServer, pulse: Callable[[], None]
) -> None:
    """What was typed is repeated, and is what is sent, once; it is shown as wanted with its countdown, and cancelled by a button."""
    pulse()
    sign_in(page, dash.url, dash.token)
    page.goto(dash.url + "/control?range=15%20min")
    expect(page.locator("[data-link=wanted]")).to_contain_text("auto", timeout=30_000)
    page.get_by_text("transition: τ").click()
    page.get_by_label("Reason").fill("a <b>trial</b>")
    page.get_by_role("button", name="Review").dblclick()
    expect(page.get_by_test_id("stVerticalBlock").filter(has_text="Do this?").last).to_contain_text("a <b>trial</b>", timeout=60_000)
    page.get_by_role("button", name="Confirm").dblclick()
    expect(page.locator("[data-link=wanted]")).to_contain_text("transition τ 0.7 ω 1", timeout=60_000)
    expect(page.locator(".pw-run")).to_contain_text("for another 14 min")
    expect(page.locator(".pw-run")).to_contain_text("a <b>trial</b>")
    expect(page.locator(".pw-note")).to_contain_text("revision 1.", timeout=60_000)
    page.get_by_role("button", name="Cancel override").click()
    expect(page.locator("[data-link=wanted]")).to_contain_text("auto", timeout=60_000)
    expect(page.locator(".pw-note")).to_contain_text("revision 2.", timeout=60_000)
    page.get_by_role("button", name="Review").click()
    expect(page.locator(".pw-note")).to_contain_text("reason: empty", timeout=60_000)
    assert "range=15" in page.url
    nats_server.kill()
    expect(page.locator(".pw-problem")).to_contain_text("Overrides cannot be sent now", timeout=10_000)
