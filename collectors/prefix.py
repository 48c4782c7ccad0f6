"""Which KV blocks each worker holds, and since when, from its cache events; and which prompt each event stored."""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from collectors.wire import KvChange

Worker = tuple[int, int]
MAX_BLOCKS = 400_000  # of one worker
MAX_TOTAL = 1_000_000  # of a deployment: some 200 bytes each
MAX_STORED = 20_000
MAX_TIERS = 8  # of a worker, besides the device
REMEMBERED_S = 600.0
DEVICE = (None, "device", "gpu")
# KV events and the mark that a prompt was read come from two publishers: either may be the later one.
LATE_S = 0.5


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

    def weight(self) -> int:
        return len(self._held) + len(self._removed)

    def forget(self, count: int) -> None:
        """Drop the oldest: first of those removed, then of those held."""
        for blocks in (self._removed, self._held):
            while count > 0 and blocks:
                blocks.popitem(last=False)
                count -= 1

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


@dataclass(slots=True)
class Stored:
    """Blocks that a worker computed and kept: after `start` blocks that it had, up to block number `end` of a prompt."""

    at: float
    start: int
    end: int
    last: int
    claimed: bool = False


def _at(stored: Stored) -> float:
    return stored.at


class Prefixes:
    """The caches of one deployment. Only the device tier counts: what lies further out is not a hit in the router's cost."""

    def __init__(self) -> None:
        self.caches: dict[Worker, Cache] = {}
        self.forgotten = 0
        self._outer: dict[Worker, dict[str, int]] = {}
        # A hash names the whole prefix up to its block, so what lies before a block is the same on every worker.
        self._before: OrderedDict[int, tuple[int | None, int]] = OrderedDict()
        self._stored: dict[Worker, list[Stored]] = {}
        self._changes = 0

    def change(self, at: float, event: KvChange) -> None:
        if event.tier not in DEVICE:
            held, tier = self._outer.setdefault(event.worker, {}), str(event.tier)
            if tier in held or len(held) < MAX_TIERS:
                change = {"stored": 1, "removed": -1}.get(event.kind, 0) * len(event.block_hashes)
                # What went before anybody listened is no debt.
                held[tier] = 0 if event.kind == "cleared" else max(0, held.get(tier, 0) + change)
            return
        self.caches.setdefault(event.worker, Cache()).change(at, event)
        if event.kind == "stored" and event.block_hashes:
            self._chain(at, event)
        self._changes += 1
        if self._changes % 256 == 0 and (total := sum(cache.weight() for cache in self.caches.values())) > MAX_TOTAL:
            share = 1 - 0.9 * MAX_TOTAL / total
            for cache in self.caches.values():
                cache.forget(int(share * cache.weight()))
            self.forgotten += total - sum(cache.weight() for cache in self.caches.values())

    def _chain(self, at: float, event: KvChange) -> None:
        parent, depth = event.parent_hash, 0
        if parent is not None:
            if parent not in self._before:
                return  # its beginning was not heard: what prompt this is nobody can tell
            depth = self._before[parent][1]
        start = depth
        for block in event.block_hashes:
            depth += 1
            self._before[block] = (parent, depth)
            self._before.move_to_end(block)
            parent = block
        while len(self._before) > MAX_BLOCKS:
            self._before.popitem(last=False)
        stored = self._stored.setdefault(event.worker, [])
        insort(stored, Stored(at, start, depth, event.block_hashes[-1]), key=_at)
        if len(stored) > MAX_STORED:
            del stored[: MAX_STORED // 2]

    def tiers(self) -> tuple[tuple[str, int], ...]:
        """Blocks held in each tier that events named, over all workers; () while none did."""
        held = Counter({"device": sum(len(cache) for cache in self.caches.values())} if self.caches else {})
        for outer in self._outer.values():
            held.update(outer)
        return tuple(sorted(held.items()))

    def overlaps(self, blocks: tuple[int, ...], at: float) -> dict[Worker, int] | None:
        """For every worker that publishes cache events: the leading blocks it held at `at`. None when no cache ever knew the first block:
        then these are not the hashes that cache events use, and nothing was said about overlap.

        They are the same on 0.9, and on 1.4 where one component does both. A decode leg of 1.4 or 1.6 carries made-up ones.
        """
        if not blocks or not any(cache.knows(blocks[0]) for cache in self.caches.values()):
            return None
        return {worker: cache.overlap(blocks, at) for worker, cache in self.caches.items()}

    def computed(
        self, worker: Worker, arrived_at: float, read_at: float, full: int, overlap: int | None, last: int | None = None
    ) -> tuple[tuple[int, ...], int] | None:
        """The hashes of a prompt of `full` blocks that the worker read between the two moments, and how many of them it computed.

        Told from what it stored then: the blocks after those it had, and through their parents the whole prompt. Of several prompts of that
        length read at once, the one with as many blocks to begin with as the router said (`overlap`), else the nearest in time; within a
        batch they are alike, so sums are right where single requests may be swapped. None: nothing stored fits, as of a prompt that was
        there already, or whose beginning was not heard. An event speaks for one request only. `last`: the prompt's last hash, where known.
        """
        stored = self._stored.get(worker, [])
        inside = stored[bisect_left(stored, arrived_at, key=_at) : bisect_right(stored, read_at + LATE_S, key=_at)]
        fits = [s for s in inside if s.end == full and not s.claimed and last in (None, s.last)]
        if not fits:
            return None
        found = min(fits, key=lambda s: (s.start != overlap, abs(s.at - read_at)))
        blocks: list[int] = []
        block: int | None = found.last
        while block is not None and block in self._before:
            blocks.append(block)
            block = self._before[block][0]
        if len(blocks) != full:
            return None
        found.claimed = True
        start, hashes = found.start, tuple(reversed(blocks))
        # A prompt read in chunks is stored in as many events, each after the last block of the one before.
        for piece in sorted(inside, key=lambda s: s.end, reverse=True):
            if not piece.claimed and piece.end == start and piece.last == hashes[start - 1]:
                piece.claimed, start = True, piece.start
        return hashes, full - start

    def drop(self, worker: Worker) -> None:
        self.caches.pop(worker, None)
        self._stored.pop(worker, None)
        self._outer.pop(worker, None)
