"""Signing in to write, in a real browser: by an operator's token, and at a real OpenID Connect provider."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from app.tokens import Tokens
from controller import bus
from controller.protocol import Intent
from tests.app.conftest import Api, Dash, Pulse
from tests.conftest import NatsServer, free_port, wait_for_port

ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
PROVIDER = Path(__file__).parents[1] / "oidc"
pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGS)
        yield browser
        browser.close()


@pytest.fixture
def pulse(api: Api) -> Iterator[Pulse]:
    pulse = Pulse(api)
    yield pulse
    pulse.stop()


@pytest.fixture
def dash(api: Api, nats_server: NatsServer, tmp_path: Path) -> Iterator[Dash]:
    dash = Dash(api.port, nats_server.url, tmp_path)
    yield dash
    dash.stop()


@pytest.fixture
def provider() -> Iterator[Callable[[str], int]]:
    """Call it with the dashboard's address for the port of a provider that knows it; the client's secret is `s3cret`."""
    started: list[subprocess.Popen[bytes]] = []

    def start(dash_url: str) -> int:
        node, port = shutil.which("node"), free_port()
        assert node and (PROVIDER / "node_modules").is_dir(), "scripts/setup --test brings node and tests/oidc/node_modules"
        command = [node, "server.mjs", str(port), "s3cret", f"{dash_url}/oauth2callback"]
        started.append(subprocess.Popen(command, cwd=PROVIDER, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        wait_for_port(port, 60)
        return port

    yield start
    for process in started:
        process.kill()
        process.wait()


def wanted(nats_server: NatsServer) -> bus.Stored[Intent]:
    with ThreadPoolExecutor(1) as thread:  # playwright has the loop of this one
        return thread.submit(bus.call, nats_server.url, lambda b: b.intent("dynamo")).result()


def review(page: Page, reason: str) -> None:
    page.get_by_text("transition: τ").click()
    page.get_by_label("Reason").fill(reason)
    page.get_by_role("button", name="Review").click()
    expect(page.get_by_role("button", name="Confirm")).to_be_visible(timeout=60_000)


def override(page: Page, reason: str) -> None:
    review(page, reason)
    page.get_by_role("button", name="Confirm").click()


def test_a_token_once_and_who_it_is_on_the_page(dash: Dash, pulse: Pulse, browser: Browser, nats_server: NatsServer) -> None:
    """A viewer sees no button; the token is asked for once, survives a reload, signs the intent, and is gone after signing out."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(f"{dash.url}/control?range=15%20min")
    token = page.get_by_label("Operator token")
    expect(token).to_be_visible(timeout=60_000)
    expect(page.get_by_role("button", name="Review")).to_have_count(0)
    token.fill("ann:wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("This is no operator's token.")).to_be_visible()
    page.get_by_label("Operator token").fill(dash.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("Signed in as ann")).to_be_visible(timeout=30_000)
    assert "range=15" in page.url
    page.reload()
    expect(page.get_by_text("Signed in as ann")).to_be_visible(timeout=30_000)
    assert dash.token.partition(":")[2] not in page.content()
    override(page, "by token")
    expect(page.locator("[data-link=wanted]")).to_contain_text("transition", timeout=30_000)
    written = wanted(nats_server).value
    assert written is not None and written.operator == "ann"
    page.get_by_role("button", name="sign out").click()
    expect(page.get_by_label("Operator token")).to_be_visible(timeout=30_000)
    expect(page.get_by_role("button", name="Cancel override")).to_have_count(0)
    assert page.evaluate("document.cookie").count("poascope") == 0


def test_a_token_taken_away_counts_at_once(dash: Dash, pulse: Pulse, browser: Browser, nats_server: NatsServer, tmp_path: Path) -> None:
    """Whoever is signed in by a token that was removed or made anew presses in vain."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(f"{dash.url}/control")
    page.get_by_label("Operator token").fill(dash.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Review")).to_be_visible(timeout=60_000)
    review(page, "with the old token")
    Tokens(tmp_path / "operators.json").add("ann", renew=True)
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_label("Operator token")).to_be_visible(timeout=30_000)
    assert wanted(nats_server).revision == 0


def test_openid_connect(
    api: Api, pulse: Pulse, browser: Browser, nats_server: NatsServer, provider: Callable[[str], int], tmp_path: Path
) -> None:
    """On the list by a verified address: may write, under that address. Not on it, or not verified: logged in, and may look."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    env = {
        "POASCOPE_DASH_PORT": str(port),
        "POASCOPE_OIDC_URL": f"http://127.0.0.1:{provider(url)}",
        "POASCOPE_OIDC_CLIENT_ID": "poascope",
        "POASCOPE_OIDC_CLIENT_SECRET": "s3cret",
        "POASCOPE_OPERATORS": "Ann@example.org",
        "POASCOPE_DASH_TOKEN": "look",
    }
    dash = Dash(api.port, nats_server.url, tmp_path, port=port, **env)
    try:
        for who in ("ann", "eve", "mallory"):
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            page = context.new_page()
            page.goto(f"{url}/control?token=look")
            page.get_by_role("button", name="Log in to send overrides").click(timeout=60_000)
            page.get_by_placeholder("Enter any login").fill(who, timeout=90_000)
            page.get_by_placeholder("and password").fill("any")
            page.get_by_role("button", name="Sign-in").click()
            page.get_by_role("button", name="Continue").click()
            page.wait_for_url(f"{url}/**", timeout=60_000)
            expect(page.get_by_test_id("live")).to_be_visible(timeout=60_000)
            page.goto(f"{url}/control")
            if who == "ann":
                expect(page.get_by_text("Signed in as ann@example.org")).to_be_visible(timeout=60_000)
                override(page, "by OIDC")
                expect(page.locator("[data-link=wanted]")).to_contain_text("transition", timeout=30_000)
                written = wanted(nats_server)
                assert written.value is not None and written.value.operator == "ann@example.org"
            else:
                expect(page.get_by_text("@example.org may look")).to_be_visible(timeout=60_000)
                expect(page.get_by_role("button", name="Review")).to_have_count(0)
            context.close()
        assert wanted(nats_server).revision == written.revision
    finally:
        dash.stop()
