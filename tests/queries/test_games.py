from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poascope.settings import Settings
from queries.estimators.cache import Hits
from queries.estimators.latency import Curve
from queries.estimators.resources import Loop
from queries.games import Costs, costliest, coupling, games
from queries.memory import Memory
from queries.window import Metrics, Quantile, Requests, Window

T0 = 1_800_000_000.0
CURVES = {"prefill": Curve(0.055, 0.055, requests=100, loads=9), "decode": Curve(2.0, 0.001, requests=100, loads=9)}


def requests(prefill: list[int], own: float = 0.0, best: float = 4.0) -> Requests:
    """One request a half second, each 0.5 s in prefill on the worker given (0 and 1) and 2 s in decode on workers 2 and 3; 8 blocks."""
    n = len(prefill)
    start = T0 + 0.5 * np.arange(n)
    return Requests(
        request_id=np.array([f"r{i}" for i in range(n)], dtype=object),
        arrived_at=start,
        prefill_done_at=start + 0.5,
        decode_started_at=start + 0.5,
        first_token_at=start + 0.52,
        finished_at=start + 2.5,
        prefill=np.array(prefill),
        decode=np.array([2 + i % 2 for i in range(n)]),
        prefill_inflight=np.zeros(n),
        decode_inflight=np.zeros(n),
        input_blocks=np.full(n, 8.0),
        overlap_blocks=np.full(n, own),
        lost=np.zeros(n, dtype=np.bool_),
        workers=((2**64 - 1, 0), (2**64 - 2, 0), (3, 0), (4, 0)),
        best_overlap_blocks=np.full(n, best),
        cached_blocks=np.full(n, own),
    )


def window(r: Requests, **more: object) -> Window:
    end = float(np.nanmax(r.finished_at)) + 0.5
    known = {"kv_silent": 0, "kv_served": 2, "metrics": Metrics(itl_p50=Quantile(0.02))} | more
    nobody = r.take(np.zeros(len(r), dtype=np.bool_))
    return Window("d", end, 30.0, r, nobody, **known)  # type: ignore[arg-type]


SIGNALS = {"imbalance_s": 0.0, "cache_miss_s": 0.0, "prefill_queue_s": 0.0, "poa_routing": 1.0, "knee_inflight": 40.0, "poa_withheld": None}


def play(
    r: Requests, signals: dict[str, float | str | None] | None = None, memory: Memory | None = None, **more: object
) -> dict[str, object]:
    known = memory or Memory(curves=CURVES)
    return games(window(r, **more), SIGNALS | (signals or {}), known, Settings())[0]


@pytest.mark.parametrize(
    ("column", "name", "lever"),
    [
        ("imbalance_s", "routing", "A higher τ spreads the load."),
        ("cache_miss_s", "cache", "A higher ω follows the cache: 80 blocks that another worker held were computed again."),
        ("prefill_queue_s", "resources", "No routing parameter can help"),
    ],
)
def test_the_sentence_names_the_costliest_game_and_its_lever(column: str, name: str, lever: str) -> None:
    """Of 20 requests of 2.5 s the game that lost 10 s costs 0.5 s each, a fifth of their time."""
    row = play(requests([0, 1] * 10), {column: 10.0})
    assert (row["costliest"], row["cost_s"]) == (name, 10.0)
    game = name.removesuffix("s") if name == "resources" else name
    assert row["sentence"] == f"The {game} game costs most now: 0.5 s a request, 20 % of its time (10 s in the last 30 s)."
    assert str(row["lever"]).startswith(lever)


def test_little_is_said_to_be_little() -> None:
    """Under a fiftieth of the requests' time no game is worth a lever."""
    row = play(requests([0, 1] * 10), {"cache_miss_s": 0.5})
    assert row["costliest"] == "none" and str(row["sentence"]).startswith("No game costs much now: the most is 0.025 s a request, 1.0 %")


def test_parts_that_cancel_out_are_not_believed() -> None:
    """40 s of imbalance beside −30 s of queue: the curve is too slow, and the sentence is doubted, not dropped."""
    row = play(requests([0, 1] * 10), {"imbalance_s": 40.0, "prefill_queue_s": -30.0})
    assert row["costliest"] == "routing" and "With doubt: the parts cancel out" in str(row["lever"])
    assert any(text.startswith("doubt: ") for text in row["quality"])  # type: ignore[attr-defined]
    assert "doubt" not in str(play(requests([0, 1] * 10), {"imbalance_s": 40.0, "prefill_queue_s": -3.0})["lever"])


def test_the_unknown_is_no_game_and_no_zero() -> None:
    """Without KV events the cache's cost is unknown: said in the lever, None in the row, and who is silent stands in quality."""
    r = replace(requests([0, 1] * 10), best_overlap_blocks=None, cached_blocks=None)
    row = play(r, {"cache_miss_s": None, "imbalance_s": 4.0}, kv_silent=2)
    assert row["hit_possible_ratio"] is None and row["lost_blocks"] is None and row["cache_miss_s"] is None
    assert "What the cache game costs is unknown." in str(row["lever"])
    assert "cache: no KV events from 2 of 2 workers, so what only they held is unknown" in row["quality"]  # type: ignore[operator]
    nothing = play(requests([0, 1] * 10), dict.fromkeys(SIGNALS))
    assert nothing["costliest"] is None and nothing["sentence"] == "Cannot tell which game costs most: no fit yet."


