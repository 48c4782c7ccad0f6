"""The life of one request: its stages, what it found where it was sent, and what the other workers had to offer at that moment. Pure.

Dynamo's events say when a router chose, when the prompt was read, when decode got it, when the first token came and when it ended. What
they do not say is named, never guessed; what is worked out from other requests says so.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from queries.whatif.paths import DEVICE, Path, paths
from queries.whatif.policy import Load, Policy, costs
from queries.window import Requests, from_table

NEIGHBOURS_S = 120.0
STEP_S = 0.02  # what ended this close together was one step
Worker = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Stage:
    """Unix seconds; `start` and `end` are None where no event tells, and `note` says which, or how the moment was worked out."""

    name: str
    start: float | None
    end: float | None
    worker: Worker | None = None
    note: str = ""

    @property
    def seconds(self) -> float | None:
        return None if self.start is None or self.end is None else self.end - self.start


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker of the pool that chose first, as it stood when the request was routed. inflight: requests there, from the rows around.
    overlap_blocks: leading blocks of the prompt it held; cost: by Dynamo's rule, in blocks; None where not known."""

    worker: Worker
    chosen: bool
    inflight: int
    overlap_blocks: int | None
    cost: float | None


@dataclass(frozen=True, slots=True)
class Life:
    """`row` is the request's row of the table. ttft_s, e2e_s: None where it did not come to that. notes: what is not known, and why."""

    row: dict[str, Any]
    stages: tuple[Stage, ...]
    candidates: tuple[Candidate, ...]
    ttft_s: float | None
    e2e_s: float | None
    best_overlap_blocks: int | None
    notes: tuple[str, ...]


