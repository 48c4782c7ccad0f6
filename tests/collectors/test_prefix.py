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