def test_hits_and_loss_are_those_of_the_window() -> None:
    """20 prompts of 8 blocks, 4 of them elsewhere: half possible, none chosen, 80 lost."""
    row = play(requests([0, 1] * 10))
    assert (row["hit_possible_ratio"], row["hit_chosen_ratio"], row["hit_realised_ratio"], row["lost_blocks"]) == (0.5, 0.0, 0.0, 80.0)
    assert "Routing → cache: 0 % of the blocks were found where 50 % could be; 80 were computed again." in row["coupling"]  # type: ignore[operator]


def test_loads_stand_beside_their_optimum() -> None:
    """All prompts on one of two workers: it has the whole load, the other none, and the optimum of each is half; decode is even."""
    r = requests([0] * 19 + [1])
    rows = games(window(r), SIGNALS, Memory(curves=CURVES), Settings())[1]
    found = {(row["role"], row["worker_id"]): (row["load"], row["optimum"]) for row in rows}
    assert set(found) == {("prefill", 2**64 - 1), ("prefill", 2**64 - 2), ("decode", 3), ("decode", 4)}
    for role in ("prefill", "decode"):
        loads = [load for (of, _), (load, _) in found.items() if of == role]
        assert [best for (of, _), (_, best) in found.items() if of == role] == pytest.approx([sum(loads) / 2] * 2)


def test_one_pool_has_no_split() -> None:
    """An aggregated deployment: loads under one role, and the resource game says that there is nothing to divide."""
    r = requests([0, 1] * 10)
    r = replace(r, prefill=np.full(20, -1), prefill_done_at=np.full(20, np.nan), decode_started_at=r.arrived_at)
    row, loads = games(window(r), SIGNALS, Memory(curves={"decode": CURVES["decode"]}), Settings())
    assert row.get("prefill_workers") is None and row.get("ttft_gain_s") is None
    assert "resources: one pool does prefill and decode, so there is no split between them" in row["quality"]
    assert {load["role"] for load in loads} == {"aggregated"}


def test_the_wait_is_measured_and_predicted() -> None:
    """0.5 s in prefill where f(1) is 55 ms: 445 ms of wait; M/G/k at these arrivals is finite, and beside it."""
    row = play(requests([0, 1] * 10))
    assert row["wait_s"] == pytest.approx(0.445)
    assert isinstance(row["wait_predicted_s"], float) and 0 <= row["wait_predicted_s"] < 0.1
    assert row["prefill_busy_ratio"] == pytest.approx(20 / 30 * 0.055 / 2)


def test_following_the_cache_would_relieve_prefill() -> None:
    """Half of the blocks could have been had and none was: prefill would be half as busy, and the knee higher."""
    loop = Loop(CURVES["prefill"], CURVES["decode"], 2, 2, 60.0, 0.02)
    found = Hits(possible_ratio=0.5, chosen_ratio=0.0, realised_ratio=0.0, lost_blocks=80.0, blocks=160.0, n=20)
    said = coupling({"prefill_workers": 2, "decode_workers": 2, "prefill_busy_ratio": 0.8}, found, loop, 75.0)
    assert said["prefill_busy_followed_ratio"] == pytest.approx(0.4)
    assert said["knee_followed_inflight"] > 75.0
    assert any(
        text.startswith("Cache → resources: had they been found, prefill would be 40 % busy instead of 80 %") for text in said["coupling"]
    )


@given(st.lists(st.one_of(st.none(), st.floats(-5, 500)), min_size=3, max_size=3))
def test_the_costliest_is_the_greatest_known(seconds: list[float | None]) -> None:
    """Whatever is unknown is passed over; what is named costs at least as much as every known one."""
    name, cost = costliest(Costs(*seconds, n=10, e2e_s=100.0))
    known = [s for s in seconds if s is not None]
    if not known:
        assert name is None
    else:
        assert cost == max(known) and (name == "none") == (max(known) <= 2.0)


def test_nothing_finished_is_no_verdict() -> None:
    """An idle window: no game is named, no ratio invented."""
    r = requests([0, 1] * 10)
    idle = replace(window(r), end=T0 + 500.0)
    row, loads = games(idle, dict.fromkeys(SIGNALS), Memory(curves=CURVES), Settings())
    assert row["costliest"] is None and row["hit_chosen_ratio"] is None and row["finished"] == 0
    assert all(load["load"] == 0 for load in loads)


def test_where_one_worker_reads_prompts_routing_loses_no_block() -> None:
    """The pool that chooses is prefill's: with one worker in it nothing better was possible, though two decode workers hold blocks too."""
    alone = replace(requests([0] * 20, own=2.0), best_overlap_blocks=None)
    row, two = play(alone), play(replace(requests([0, 1] * 10, own=2.0), best_overlap_blocks=None))
    assert (row["hit_possible_ratio"], row["hit_chosen_ratio"], row["lost_blocks"]) == (0.25, 0.25, 0.0)
    assert (two["hit_possible_ratio"], two["lost_blocks"]) == (None, None)
