"""The Games page: words, figures, and the page in a browser over the real read API."""

import time
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest

from app.charts import games as charts
from app.games import ASSUMED, head, verdict
from app.page import Given
from app.panels import GAMES, PAGES
from app.payload import figures
from app.status import Objectives
from app.theme import DARK, LIGHT

AT = 1_767_268_800.0
OBJECTIVES = Objectives(1.0, 0.05)
EMPTY = pd.DataFrame({"ts": pd.Series([], dtype="datetime64[us]")})
ROW: dict[str, Any] = {
    "at": AT,
    "finished": 100,
    "costliest": "cache",
    "cost_s": 30.0,
    "sentence": "The cache game costs most now: 0.3 s a request, 20 % of its time (30 s in the last 30 s).",
    "lever": "A higher ω follows the cache: 412 blocks that another worker held were computed again.",
    "routing_ratio": 1.01,
    "imbalance_s": 2.0,
    "hit_possible_ratio": 0.9,
    "hit_chosen_ratio": 0.5,
    "hit_realised_ratio": 0.52,
    "lost_blocks": 412.0,
    "cache_miss_s": 30.0,
    "tiers": ["device", "host_pinned"],
    "tier_blocks": [900, 40],
    "prefill_workers": 2,
    "decode_workers": 2,
    "prefill_busy_ratio": 0.93,
    "decode_busy_ratio": 0.4,
    "wait_s": 0.25,
    "wait_predicted_s": 0.2,
    "prefill_queue_s": 10.0,
    "equilibrium_prefill": 3,
    "optimum_prefill": 2,
    "e2e_s": 5.6,
    "e2e_optimum_s": 5.6,
    "coupling": ["Cache → resources: had they been found, prefill would be 40 % busy instead of 93 %."],
    "quality": [],
}


def test_the_sentence_leads_and_the_costliest_is_marked() -> None:
    """The sentence is split at its first colon, the lever is what to do; costs are for a finished request."""
    found = head({"games": [ROW]}, 1.0, OBJECTIVES)
    assert (found.verdict.level, found.verdict.answer) == ("watch", "The cache game costs most now:")
    assert found.verdict.todo.startswith("A higher ω")
    tiles = {tile.key: tile for tile in found.tiles}
    assert [(tiles[k].value, tiles[k].unit) for k in ("routing", "cache", "resources")] == [
        ("20", "ms a request"),
        ("300", "ms a request"),
        ("100", "ms a request"),
    ]
    assert (tiles["cache"].state, tiles["routing"].state) == ("warn", "sound")
    assert tiles["cache"].trust == "50 % chosen of 90 % possible" and tiles["wait"].trust == "M/G/k 200 ms"
    assert tiles["hits"].value == "52.0" and "412 lost to routing" in tiles["hits"].trust


def test_assumptions_and_tiers_are_said_in_their_panels() -> None:
    """The split names both notions and what it assumes; blocks are counted by tier; coupling is a panel of words."""
    said = head({"games": [ROW]}, 1.0, OBJECTIVES).said
    assert said["gains"][0].startswith("Of 4 workers 2 prefill.") and "has 3, the social optimum 2." in said["gains"][0]
    assert said["gains"][1] == ASSUMED
    assert said["hits"] == ["412 blocks lost to routing: another worker held them.", "Held: 900 in device, 40 in host_pinned."]
    assert said["coupling"] == ROW["coupling"]
    assert set(said) <= {panel.key for panel in GAMES.panels}


def test_what_is_not_known_says_why() -> None:
    """No KV events, one pool, or too few requests: dashes and reasons, never zeros."""
    quality = [
        "resources: one pool does prefill and decode, so there is no split between them",
        "cache: no KV events from 2 of 2 workers, so what only they held is unknown",
        "doubt: 3 finished < 8",
    ]
    nulls = dict.fromkeys(k for k in ROW if k not in ("at", "finished", "sentence", "imbalance_s", "costliest"))
    found = head({"games": [ROW | nulls | {"quality": quality}]}, 1.0, OBJECTIVES)
    tiles = {tile.key: tile for tile in found.tiles}
    assert [tiles[k].value for k in ("cache", "resources", "hits", "busy", "wait")] == ["–"] * 5
    assert "no KV events from 2 of 2 workers" in tiles["hits"].trust
    assert tiles["resources"].trust == "one pool does prefill and decode, so there is no split between them"
    assert (tiles["routing"].state, found.verdict.level) == ("hollow", "unknown")
    assert found.said["hits"] == ["No KV events from 2 of 2 workers, so what only they held is unknown."]
    assert found.said["busy"] == ["One pool does prefill and decode, so there is no split between them."]


def test_what_holds_for_several_numbers_is_said_once() -> None:
    """Three numbers missing for one reason: the panel gives it once."""
    reason = "not known for enough of the requests"
    found = head(
        {"games": [ROW | {"quality": [f"{column}: {reason}" for column in ("hit_possible", "hit_chosen", "hit_realised")]}]},
        1.0,
        OBJECTIVES,
    )
    assert found.said["hits"].count("Not known for enough of the requests.") == 1


def test_old_or_missing_rows_are_no_answer() -> None:
    """Signals of a minute ago, or no row yet: cannot tell."""
    assert verdict(ROW, 60.0).answer == "Cannot tell."
    assert head({"games": []}, None, OBJECTIVES).verdict.answer == "Nothing to judge yet."
    assert all(tile.value == "–" for tile in head({"games": []}, None, OBJECTIVES).tiles)


