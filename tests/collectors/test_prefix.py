"""Whose cache holds how much of a prompt."""

import pytest

from collectors.capture import Reader
from collectors.core import Core
from collectors.deployment import Deployment, Routed
from collectors.importer import feed
from collectors.prefix import Prefixes
from collectors.wire import KvChange
from poascope.settings import Settings
from tests.conftest import CAPTURES

A, B = (1, 0), (2, 0)


def stored(worker: tuple[int, int], event_id: int, *blocks: int, tier: str | None = None) -> KvChange:
    return KvChange(worker, event_id, "stored", None, blocks, tier)


def test_overlap_is_the_leading_blocks_held_at_the_moment_asked_about() -> None:
    """Blocks count from when they came until they went, leading ones only, for each worker on its own."""
    prefixes = Prefixes()
    prefixes.change(1, stored(A, 1, 10, 11, 12))
    prefixes.change(2, stored(B, 1, 10, 12))
    prefixes.change(5, KvChange(A, 2, "removed", None, (11,), None))
    assert prefixes.overlaps((10, 11, 12), 0.5) == {A: 0, B: 0}
    assert prefixes.overlaps((10, 11, 12), 4) == {A: 3, B: 1}
    assert prefixes.overlaps((10, 11, 12), 5) == {A: 1, B: 1}
    prefixes.change(6, KvChange(A, 3, "cleared", None, (), None))
    assert prefixes.overlaps((10, 11, 12), 7) == {A: 0, B: 1}
    assert prefixes.overlaps((10, 11, 12), 3) == {A: 3, B: 1}


def test_other_hashes_say_nothing_about_overlap() -> None:
    """A request whose first block no cache ever knew has an unknown overlap, not one of zero; other tiers are no hit."""
    prefixes = Prefixes()
    prefixes.change(1, stored(A, 1, 10, tier="disk"))
    assert prefixes.overlaps((10,), 2) is None
    prefixes.change(1, stored(A, 2, 10, tier="device"))
    assert prefixes.overlaps((99, 10), 2) is None


