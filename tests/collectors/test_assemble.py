"""Requests from their events, in and out of order."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.assemble import GRACE_S, Assembler, Finished
from collectors.wire import Added, Freed, Marked

A, B, C = (2**64 - 1, 0), (2**64 - 2, 0), (7, 1)
Event = tuple[float, str, Added | Marked | Freed]


def added(request: str, worker: tuple[int, int], **more: int) -> Added:
    return Added(request, worker, 5, more.get("isl"), more.get("overlap"), None, None)


def life(request: str, at: float, first: str = "x", second: str = "y") -> list[Event]:
    """A request that is prefilled on A for 1 s and decoded on B for 3 s."""
    return [
        (at, first, added(request, A, isl=138, overlap=4)),
        (at + 1.0, first, Marked(request, A)),
        (at + 1.01, first, Freed(request, A)),
        (at + 1.02, second, added(request, B, isl=138, overlap=0)),
        (at + 1.1, second, Marked(request, B)),
        (at + 4.0, second, Freed(request, B)),
    ]


def alone(request: str, at: float, worker: tuple[int, int] = C, component: str = "z") -> list[Event]:
    """A request that one worker prefills and decodes."""
    return [
        (at, component, added(request, worker)),
        (at + 0.5, component, Marked(request, worker)),
        (at + 2.0, component, Freed(request, worker)),
    ]


def feed(assembler: Assembler, events: list[Event]) -> list[Finished]:
    finished: list[Finished] = []
    for at, component, event in events:
        match event:
            case Added():
                finished += assembler.add(at, component, event)
            case Marked():
                finished += assembler.mark(at, component, event)
            case Freed():
                finished += assembler.free(at, component, event)
    return finished


def test_roles_are_found_by_how_requests_move() -> None:
    """Components are prefill and decode by the order in which a request visits them, whatever they are called."""
    for first, second in (("decode", "prefill"), ("tensorrt_llm", "x"), ("backend", "prefill")):
        assembler = Assembler(300)
        (done,) = feed(assembler, life("r", 10, first, second))
        assert (done.prefill, done.decode, done.lost) == (A, B, False)
        assert (assembler.role(first), assembler.role(second)) == ("prefill", "decode")
        assert (done.arrived_at, done.prefill_done_at, done.decode_started_at) == (10, 11, 11.02)
        assert (done.first_token_at, done.finished_at) == (11.1, 14)
        assert done.source.overlap == 4


def test_one_pool_where_there_is_one() -> None:
    """With no second component a request is aggregated: no prefill, decode starts on arrival. The first one waits for a grace."""
    assembler = Assembler(300)
    assert feed(assembler, alone("a", 0)) == []
    assert assembler.advance(2 + GRACE_S - 0.1) == []
    (done,) = assembler.advance(2 + GRACE_S)
    assert (done.prefill, done.decode, done.prefill_done_at, done.decode_started_at) == (None, C, None, 0)
    assert done.finished_at == 2 and assembler.role("z") == "aggregated"
    assert len(feed(assembler, alone("b", 10))) == 1


def test_local_prefill_on_a_decode_worker_is_one_leg() -> None:
    """Once a component is known to decode, a request that starts there was prefilled there."""
    assembler = Assembler(300)
    feed(assembler, life("r", 0))
    (done,) = feed(assembler, alone("s", 10, B, "y"))
    assert done.prefill is None and done.decode == B and done.decode_started_at == 10


def test_a_prefill_taken_for_a_single_pool_is_corrected() -> None:
    """A first request whose decode leg comes after the grace teaches the roles all the same."""
    assembler = Assembler(300)
    events = life("r", 0)
    feed(assembler, events[:3])
    assembler.advance(1.01 + GRACE_S)
    feed(assembler, [(at + 10, c, e) for at, c, e in events[3:]])
    assert assembler.counters["late_leg"] == 1
    assert assembler.role("x") == "prefill"


def test_inflight_is_exact_and_excludes_the_request_itself() -> None:
    """A request knows how many others its worker had when it came; afterwards no worker has any."""
    assembler = Assembler(300)
    events = sorted((e for i in range(5) for e in life(f"r{i}", i * 0.1)), key=lambda e: e[0])
    done = feed(assembler, events)
    assert [d.prefill_inflight for d in done] == [0, 1, 2, 3, 4]
    assert set(assembler.inflight.values()) == {0}


@given(seed=st.integers(0, 10_000), n=st.integers(1, 8))
@settings(max_examples=150, deadline=None)
def test_order_and_copies_do_not_matter(seed: int, n: int) -> None:
    """Events shuffled within the grace, each up to three times, end in the same requests as in order."""
    rng = random.Random(seed)
    # A known deployment: two requests have shown who prefills.
    calm = [e for i in range(2) for e in life(f"calm{i}", -20.0 + i)]
    ordered = sorted((e for i in range(n) for e in life(f"r{i}", i * 0.3)), key=lambda e: e[0])
    shaken = sorted((e for e in ordered for _ in range(rng.randint(1, 3))), key=lambda e: e[0] + rng.uniform(0, 1.5))
    expected, found = Assembler(300), Assembler(300)
    plain = feed(expected, calm + ordered) + expected.advance(60)
    mixed = feed(found, calm + shaken) + found.advance(60)

    def facts(finished: list[Finished]) -> dict[str, tuple[object, ...]]:
        return {f.request_id: (f.arrived_at, f.prefill, f.decode, f.prefill_done_at, f.first_token_at, f.finished_at) for f in finished}

    assert facts(mixed) == facts(plain) and not found.open
    assert not any(found.inflight.values())


@given(missing=st.sets(st.integers(0, 35)), lost_after=st.floats(10, 100))
@settings(max_examples=150, deadline=None)
def test_missing_events_end_every_request_once(missing: set[int], lost_after: float) -> None:
    """Whatever is lost, a request ends at most once, nothing stays open or in flight, and times never run backwards."""
    assembler = Assembler(lost_after)
    events = sorted((e for i in range(6) for e in life(f"r{i}", i * 0.3)), key=lambda e: e[0])
    done = feed(assembler, [e for i, e in enumerate(events) if i not in missing])
    done += assembler.advance(10) + assembler.advance(300)
    ids = [d.request_id for d in done]
    assert len(ids) == len(set(ids)) and not assembler.open and not any(assembler.inflight.values())
    for d in done:
        times = [t for t in (d.arrived_at, d.decode_started_at, d.first_token_at, d.finished_at) if t is not None]
        assert times == sorted(times)
        assert d.lost == (d.finished_at is None)


def test_a_request_nobody_frees_is_lost_after_a_while() -> None:
    """No `Free`: in flight until `lost_after_s` of silence, then lost, and off its worker."""
    assembler = Assembler(30)
    feed(assembler, life("r", 0)[:-1])
    assert assembler.advance(31) == [] and assembler.inflight["y", B] == 1
    (done,) = assembler.advance(31.2)
    assert done.lost and done.finished_at is None and done.first_token_at == 1.1 and done.ended_at == 31.2
    assert assembler.inflight["y", B] == 0


def test_a_worker_that_is_gone_takes_its_requests_with_it() -> None:
    """What is open on a worker known to be gone ends as lost at once; the others go on."""
    assembler = Assembler(300)
    feed(assembler, life("r", 0)[:-1] + alone("s", 3)[:2])
    (done,) = assembler.lose_worker(5, B)
    assert done.lost and done.request_id == "r" and list(assembler.open) == ["s"]


def test_freed_before_its_first_token_is_lost() -> None:
    """A router that cannot reach the worker frees the request at once: no token ever came, so it is no latency."""
    assembler = Assembler(300)
    feed(assembler, life("calm", 0))
    events = life("r", 10)
    feed(assembler, [*events[:4], (11.03, "y", Freed("r", B))])
    (done,) = assembler.advance(11.03 + GRACE_S)
    assert done.lost and done.first_token_at is None


@pytest.mark.parametrize("heard", [1, 2, 4, 5])
def test_a_request_whose_beginning_was_not_heard_is_counted_not_guessed(heard: int) -> None:
    """A collector that starts in mid-flight makes no row of half a request."""
    assembler = Assembler(300)
    feed(assembler, life("calm", 0))
    done = feed(assembler, life("r", 10)[heard:]) + assembler.advance(60)
    assert done == [] and assembler.counters["without_start"] == 1


def test_a_request_sent_to_another_worker_moves_its_load() -> None:
    """A second AddRequest with another worker on the same component is a retry: the first worker is relieved."""
    assembler = Assembler(300)
    feed(assembler, life("calm", 0) + life("r", 10)[:4] + [(11.5, "y", added("r", C)), (11.6, "y", Marked("r", C))])
    assert (assembler.inflight["y", B], assembler.inflight["y", C]) == (0, 1)
    (done,) = feed(assembler, [(14, "y", Freed("r", C))])
    assert done.decode == C and assembler.counters["rerouted"] == 1


def test_a_request_whose_prompt_was_read_does_not_wait_while_roles_are_unknown() -> None:
    """On a cold start nobody knows what the only component is: the row names no worker and has the mark for its first token."""
    assembler = Assembler(300)
    feed(assembler, alone("a", 0)[:1])
    waiting = assembler.view(assembler.open["a"], 0.4)
    assert waiting and waiting.first_token_at is None and waiting.arrived_at == 0
    feed(assembler, alone("a", 0)[1:2])
    view = assembler.view(assembler.open["a"], 30)
    assert view and (view.first_token_at, view.prefill, view.decode, view.prefill_done_at) == (0.5, None, None, None)
    assert view.finished_at is None and assembler.inflight["z", C] == 1


def test_a_known_prefill_still_waits_for_its_first_token() -> None:
    """Once the roles are known, the end of a prefill is no first token."""
    assembler = Assembler(300)
    feed(assembler, life("calm", 0) + life("r", 10)[:2])
    view = assembler.view(assembler.open["r"], 12)
    assert view and (view.prefill, view.prefill_done_at, view.first_token_at) == (A, 11, None)


def test_what_others_took_over_outlives_a_dead_prefill() -> None:
    """A router that gives a dead prefill worker up never frees it: the request is served by its decode worker, and ends with that."""
    assembler = Assembler(300)
    feed(assembler, life("calm", 0))
    events = life("r", 10)
    feed(assembler, [events[0], *events[3:5], *life("stuck", 11)[:1]])
    (lost,) = assembler.lose_worker(13, A)
    assert lost.request_id == "stuck" and lost.lost and assembler.inflight["x", A] == 0
    assert feed(assembler, events[5:]) == []
    view = assembler.view(assembler.open["r"], 14.1)
    assert view and view.finished_at == 14
    (done,) = assembler.advance(14 + GRACE_S)
    assert (done.request_id, done.lost, done.prefill_done_at, done.finished_at) == ("r", False, None, 14)