def _unix(at: datetime | None) -> float | None:
    return None if at is None else (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _worker(row: dict[str, Any], role: str) -> Worker | None:
    worker = row[f"{role}_worker"]
    return None if worker is None else (worker, row[f"{role}_dp_rank"] or 0)


def life(row: dict[str, Any], around: pa.Table, kv_events: pa.Table | None = None) -> Life:
    """row: of `request`. around: rows of `requests` that arrived from NEIGHBOURS_S before it until it finished, itself among them.

    kv_events: all of the deployment until half a second after its prompt was read, from as far back as they are kept; None: not looked at.
    """
    times = {name: _unix(row[name]) for name in ("arrived_at", "prefill_done_at", "decode_started_at", "first_token_at", "finished_at")}
    arrived, done = times["arrived_at"], times["prefill_done_at"]
    prefill, decode = _worker(row, "prefill"), _worker(row, "decode")
    everyone = from_table(around)
    notes: list[str] = []
    unseen = Stage(
        "router", None, None, None, "not reported: events begin when the router has chosen, so HTTP, template and tokenising are before it"
    )
    if prefill is None:
        read = Stage("prefill and its queue", arrived, times["first_token_at"], decode, "one pool does both, and no event parts them")
        stages = [unseen, read, Stage("decode", times["first_token_at"], times["finished_at"], decode)]
    else:
        began, how = _began(everyone, prefill, arrived, done)
        stages = [
            unseen,
            Stage("prefill queue", arrived, began, prefill, how),
            Stage("prefill", began, done, prefill, how),
            Stage("transfer", done, times["decode_started_at"], None, "from the end of prefill to the choice of a decode worker"),
            Stage("first step", times["decode_started_at"], times["first_token_at"], decode),
            Stage("decode", times["first_token_at"], times["finished_at"], decode),
        ]
    if row["outcome"] == "lost":
        notes.append("lost: no event says how it ended, or when it left its worker")
    candidates = _candidates(row, everyone, kv_events, notes)
    others = [c.overlap_blocks for c in candidates if not c.chosen and c.overlap_blocks is not None]
    if row["tau"] is None or row["omega"] is None:
        notes.append("τ and ω in force: not known, the frontend that routed it is not among the profiles")
    first, finished = times["first_token_at"], times["finished_at"]
    return Life(
        row,
        tuple(stages),
        candidates,
        None if first is None or arrived is None else first - arrived,
        None if finished is None or arrived is None else finished - arrived,
        max(others, default=None),
        tuple(notes),
    )


def _began(everyone: Requests, worker: Worker, arrived: float | None, done: float | None) -> tuple[float | None, str]:
    """When its prefill can have begun at the earliest: after the step before it on that worker."""
    if arrived is None or done is None or worker not in everyone.workers:
        return None, "no event tells when its prompt was read"
    mine = everyone.prefill == everyone.workers.index(worker)
    before = everyone.prefill_done_at[mine & (everyone.prefill_done_at < done - STEP_S)]
    before = before[before > arrived]
    if not len(before):
        return arrived, "no other prompt was finished on that worker meanwhile"
    return float(before.max()), "worked out: the end of the step before it on that worker"


def _candidates(row: dict[str, Any], everyone: Requests, kv_events: pa.Table | None, notes: list[str]) -> tuple[Candidate, ...]:
    role = "prefill" if row["prefill_worker"] is not None else "decode"
    chosen, at = _worker(row, role), _unix(row["arrived_at"])
    if chosen is None or at is None:
        return ()
    place, ended = (everyone.prefill, everyone.prefill_done_at) if role == "prefill" else (everyone.decode, everyone.finished_at)
    pool = sorted({everyone.workers[c] for c in np.unique(place[place >= 0])} | {chosen})
    overlaps = _overlaps(row, everyone, kv_events, pool, at, notes)
    if row["overlap_blocks"] is not None:
        overlaps[chosen] = row["overlap_blocks"]
    loads, blocks = [], row["input_blocks"]
    for worker in pool:
        load = Load()
        if worker in everyone.workers:
            there = (place == everyone.workers.index(worker)) & (everyone.request_id != row["request_id"])
            there &= (everyone.arrived_at <= at) & ~(ended <= at) & ~everyone.lost
            load.requests = int(there.sum())
            load.active_blocks = float(np.nansum(everyone.input_blocks[there]))
            load.prefill_blocks = float(
                np.nansum((everyone.input_blocks - everyone.overlap_blocks)[there & ~(everyone.prefill_done_at <= at)])
            )
        if worker == chosen and row[f"{role}_inflight"] is not None:
            load.requests = row[f"{role}_inflight"]
        loads.append(load)
    known = [overlaps.get(worker) for worker in pool]
    cost: list[float | None] = [None] * len(pool)
    if row["omega"] is None or blocks is None or None in known:
        notes.append(
            "costs: not reported by this version, and to work them out ω, the input and the overlap with every worker must be known"
        )
    else:
        cost = list(costs(Policy("kv", row["tau"] or 0.0, row["omega"]), loads, blocks, [k for k in known if k is not None]))
        notes.append("costs: not reported by this version; worked out by Dynamo's rule from the requests around")
    return tuple(Candidate(w, w == chosen, load.requests, known[k], cost[k]) for k, (w, load) in enumerate(zip(pool, loads, strict=True)))


def _overlaps(
    row: dict[str, Any], everyone: Requests, kv_events: pa.Table | None, pool: list[Worker], at: float, notes: list[str]
) -> dict[Worker, int]:
    """Leading blocks of the prompt that each worker of the pool held, from cache events."""
    if kv_events is None or not kv_events.num_rows:
        notes.append("overlap elsewhere: no cache events were kept")
        return {}
    spot = np.flatnonzero(everyone.request_id == row["request_id"])
    path = paths(everyone, kv_events).path[int(spot[0])] if len(spot) else None
    if path is None:
        notes.append("overlap elsewhere: its blocks are not known, no cache event of its prefill was found")
        return {}
    silent = [w for w in pool if w not in (held := _held(kv_events, at))]
    if silent:
        notes.append(f"overlap elsewhere: {len(silent)} of {len(pool)} workers published no cache events")
    return {worker: _leading(path, held[worker]) for worker in pool if worker in held}


def _leading(path: Path, held: set[int]) -> int:
    count = 0
    while count < len(path) and path[count] in held:
        count += 1
    return count


def _held(kv_events: pa.Table, at: float) -> dict[Worker, set[int]]:
    """What each worker that ever published held at that moment, on its device."""
    held: dict[Worker, set[int]] = {}
    for event in kv_events.sort_by([("ts", "ascending"), ("event_id", "ascending")]).to_pylist():
        blocks = held.setdefault((event["worker_id"], event["dp_rank"] or 0), set())
        moment = _unix(event["ts"])
        if event["tier"] not in DEVICE or moment is None or moment > at:
            continue
        if event["kind"] == "stored":
            blocks.update(event["block_hashes"])
        elif event["kind"] == "removed":
            blocks.difference_update(event["block_hashes"])
        else:
            blocks.clear()
    return held