@pytest.mark.parametrize(("name", "requests"), [("cap-0.9.0-1p2d", 560), ("aggregated-1.4.2", 54)])
def test_the_caches_agree_with_the_routers(name: str, requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On recordings whose requests carry the hashes of cache events, the overlap found here is the router's, for every request."""
    pairs = []
    ended = Deployment.ended

    def noted(deployment: Deployment, routed: Routed) -> None:
        request = routed.request
        held = deployment.prefixes.overlaps(request.source.token_sequence or (), request.arrived_at)
        worker = request.prefill or request.decode
        assert held is not None and worker is not None
        pairs.append((held.get(worker), routed.overlap_blocks))
        ended(deployment, routed)

    monkeypatch.setattr(Deployment, "ended", noted)
    core = Core(Settings())
    for line in Reader(CAPTURES / f"{name}.jsonl.gz"):
        core.advance(line.t)
        feed(core, line)
    core.finish()
    assert len(pairs) == requests and all(found == said for found, said in pairs)
    assert any(said for _, said in pairs)


def test_what_was_stored_names_the_prompt() -> None:
    """A worker that had two blocks and stored two more read a prompt of four; its parents name the whole, on whichever worker they came."""
    prefixes = Prefixes()
    prefixes.change(1, stored(A, 1, 10, 11))
    prefixes.change(2, KvChange(B, 1, "stored", None, (10,), None))
    prefixes.change(5, KvChange(A, 2, "stored", 11, (12, 13), None))
    assert prefixes.computed(A, 4, 5.1, full=4, overlap=2) == ((10, 11, 12, 13), 2)
    assert prefixes.overlaps((10, 11, 12, 13), 4) == {A: 2, B: 1}
    assert prefixes.computed(A, 4, 5.1, full=4, overlap=2) is None, "an event speaks for one request"


def test_of_a_batch_the_routers_word_decides() -> None:
    """Two prompts of four read at once: the one of which the router said that one block was there is the one that began after one."""
    prefixes = Prefixes()
    prefixes.change(1, stored(A, 1, 10))
    prefixes.change(5, stored(A, 2, 20, 21, 22, 23))
    prefixes.change(5, KvChange(A, 3, "stored", 10, (11, 12, 13), None))
    assert prefixes.computed(A, 4, 5, full=4, overlap=1) == ((10, 11, 12, 13), 3)
    assert prefixes.computed(A, 4, 5, full=4, overlap=1) == ((20, 21, 22, 23), 4)


def test_chunks_of_one_prompt_are_one_prefill() -> None:
    """A long prompt stored in two events: both are its own, and other times, lengths and unknown beginnings are not."""
    prefixes = Prefixes()
    prefixes.change(5, stored(A, 1, 10, 11))
    prefixes.change(6, KvChange(A, 2, "stored", 11, (12, 13), None))
    prefixes.change(6, KvChange(A, 3, "stored", 99, (50, 51, 52, 53), None))
    assert prefixes.computed(A, 4, 4.2, full=4, overlap=0) is None
    assert prefixes.computed(A, 4, 6, full=3, overlap=0) is None
    assert prefixes.computed(B, 4, 6, full=4, overlap=0) is None
    assert prefixes.computed(A, 4, 6, full=4, overlap=0) == ((10, 11, 12, 13), 4)


def test_the_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of blocks on many workers stays under the bound, and what was dropped is counted."""
    monkeypatch.setattr("collectors.prefix.MAX_TOTAL", 10_000)
    monkeypatch.setattr("collectors.prefix.MAX_BLOCKS", 5_000)
    prefixes = Prefixes()
    for i in range(3_000):
        prefixes.change(float(i), stored((i % 7, 0), i, *range(20 * i, 20 * i + 20)))
    assert sum(len(cache) for cache in prefixes.caches.values()) <= 10_000 + 256 * 20
    assert prefixes.forgotten > 0 and len(prefixes._before) <= 5_000


def test_tiers_are_counted_where_events_name_them() -> None:
    """Blocks of the device and of tiers further out, each on its own; nothing before the first event."""
    prefixes = Prefixes()
    assert prefixes.tiers() == ()
    prefixes.change(1, stored(A, 1, 10, 11, tier="device"))
    prefixes.change(2, stored(A, 2, 10, 11, 12, tier="host_pinned"))
    prefixes.change(3, KvChange(A, 3, "removed", None, (12,), "host_pinned"))
    assert prefixes.tiers() == (("device", 2), ("host_pinned", 2))
    prefixes.change(4, KvChange(B, 1, "removed", None, (90, 91), "host_pinned"))  # stored before anybody listened
    prefixes.change(5, stored(B, 2, 10, tier="host_pinned"))
    assert prefixes.tiers() == (("device", 2), ("host_pinned", 3))


def test_what_a_worker_held_further_out_goes_with_it() -> None:
    """A worker that left, or cleared a tier, holds nothing there; names of tiers without end take no memory without end."""
    prefixes = Prefixes()
    for worker in (A, B):
        prefixes.change(1, stored(worker, 1, 10, 11, tier="disk"))
    prefixes.drop(A)
    assert prefixes.tiers() == (("disk", 2),)
    prefixes.change(2, KvChange(B, 2, "cleared", None, (), "disk"))
    assert prefixes.tiers() == (("disk", 0),)
    for i in range(100):
        prefixes.change(3, stored(B, 3 + i, i, tier=f"tier {i}"))
    assert len(prefixes.tiers()) == 8


def test_a_disaggregated_1x_knows_every_worker_of_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """1.6.1 makes up the hashes of its decode leg: what was stored names all 613 prompts, and begins where the router said it would for
    nine in ten (others gained while they queued)."""
    ended, found = Deployment.ended, []

    def noted(deployment: Deployment, routed: Routed) -> None:
        found.append((routed.overlap_blocks, routed.best_overlap_blocks, routed.cached_blocks))
        ended(deployment, routed)

    monkeypatch.setattr(Deployment, "ended", noted)
    core = Core(Settings())
    for line in Reader(CAPTURES / "cap-1.6.1-1p2d.jsonl.gz"):
        core.advance(line.t)
        feed(core, line)
    core.finish()
    assert len(found) == 613 and all(None not in triple for triple in found)
    own, best, cached = (sum(column) for column in zip(*found, strict=True))
    assert abs(best - own) <= 0.01 * own, "with one worker to go to the best is the chosen one"
    assert cached >= own, "what is stored while a request queues is there when it is read"
