"""The Games page on a real cluster under load."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.conftest import Line, eventually

pytestmark = pytest.mark.real
SECONDS = 60_000


def test_the_page_says_which_game_costs_most(line: Line, load: Path, page: Page) -> None:
    """Eight users on one prefill and two decode workers: the sentence, its numbers and every panel come from the collector's own row;
    blocks lost to routing are none where there is one worker to go to."""
    row = eventually(
        lambda: next(
            (r for r in reversed(line.rows("games", deployment="dynamo")) if r["costliest"] and r["ttft_gain_s"] is not None), None
        ),
        90,
    )
    assert (row["prefill_workers"], row["lost_blocks"]) == (1, 0)
    assert row["hit_possible_ratio"] == row["hit_chosen_ratio"]
    page.goto(f"{line.dash}/games")
    live = page.get_by_test_id("live")
    expect(live.locator(".pw-verdict b")).to_have_text(
        re.compile(r"^(No game costs much now|The (routing|cache|resource) game costs most now):"), timeout=SECONDS
    )
    expect(live.locator(".pw-verdict span")).to_have_text(re.compile(r"\d s a request, [\d.]+ % of its time"))
    for tile in ("resources", "busy", "wait"):  # hits are unknown to a collector that was started after the caches were warm
        expect(live.locator(f"[data-tile={tile}] strong")).to_have_text(re.compile(r"^[\d.]+$"), timeout=SECONDS)
    for panel in ("costs", "loads", "hits", "wait", "busy", "gains"):
        expect(live.locator(f"[data-panel={panel}] .js-line").first).to_be_attached(timeout=SECONDS)
    expect(live.locator("[data-panel=gains] .pw-said")).to_contain_text("social optimum", timeout=SECONDS)
    expect(live.locator("[data-panel=coupling] .pw-said")).to_contain_text("with 1 prefill and", timeout=SECONDS)