def binned(*rows: dict[str, Any]) -> pd.DataFrame:
    frame = pd.DataFrame(list(rows))
    frame["ts"] = pd.to_datetime([AT * 1e3 + 5000 * i for i in range(len(rows))], unit="ms").astype("datetime64[us]")
    return frame


def trace(figure: go.Figure, name: str) -> Any:
    return next(t for t in figure.data if t.name == name)


@pytest.mark.parametrize("draw", [charts.costs, charts.shares, charts.busy, charts.waits, charts.gains, charts.loads])
@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_an_empty_frame_says_no_data(draw: Any, theme: Any) -> None:
    """Every figure of nothing says so."""
    assert [a.text for a in draw(EMPTY, theme=theme).layout.annotations] == ["no data"]


def test_figures_carry_values_and_units() -> None:
    """Seconds a request, percent, milliseconds of ITL: as the axes say."""
    frame = binned(
        {
            "imbalance_each_s": 0.1,
            "cache_miss_each_s": None,
            "prefill_queue_each_s": 2.0,
            "hit_possible_ratio": 0.9,
            "hit_chosen_ratio": 0.5,
        }
        | {"hit_realised_ratio": 0.52, "prefill_busy_ratio": 0.93, "decode_busy_ratio": None, "wait_s": 0.25, "wait_predicted_s": None}
        | {"ttft_gain_s": 1.6, "itl_gain_s": 0.0002}
    )
    costs = charts.costs(frame)
    assert costs.layout.yaxis.title.text == "cost (s a request)"
    assert [list(t.y) for t in costs.data] == [[0.1], [None], [2.0]]
    assert [list(t.y) for t in charts.shares(frame).data] == [[90.0], [50.0], [52.0]]
    assert list(trace(charts.busy(frame), "prefill").y) == [93.0] and list(trace(charts.busy(frame), "decode").y) == [None]
    assert list(trace(charts.waits(frame), "measured").y) == [0.25] and list(trace(charts.waits(frame), "M/G/k").y) == [None]
    gains = charts.gains(frame)
    assert list(trace(gains, "decode worker").y) == [0.2] and gains.layout.yaxis2.title.text == "ITL (ms)"


def test_load_and_optimum_stand_in_one_picture() -> None:
    """Each worker its line, each pool its optimum, dotted; ids stay text to the last digit."""
    base = {"deployment": "d", "role": "prefill", "component": "prefill", "dp_rank": 0, "optimum": 2.0}
    frame = pd.DataFrame([base | {"worker_id": str(2**64 - i), "inflight": float(i)} for i in (1, 3)])
    frame["ts"] = pd.to_datetime([AT * 1e3] * 2, unit="ms").astype("datetime64[us]")
    figure = charts.loads(frame)
    assert sorted(t.y[0] for t in figure.data if not t.uid.startswith("optimum")) == [1.0, 3.0]
    assert trace(figure, "prefill optimum").y == (2.0,) and trace(figure, "prefill optimum").line.dash == "dot"
    assert any(str(2**64 - 1) in t.hovertemplate for t in figure.data)


def test_a_page_is_its_panels() -> None:
    """Every panel with a chart draws from the queries its page names, and the pages are known by name."""
    given = Given({"signals": EMPTY, "decisions": EMPTY} | dict.fromkeys(GAMES.queries, EMPTY), OBJECTIVES, LIGHT)
    assert set(figures(GAMES, given)) == {p.key for p in GAMES.panels if p.draw}
    assert PAGES["games"] is GAMES


async def test_the_feed_answers_for_the_page(api: Any) -> None:
    """/live of the page: the head from the newest row of `games`, figures of its panels, and only new points after that."""
    import json

    from app.control import Control
    from app.data import Collector, Feed
    from poascope.settings import Settings
    from tests.app.conftest import stamp

    settings = Settings()
    now = time.time()
    feed = Feed(Collector(f"http://127.0.0.1:{api.port}"), Control(settings), settings)
    api.signal(now - 1)
    row = {k: v for k, v in ROW.items() if k != "at"}
    api.put("games", [row | {"ts": stamp(now - 6), "deployment": "dynamo"}, row | {"ts": stamp(now - 1), "deployment": "dynamo"}])
    load = {"deployment": "dynamo", "role": "prefill", "worker_id": 2**64 - 1, "dp_rank": 0, "load": 3.0, "optimum": 2.0}
    api.put("game_loads", [load | {"ts": stamp(now - 1)}])
    try:
        await feed.tick()
        first = json.loads(await feed.answer("dynamo", 300, "light", None, page=GAMES))
        assert first["verdict"]["answer"] == "The cache game costs most now:" and first["said"]["coupling"] == ROW["coupling"]
        assert set(first["figures"]) == {p.key for p in GAMES.panels if p.draw}
        assert first["points"]["costs"]["cache_miss_s_each"]["y"] == [0.3, 0.3]
        assert str(2**64 - 1) in next(iter(first["points"]["loads"])), "ids travel as text"
        api.signal(now)
        await feed.tick()
        second = json.loads(await feed.answer("dynamo", 300, "light", first["cursor"], page=GAMES))
        assert "figures" not in second and second["points"]["costs"]["cache_miss_s_each"]["y"] in ([], [0.3])
    finally:
        await feed.collector.client.aclose()
