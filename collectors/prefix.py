"""Which KV blocks each worker holds, and since when, from its cache events."""

from collections import OrderedDict
from collections.abc import Iterable

from collectors.wire import KvChange

Worker = tuple[int, int]
MAX_BLOCKS = 400_000
REMEMBERED_S = 600.0


class Cache:
    """One worker's blocks. A block that was removed is remembered for a while: requests ask about the moment they arrived."""

    def __init__(self) -> None:
        self._held: OrderedDict[int, float] = OrderedDict()
        self._removed: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def change(self, at: float, event: KvChange) -> None:
        if event.kind == "stored":
            for block in event.block_hashes:
                self._held.setdefault(block, at)
            while len(self._held) > MAX_BLOCKS:
                self._held.popitem(last=False)
        else:
            for block in event.block_hashes if event.kind == "removed" else list(self._held):
                if (since := self._held.pop(block, None)) is not None:
                    self._removed[block] = (since, at)
                    self._removed.move_to_end(block)
            while self._removed and (len(self._removed) > MAX_BLOCKS or next(iter(self._removed.values()))[1] < at - REMEMBERED_S):
                self._removed.popitem(last=False)

    def held_at(self, block: int, at: float) -> bool:
        since = self._held.get(block)
        if since is not None and since <= at:
            return True
        past = self._removed.get(block)
        return past is not None and past[0] <= at < past[1]

    def knows(self, block: int) -> bool:
        return block in self._held or block in self._removed

    def overlap(self, blocks: Iterable[int], at: float) -> int:
        """How many leading blocks were held at that moment."""
        count = 0
        for block in blocks:
            if not self.held_at(block, at):
                break
            count += 1
        return count


class Prefixes:
    """The caches of one deployment. Only the device tier counts: what lies further out is not a hit in the router's cost."""

    def __init__(self) -> None:
        self.caches: dict[Worker, Cache] = {}

    def change(self, at: float, event: KvChange) -> None:
        if event.tier in (None, "device", "gpu"):
            self.caches.setdefault(event.worker, Cache()).change(at, event)

    def overlaps(self, blocks: tuple[int, ...], at: float) -> dict[Worker, int] | None:
        """For every worker that publishes cache events: the leading blocks it held at `at`. None when no cache ever knew the first block:
        then these are not the hashes that cache events use, and nothing was said about overlap.

        They are the same on 0.9, and on 1.4 where one component does both. A decode leg of 1.4 or 1.6 carries made-up ones.
        """
        if not blocks or not any(cache.knows(blocks[0]) for cache in self.caches.values()):
            return None
        return {worker: cache.overlap(blocks, at) for worker, cache in self.caches.items()}

    def drop(self, worker: Worker) -> None:
        self.caches.pop(worker, None)
