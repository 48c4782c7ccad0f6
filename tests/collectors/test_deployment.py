"""The window that a pulse looks at."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from collectors.capture import Reader
from collectors.core import Core
from collectors.deployment import Deployment, Routed, blocks_of, metrics_of
from collectors.importer import feed
from collectors.metrics import Readings
from collectors.wire import Added, Freed, Load, Marked, Step
from poascope.settings import Profile, Settings
from queries.window import Metrics, Window
from tests.conftest import CAPTURES

BIG = (2**64 - 1, 0)


def nobody(_: int | None, __: str) -> Profile | None:
    return None


def windows(name: str, monkeypatch: pytest.MonkeyPatch) -> list[Window]:
    """Every window of a recording."""
    seen: list[Window] = []
    original: Callable[..., Window] = Deployment.window

    def noted(*arguments: object) -> Window:
        seen.append(original(*arguments))
        return seen[-1]

    monkeypatch.setattr(Deployment, "window", noted)
    core = Core(Settings())
    for line in Reader(CAPTURES / f"{name}.jsonl.gz"):
        core.advance(line.t)
        feed(core, line)
    return seen


@pytest.mark.parametrize("name", ["cap-0.9.0-1p2d", "cap-1.6.1-1p2d", "aggregated-1.4.2"])
def test_a_window_holds_what_its_contract_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests in order of arrival, each once; ended ones within the window, open ones without an end; nothing from the future."""
    for window in windows(name, monkeypatch):
        r = window.recent
        assert list(r.arrived_at) == sorted(r.arrived_at) and len(set(r.request_id)) == len(r)
        ended = ~np.isnan(r.finished_at)
        assert ((r.finished_at[ended] > window.end - window.window_s) & (r.finished_at[ended] <= window.end)).all()
        for times in (r.arrived_at, r.prefill_done_at, r.decode_started_at, r.first_token_at):
            assert not (times > window.end).any()
        assert window.gaps == 0 and len(window.history) <= 2000 and not window.history.lost.any()
        assert r.prefill.max(initial=-1) < len(r.workers) and r.decode.max(initial=-1) < len(r.workers)
        if name.startswith("aggregated"):
            known = r.decode >= 0
            assert (r.prefill[known] == -1).all() and (r.decode_started_at[known] == r.arrived_at[known]).all()
        assert window.notes == ()


