import asyncio
import json
from typing import Any

import pandas as pd
import pytest

from app.control import Control
from app.data import Collector, Feed
from app.incidents import link
from app.pages.replay import moment
from app.panels import PAGES
from app.past import Past, difference
from app.payload import step_s
from app.status import Objectives
from poascope.errors import PoascopeError
from poascope.settings import Settings
from tests.app.conftest import HOSTILE, Api, stamp

NOW = 1_767_268_800.0
LIVE = PAGES["live"]


def past(api: Api) -> Past:
    settings = Settings()
    return Past(Collector(f"http://127.0.0.1:{api.port}"), Objectives(settings.slo_ttft_s, settings.slo_itl_s), settings)


async def span(past: Past, start: float, end: float, **more: Any) -> dict[str, Any]:
    return json.loads(await past.span(LIVE, "dynamo", start, end, "light", more.get("anew", False)))  # type: ignore[no-any-return]


async def test_a_moment_is_what_the_live_page_showed_then(api: Api) -> None:
    """Sentence, tiles and their trends at ten instants equal those of the live page when it was that second."""
    settings, now = Settings(), NOW
    live = Feed(Collector(f"http://127.0.0.1:{api.port}"), Control(settings), settings, lambda: now)
    shown: dict[float, dict[str, Any]] = {}
    for i in range(70):
        late = i > 40
        api.signal(
            NOW + i,
            inflight=30.0 + 2 * i,
            ttft_p99_s=4.0 + i if late else 0.05,
            regime="saturated" if late else "below",
            poa_hat=1 + i / 99,
        )
        now = NOW + i
        if i % 7 == 0:
            await live.tick()
            shown[now] = json.loads(await live.answer("dynamo", 300, "light", None))
    then = past(api)
    for at, body in shown.items():
        again = json.loads(await then.moment(LIVE, "dynamo", at))
        for part in ("verdict", "tiles", "said", "trends"):
            assert again[part] == body[part], (at, part)
    assert len({json.dumps(body["tiles"]) for body in shown.values()}) == 10
    await asyncio.gather(live.collector.client.aclose(), then.source.client.aclose())  # type: ignore[attr-defined]


async def test_a_moment_without_rows_says_nothing(api: Api) -> None:
    """Where nothing was stored no number is shown, and an hour before data is not the data."""
    api.signal(NOW)
    body = json.loads(await past(api).moment(LIVE, "dynamo", NOW - 3600))
    assert body["verdict"]["level"] == "unknown" and body["verdict"]["answer"] == "Nothing was stored of this moment."
    assert {tile["value"] for tile in body["tiles"]} <= {"–", "unknown"}


async def test_an_old_row_of_the_games_was_no_answer_then(api: Api) -> None:
    """The Games page of the past goes by the age of the signals, too: after they stopped it said that it cannot tell."""
    api.signal(NOW)
    api.put("games", [{"ts": stamp(NOW), "deployment": "dynamo", "sentence": "The cache game costs most now: 1 s.", "costliest": "cache"}])
    said = [json.loads(await past(api).moment(PAGES["games"], "dynamo", at))["verdict"]["answer"] for at in (NOW + 1, NOW + 60)]
    assert said == ["The cache game costs most now:", "Cannot tell."]


async def test_a_span_has_its_points_and_what_happened(api: Api) -> None:
    """Figures are whole, points are those of the span, and the list beside them has regimes, overrides and gaps as text."""
    for i in range(60):
        api.signal(NOW + i, regime="below" if i < 30 else "saturated")
    acts = {"deployment": "dynamo", "kind": "intent", "actor": "ann", "mode": "freeze", "why": HOSTILE}
    api.put("decisions", [{"ts": stamp(NOW + 40)} | acts])
    api.put("gaps", [{"source": "nats", "kind": "disconnected", "from": stamp(NOW + 50), "to": stamp(NOW + 51)}])
    body = await span(past(api), NOW + 10, NOW + 55)
    assert set(body["figures"]) == set(body["points"])
    assert body["xs"][body["points"]["ttft"]["ttft_p99"]["x"]][0] == int(NOW + 10) * 1000
    assert body["rows"] == 45
    assert [(e["kind"], e["at"] / 1e3 - NOW) for e in body["events"]] == [("regime", 30), ("override", 40), ("gap", 50)]
    assert body["events"][1]["why"] == HOSTILE
    assert "differs" not in body


async def test_what_is_recomputed_lies_over_what_was_stored(api: Api) -> None:
    """Today's estimators are lines of their own, and the difference is said; spans too long for it are refused in a sentence."""
    for i in range(20):
        api.signal(NOW + i, poa_hat=2.0)
    body = await span(past(api), NOW, NOW + 20, anew=True)
    assert "poa_again" in body["points"]["poa"] and "ttft_again" in body["points"]["ttft"]
    assert body["differs"].startswith("Nothing stored to compare with")  # no request was stored, so nothing is known today
    refused = await span(past(api), NOW, NOW + 7200, anew=True)
    assert "at most 1 h" in refused["source"]["todo"]


def test_the_difference_is_told_where_both_are_known() -> None:
    """Median and largest relative difference, of instants that both have."""
    ts = pd.to_datetime([0, 1, 2], unit="s")
    stored = pd.DataFrame({"ts": ts, "poa_hat": [1.0, 2.0, None], "ttft_p99_s": [None, None, None]})
    new = pd.DataFrame({"ts": ts, "poa_hat": [1.0, 2.2, 5.0], "ttft_p99_s": [1.0, 1.0, 1.0]})
    assert difference(stored, new).startswith("PoA-hat differs by 5 % (median), 10 % at most, over 2 instants.")


@pytest.mark.parametrize(("length", "step"), [(60, 1), (300, 1), (301, 2), (86400, 120), (86401, 180), (7 * 86400, 840)])
def test_a_line_has_at_most_720_points(length: float, step: int) -> None:
    """The bins of the live page's ranges, and for longer spans whole minutes."""
    assert step_s(length) == step and length / step <= 720


async def test_a_source_that_fails_is_said(api: Api) -> None:
    """A collector that is away gives a sentence, not an error page."""
    then = past(api)
    api.stop()
    for answer in (await then.moment(LIVE, "dynamo", NOW), await then.span(LIVE, "dynamo", NOW, NOW + 9, "light", False)):
        body = json.loads(answer)
        assert body["source"]["state"] == "down" and "does not answer" in body["source"]["todo"]
    with pytest.raises(PoascopeError):
        await then.source.table("signals")


@pytest.mark.parametrize(
    "text", ["", "nan", "inf", "-1e300", "1e308", "-5", "99999999999999", "0001-01-01", "9999-12-31T23:59:59Z", "<img src=x>"]
)
def test_a_moment_of_a_link_is_one_that_a_browser_can_show(text: str) -> None:
    """Rubbish, and times that neither JSON nor a calendar has, are no moment: the page says so, and no part of it fails."""
    assert moment(text) is None
    assert moment("2026-11-29T20:57:00Z") == moment("2026-11-29 20:57:00") == moment("1795985820") == 1795985820.0


def test_the_link_of_any_incident_can_be_made() -> None:
    """An incident at the end of the calendar, or before it began, is a line of the list like others; it does not take the list along."""
    assert link("dynamo", -120.0, 253_402_300_910.0) == "replay?deployment=dynamo&from=1970-01-01T00%3A00%3A00Z&to=2286-11-20T17%3A46%3A39Z"
