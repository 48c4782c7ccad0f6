"""Which prompt is which: the block hashes of each request, read back from the cache events that its prefill caused."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from queries.window import Floats, Requests

NEAR_S = 0.25
DEVICE = (None, "device", "gpu")
Path = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Paths:
    """Per request, in the order of the window: `path` (None: not known) and `computed`, the blocks its prefill stored (NaN: not known).
    evicted: whether blocks were ever dropped; most: the most blocks a worker was seen to hold."""

    path: tuple[Path | None, ...]
    computed: Floats
    evicted: bool
    most: int


@dataclass(frozen=True, slots=True)
class _Stored:
    at: float
    path: Path
    new: int


def _stored(events: Sequence[dict[str, object]]) -> tuple[list[_Stored], bool, int]:
    """One worker's stored runs of blocks with all that comes before them, as far as it was seen; whether it dropped any; the most held."""
    chain: dict[int, Path] = {}
    runs, held, evicted, most = [], set[int](), False, 0
    for event in events:
        blocks = event["block_hashes"]
        assert isinstance(blocks, list)
        if event["kind"] != "stored":
            evicted = True
            held -= set(blocks) if event["kind"] == "removed" else held
            continue
        parent = event["parent_hash"]
        # of a parent stored before the recording only its own hash is known: the path then starts there
        path: Path = () if parent is None else chain.get(parent, (parent,))  # type: ignore[call-overload]
        for block in blocks:
            path = (*path, block)
            chain[block] = path
        held |= set(blocks)
        most = max(most, len(held))
        at = event["ts"]
        assert hasattr(at, "timestamp")
        runs.append(_Stored(_seconds(at), path, len(blocks)))
    return runs, evicted, most


def _seconds(at: object) -> float:
    from datetime import UTC

    return float(at.replace(tzinfo=UTC).timestamp())  # type: ignore[attr-defined]


def paths(requests: Requests, kv_events: pa.Table) -> Paths:
    """Give each stored run to the request on that worker whose prefill ended next to it, in order; those that ended as one batch, by
    arrival: which of them was which prompt does not matter to the queue.

    A run fits when it ends in a full block of the request's input (the last may be in part) and starts at or past the overlap that its
    router knew of. A request without a run was held whole, or its event was lost; its path is not known.
    """
    path: list[Path | None] = [None] * len(requests)
    computed = np.full(len(requests), np.nan)
    by_worker: dict[tuple[int, int], list[dict[str, object]]] = {}
    for event in kv_events.sort_by([("ts", "ascending"), ("event_id", "ascending")]).to_pylist():
        if event["tier"] in DEVICE:
            by_worker.setdefault((event["worker_id"], event["dp_rank"] or 0), []).append(event)
    evicted, most = False, 0
    for code, worker in enumerate(requests.workers):
        if worker not in by_worker or not (requests.prefill == code).any():
            continue
        runs, dropped, held = _stored(by_worker[worker])
        evicted, most = evicted or dropped, max(most, held)
        mine = np.flatnonzero((requests.prefill == code) & ~np.isnan(requests.prefill_done_at))
        mine = mine[np.lexsort((requests.arrived_at[mine], requests.prefill_done_at[mine]))]
        free = list(range(len(runs)))
        for i in mine:
            done, blocks, overlap = requests.prefill_done_at[i], requests.input_blocks[i], requests.overlap_blocks[i]
            while free and runs[free[0]].at < done - NEAR_S:
                free.pop(0)
            for place, k in enumerate(free):
                run = runs[k]
                if run.at > done + NEAR_S:
                    break
                depth = len(run.path)
                if not np.isnan(blocks) and depth not in (blocks, blocks - 1):
                    continue
                if not np.isnan(overlap) and depth - run.new < overlap - 1:
                    continue
                path[i], computed[i] = run.path, float(blocks - (depth - run.new)) if not np.isnan(blocks) else float(run.new)
                free.pop(place)
                break
    return Paths(tuple(path), computed, evicted, most)