@pytest.mark.parametrize(("name", "low", "high"), [("cap-0.9.0-1p2d", 0.018, 0.025), ("cap-1.6.1-1p2d", 0.020, 0.021)])
def test_itl_is_what_the_mocker_was_set_to(name: str, low: float, high: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 to 22 ms: exact from engine steps on 1.x, within the frontend's buckets on 0.9; the client's hit rate comes out too."""
    last = windows(name, monkeypatch)[-1]
    assert last.metrics.itl_p99 and low <= last.metrics.itl_p99.value <= high
    assert last.metrics.ttft_p99 and last.metrics.kv_hit_ratio and 0.3 < last.metrics.kv_hit_ratio < 0.5


def test_steps_weigh_by_the_tokens_they_gave() -> None:
    """One long step for 100 requests outweighs ninety-nine short ones for one; steps without decoding weigh nothing."""
    deployment = Deployment("d", Settings())
    for i in range(98):
        deployment.step(i / 10, "c", Step(BIG, 0.02, 0, 1, 0))
    deployment.step(9.9, "c", Step(BIG, 0.5, 1, 100, 0))
    deployment.step(9.9, "c", Step(BIG, 9.0, 1, 0, 0))
    itl = deployment.step_itl(10)
    assert itl and (itl[0].value, itl[1].value) == (0.5, 0.5)
    assert deployment.step_itl(100) is None


def test_blocks_of_both_formats() -> None:
    """0.9 says tokens and overlap; 1.x says what is left, from which both follow; without a block size the input is unknown."""

    def of(added: Added, block_tokens: int | None) -> tuple[int | None, int | None]:
        deployment = Deployment("d", Settings())
        deployment.assembler.add(1, "c", added)
        view = deployment.assembler.view(deployment.assembler.open["r"], 2)
        assert view
        return blocks_of(view, block_tokens)

    assert of(Added("r", BIG, 1, 138, 4, None, None), 16) == (9, 4)
    assert of(Added("r", BIG, 1, None, None, 74, tuple(range(8))), 16) == (9, 4)
    assert of(Added("r", BIG, 1, None, None, 0, tuple(range(8))), 16) == (8, 8)
    assert of(Added("r", BIG, 1, None, None, 74, None), 16) == (None, None)
    assert of(Added("r", BIG, 1, 138, 4, None, None), None) == (None, 4)


def test_metrics_that_stopped_coming_give_no_quantile() -> None:
    """After three missed reads the last quantiles are not repeated as if they were now; the note says how old they are."""
    deployment, readings = Deployment("d", Settings()), Readings()
    assert metrics_of(deployment, readings, set(), 10, 15) == Metrics(
        notes=("no metrics read: name the frontends with --scrape, or a server with --prometheus-url",)
    )
    readings.feed(10, "f", [], [])
    assert metrics_of(deployment, readings, {"f"}, 20, 15).notes == ()
    assert metrics_of(deployment, readings, {"f"}, 26, 15).notes == ("metrics are 16 s old",)


def test_parameters_are_those_of_the_newest_requests() -> None:
    """One profile in the last 5 s: its τ and ω. Several, or an unknown one: none. Nobody lately: the last request's."""
    deployment = Deployment("d", Settings())
    calm, hot = Profile("a", 0.0, 1.0, "http://a"), Profile("b", 0.7, 1.0, "http://b")
    profiles = {1: calm, 2: hot}
    deployment.arrivals.extend([(1.0, 1, "a"), (3.0, 2, "b"), (20.0, 2, "c")])

    def parameters(end: float) -> tuple[float | None, float | None]:
        window = deployment.window(end, None, Metrics(), lambda router, request: profiles.get(router or 0))
        return window.tau, window.omega

    assert parameters(21) == (0.7, 1.0)
    assert parameters(90) == (0.7, 1.0)
    deployment.arrivals.append((22.5, 3, "d"))
    assert parameters(23) == (0.7, 1.0), "its router's word may still be on its way"
    assert parameters(24) == (None, None)


def test_running_requests_without_routing_events_are_explained() -> None:
    """Engines step but no router speaks: the window names the flag that is missing."""
    deployment = Deployment("d", Settings())
    deployment.step(1, "c", Step(BIG, 0.02, 0, 3, 0))
    (note,) = deployment.window(2, None, Metrics(), nobody).notes
    assert "--router-replica-sync" in note


def test_a_worker_counts_as_gone_only_while_others_are_heard() -> None:
    """A loaded worker that stops reporting is gone after 15 s in which the bus spoke; when all is silent it is the bus that is down."""
    deployment = Deployment("d", Settings())
    assembler = deployment.assembler
    for request, at in (("warm", 0.0), ("r", 10.0)):
        assembler.add(at, "p", Added(request, (1, 0), 5, None, None, None, None))
        assembler.mark(at, "p", Marked(request, (1, 0)))
        assembler.free(at, "p", Freed(request, (1, 0)))
        assembler.add(at + 1, "q", Added(request, BIG, 5, None, None, None, None))
        assembler.mark(at + 1, "q", Marked(request, BIG))
    assembler.free(2.0, "q", Freed("warm", BIG))
    deployment.saw_worker("q", BIG, 11)
    deployment.reported[BIG] = 11.0
    for now in range(12, 40):
        assert deployment.gone(now) == []
    gone = []
    for now in range(40, 56):
        deployment.events_as_of = now - 0.5
        gone.append(deployment.gone(now))
    assert gone[13] == [] and gone[14] == [("q", BIG)]
    deployment.reported[BIG] = 55.5
    assert deployment.gone(56) == []


def test_loads_keep_fields_by_source() -> None:
    """A null leaves the number of the same source, and of the other, as it is."""
    deployment = Deployment("d", Settings())
    deployment.load("c", "router", Load(BIG, 5, 70, None))
    deployment.load("c", "router", Load(BIG, 6, None, None))
    deployment.load("c", "worker", Load(BIG, None, None, 9))
    assert deployment.loads[BIG, "router"].fields == {"active_decode_blocks": 6, "active_prefill_tokens": 70}
    assert deployment.loads[BIG, "worker"].fields == {"kv_used_blocks": 9}
    assert not math.isnan(deployment.loads[BIG, "worker"].fields["kv_used_blocks"])


def test_what_another_worker_held_is_known_where_hashes_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """On two aggregated workers each request knows its own overlap and the best of the pool, which is never below its own."""
    last = windows("aggregated-1.4.2", monkeypatch)[-1].history
    own, best = last.overlap_blocks, last.best_overlap_blocks
    assert best is not None and len(best) == 54 and (best >= own).all() and (best > own).any()


def test_a_worker_that_holds_requests_is_not_forgotten() -> None:
    """However long ago it was routed to: its count would go below zero when they end, and no table holds a negative one."""
    deployment = Deployment("d", Settings(lost_after_s=86_400))
    deployment.assembler.add(0.0, "backend", Added("r", BIG, 1, 16, 0, None, None))
    deployment.saw_worker("backend", BIG, 0.0)
    deployment.forget(700.0)
    assert ("backend", BIG) in deployment.worker_seen
    deployment.assembler.free(701.0, "backend", Freed("r", BIG))
    assert deployment.assembler.inflight["backend", BIG] == 0
    deployment.forget(1400.0)
    assert not deployment.worker_seen and not deployment.assembler.inflight


def test_a_finished_request_keeps_no_hashes() -> None:
    """Thousands of finished requests are remembered; the hashes of their prompts, the most of them, are not."""
    core = Core(Settings())
    for line in Reader(CAPTURES / "aggregated-1.4.2.jsonl.gz"):
        core.advance(line.t)
        feed(core, line)
    (deployment,) = core.deployments.values()
    assert deployment.history and all(routed.request.source.token_sequence is None for routed in deployment.history)


def pools() -> Deployment:
    """A deployment that has shown its roles: p prefills, q decodes."""
    deployment = Deployment("d", Settings())
    assembler = deployment.assembler
    assembler.add(0.0, "p", Added("warm", (1, 0), 5, None, None, None, None))
    assembler.mark(0.1, "p", Marked("warm", (1, 0)))
    assembler.free(0.1, "p", Freed("warm", (1, 0)))
    assembler.add(0.2, "q", Added("warm", BIG, 5, None, None, None, None))
    assembler.mark(0.3, "q", Marked("warm", BIG))
    deployment.saw_worker("p", (1, 0), 0)
    deployment.heard((1, 0), 0.1)
    return deployment


@pytest.mark.parametrize(("taken_over", "patience"), [(True, 15), (False, 60)])
def test_a_prefill_worker_is_gone_when_it_reads_nothing_that_it_was_sent(taken_over: bool, patience: int) -> None:
    """It is given a minute for a long prompt, and 15 s once a decode worker read what it was sent; idle it may be silent for ever."""
    deployment = pools()
    deployment.assembler.free(1.0, "q", Freed("warm", BIG))
    for now in range(2, 300):
        deployment.events_as_of = now - 0.5
        assert deployment.gone(now) == []
    deployment.assembler.add(300, "p", Added("r", (1, 0), 5, None, None, None, None))
    deployment.routed((1, 0), 300)
    if taken_over:
        deployment.assembler.add(300.1, "q", Added("r", BIG, 5, None, None, None, None))
        deployment.marked("q", Marked("r", BIG), 300.2)
    found = []
    for now in range(301, 400):
        deployment.events_as_of = deployment.reported[BIG] = now - 0.5
        found.append(deployment.gone(now))
    assert found[: patience - 1] == [[]] * (patience - 1) and found[patience - 1] == [("p", (1, 0))]
    deployment.marked("p", Marked("r", (1, 0)), 400)
    assert deployment.gone(401) == []


def test_requests_of_a_router_that_fell_silent_are_forsaken_when_they_are_far_too_old() -> None:
    """Another router speaks, theirs does not, and nothing ever took so long; a request that could still be running is left alone."""
    deployment = pools()
    (done,) = deployment.assembler.free(20.0, "q", Freed("warm", BIG))
    deployment.ended(Routed(done, None, None, None))
    deployment.assembler.add(30.0, "q", Added("r", BIG, 5, None, None, None, None))
    deployment.routers |= {5: 30.0, 6: 30.0}
    for now in (50.0, 80.0, 89.0):
        deployment.routers[6] = now
        assert not deployment.forsaken(now)(deployment.assembler.open["r"])
    assert not deployment.forsaken(200.0)(deployment.assembler.open["r"])
    deployment.routers[6] = 200.0
    assert deployment.forsaken(200.0)(deployment.assembler.open["r"])
    deployment.routers[5] = 199.0
    assert not deployment.forsaken(200.0)(deployment.assembler.open["r"])


def test_a_worker_that_never_counted_blocks_is_not_idle() -> None:
    """Only one that counted some, and then none for 15 s without getting another request, holds nothing."""
    for counted in (0, 7):
        deployment = pools()
        request = deployment.assembler.open["warm"]
        for at, blocks in ((1.0, counted), (2.0, 0)):
            deployment.idle(BIG, blocks, at)
            deployment.load("q", "worker", Load(BIG, blocks, None, None))
        assert not deployment.forsaken(16.0)(request)
        assert deployment.forsaken(17.0)(request) == bool(counted)
        deployment.routed(BIG, 18.0)
        assert not deployment.forsaken(40.0)(request)


def test_a_prompt_that_others_overtook_on_the_way_to_decode_is_forsaken() -> None:
    """A frontend without decode workers frees the prefill and goes no further: known once those whose prompt was read later decode."""
    deployment = pools()
    for request, at in (("left", 10.0), ("next", 14.0), ("later", 15.5)):
        deployment.assembler.add(at - 1, "p", Added(request, (1, 0), 5, None, None, None, None))
        deployment.assembler.mark(at, "p", Marked(request, (1, 0)))
        deployment.assembler.free(at, "p", Freed(request, (1, 0)))
        if request != "left":
            deployment.assembler.add(at + 0.1, "q", Added(request, BIG, 5, None, None, None, None))
        forsaken = [r.request_id for r in deployment.assembler.open.values() if deployment.forsaken(at + 1)(r)]
        assert forsaken == (["left"] if request == "later" else [])


def test_without_any_routing_event_nothing_is_known_to_be_idle() -> None:
    """Loads and cache changes alone, as a missing flag looks on 0.9: counts are unknown and the flag is named, at work or at rest."""
    import msgspec

    core = Core(Settings())

    def say(at: float, payload: dict[str, object], subject: str) -> None:
        envelope = {"publisher_id": 1, "sequence": int(at), "published_at": int(at * 1000), "payload": msgspec.msgpack.encode(payload)}
        core.advance(at)
        core.feed_nats(at, subject, msgspec.msgpack.encode(envelope))

    for second in range(1000, 1010):
        say(second + 0.5, {"worker_id": 5, "active_decode_blocks": int(second < 1005)}, "namespace.d.kv_metrics")
    core.advance(1060)
    rows = core.take()["signals"].to_pylist()
    for row in rows[:60]:
        assert len([note for note in row["quality"] if note.startswith("events: ") and "--router-replica-sync" in note]) == 1
        assert row["inflight"] is row["queued"] is row["arrivals_per_s"] is None
    assert "requests run" in " ".join(rows[4]["quality"]) and "no routing was heard yet" in " ".join(rows[-1]["quality"])
    first = {"request_id": "r", "worker": {"worker_id": 5}, "data": {"AddRequest": {"isl": 16, "overlap": 0}}, "router_id": 9}
    say(1060.5, first, "namespace.d.component.c.active_sequences_events")
    core.advance(1061)
    (row,) = core.take()["signals"].to_pylist()
    assert row["inflight"] == 1 and not [note for note in row["quality"] if "--router-replica-sync" in note]
    for second in range(1061, 1130):
        deployment = core.deployments["d"]
        deployment.assembler.open.clear()
        say(second + 0.5, {"worker_id": 5, "active_decode_blocks": 3}, "namespace.d.kv_metrics")
    assert "requests run" in " ".join(core.take()["signals"].to_pylist()[-1]["quality"])
