"""What Dynamo and poascope say on NATS, as typed events. Both wire formats (0.9 and 1.x) are told apart by what arrives.

Nothing here raises on what a wire brings: a message that cannot be read becomes an `Unreadable`, to be counted.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Annotated, Any, Literal
from urllib.parse import unquote_to_bytes

import msgspec

U64 = 2**64 - 1
U32 = 2**32 - 1


class Added(msgspec.Struct, frozen=True):
    """A router sent a request to a worker. `isl` and `overlap` come from 0.9, `effective_prefill_tokens` from 1.x; tokens and blocks.
    `prefilled`: the prompt was read elsewhere before (1.x; None on 0.9, which does not say)."""

    request_id: str
    worker: tuple[int, int]
    router_id: int
    isl: int | None
    overlap: int | None
    effective_prefill_tokens: int | None
    token_sequence: tuple[int, ...] | None
    prefilled: bool | None = None


class Marked(msgspec.Struct, frozen=True):
    """The worker finished the prompt of a request: on the prefill component the hand-over, on the other the first token."""

    request_id: str
    worker: tuple[int, int]


class Freed(msgspec.Struct, frozen=True):
    """The worker is done with a request, or the router gave it up."""

    request_id: str
    worker: tuple[int, int]


class Load(msgspec.Struct, frozen=True):
    """What a router or the worker itself last said of a worker's load; None: not said by this publisher."""

    worker: tuple[int, int]
    active_decode_blocks: int | None
    active_prefill_tokens: int | None
    kv_used_blocks: int | None


class HitRate(msgspec.Struct, frozen=True):
    """A router's word on one request (0.9), in blocks; the request's own event says the same, so it serves to notice losses."""

    worker: tuple[int, int]
    isl_blocks: int
    overlap_blocks: int


class Step(msgspec.Struct, frozen=True):
    """One engine step of a worker (1.x). `decoding`: requests that got a token from it, `step_s` after their last one."""

    worker: tuple[int, int]
    step_s: float
    prefilling: int
    decoding: int
    waiting: int


class KvChange(msgspec.Struct, frozen=True):
    """A worker's cache gained blocks, lost some, or was cleared."""

    worker: tuple[int, int]
    event_id: int
    kind: Literal["stored", "removed", "cleared"]
    parent_hash: int | None
    block_hashes: tuple[int, ...]
    tier: str | None


class Control(msgspec.Struct, frozen=True):
    """An intent, target, acknowledgement, decision or marked incident of poascope's own control protocol, as its JSON object."""

    kind: str
    replica: str | None
    body: dict[str, Any]


class Deleted(msgspec.Struct, frozen=True):
    """A key of the control bucket was deleted or purged."""

    kind: str
    replica: str | None


class Routed(msgspec.Struct, frozen=True):
    """A router actuator's word: under which parameters it really gave a request to Dynamo's router."""

    request_id: str
    tau: Annotated[float, msgspec.Meta(ge=0, le=1e6)]
    omega: Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class Unreadable(msgspec.Struct, frozen=True):
    """A message that no decoder understands. `pattern`: its subject without names; `reason`: in a few words."""

    pattern: str
    reason: str


Event = Added | Routed | Marked | Freed | Load | HitRate | Step | KvChange | Control | Deleted


class Message(msgspec.Struct, frozen=True):
    """A readable message. `publisher` and `sequence` are None where there is no envelope; `published_at` in Unix seconds."""

    deployment: str
    component: str | None
    topic: str
    publisher: int | None
    sequence: int | None
    published_at: float | None
    events: tuple[Event, ...]


class _Envelope(msgspec.Struct):
    publisher_id: int
    sequence: int
    published_at: int
    payload: bytes


class _Worker(msgspec.Struct):
    worker_id: int
    dp_rank: int | None = None


class _LoadHint(msgspec.Struct):
    initial_effective_prefill_tokens: int | None = None


class _AddRequest(msgspec.Struct):
    token_sequence: tuple[int, ...] | None = None
    isl: int | None = None
    overlap: int | None = None
    prefill_load_hint: _LoadHint | None = None
    track_prefill_tokens: bool | None = None


class _Variant(msgspec.Struct):
    AddRequest: _AddRequest | None = None


class _ActiveSequence(msgspec.Struct):
    request_id: str
    worker: _Worker
    data: str | _Variant
    router_id: int


class _KvMetrics(msgspec.Struct):
    worker_id: int
    dp_rank: int | None = None
    active_decode_blocks: int | None = None
    active_prefill_tokens: int | None = None
    kv_used_blocks: int | None = None


class _KvHitRate(msgspec.Struct):
    worker_id: int
    isl_blocks: int
    overlap_blocks: int
    dp_rank: int | None = None


class _Scheduled(msgspec.Struct):
    num_prefill_requests: int = 0
    num_decode_requests: int = 0


class _ForwardPass(msgspec.Struct):
    worker_id: str | int
    wall_time: float
    scheduled_requests: _Scheduled
    queued_requests: _Scheduled
    dp_rank: int | None = None


class _Block(msgspec.Struct):
    block_hash: int


class _Stored(msgspec.Struct):
    blocks: tuple[_Block, ...]
    parent_hash: int | None = None


class _Removed(msgspec.Struct):
    block_hashes: tuple[int, ...]


class _KvData(msgspec.Struct):
    stored: _Stored | None = None
    removed: _Removed | None = None


class _KvEvent(msgspec.Struct):
    event_id: int
    data: str | _KvData
    dp_rank: int | None = None


class _WorkerKvEvent(msgspec.Struct):
    worker_id: int
    event: _KvEvent
    storage_tier: str | None = None


_envelope = msgspec.msgpack.Decoder(_Envelope)
_sequence = msgspec.msgpack.Decoder(_ActiveSequence)
_metrics = msgspec.msgpack.Decoder(_KvMetrics)
_hit_rate = msgspec.msgpack.Decoder(_KvHitRate)
_forward = msgspec.msgpack.Decoder(_ForwardPass)
_kv_list = msgspec.msgpack.Decoder(list[_WorkerKvEvent] | _WorkerKvEvent)
_kv_json = msgspec.json.Decoder(list[_WorkerKvEvent] | _WorkerKvEvent)
_object = msgspec.json.Decoder(dict[str, Any])
_routed = msgspec.json.Decoder(Routed)

_NATS_09 = re.compile(r"namespace\.(?P<dep>[^.]+)(?:\.component\.(?P<component>[^.]+))?\.(?P<topic>[^.]+)")
_NATS_1X = re.compile(r"namespace\.(?P<dep>.+?)\.component\.(?P<component>[^.]+)\.endpoint\.[^.]+\.(?P<topic>[^.]+)")
_STREAM_09 = re.compile(r"namespace-(?P<dep>.+)-component-(?P<component>.+)-kv-events\.(?P<topic>kv-events)")
_BUCKET = re.compile(r"\$KV\.poascope\.(?P<dep>[^.]+)\.(?P<kind>intent|target|ack|armed|lease)(?:\.(?P<replica>[^.]+))?")
_OWN = re.compile(r"poascope\.(?P<dep>[^.]+)\.(?P<kind>decision|incident|loop|routed|signals)")


class Subject(msgspec.Struct, frozen=True):
    """Where a message belongs, read from its subject alone. `pattern` has `*` for each name."""

    pattern: str
    topic: str
    deployment: str
    component: str | None = None
    replica: str | None = None


def _unescape(token: str) -> str:
    return unquote_to_bytes(token.replace("=", "%")).decode(errors="replace")


@lru_cache(maxsize=4096)
def parse_subject(subject: str) -> Subject:
    """The parts of a subject; topic "" when nothing of ours or Dynamo's looks like this."""
    for form in (_NATS_1X, _NATS_09, _STREAM_09):
        if found := form.fullmatch(subject):
            parts = found.groupdict()
            pattern = subject
            for group in sorted((g for g in ("dep", "component") if parts.get(g)), key=found.start, reverse=True):
                pattern = pattern[: found.start(group)] + "*" + pattern[found.end(group) :]
            return Subject(pattern, parts["topic"], parts["dep"], parts.get("component"))
    if found := _BUCKET.fullmatch(subject):
        replica = found["replica"]
        if (replica is None) == (found["kind"] == "ack"):
            return Subject("$KV.poascope.>", "", "")
        pattern = f"$KV.poascope.*.{found['kind']}" + (".*" if replica else "")
        return Subject(pattern, found["kind"], _unescape(found["dep"]), None, replica and _unescape(replica))
    if found := _OWN.fullmatch(subject):
        return Subject(f"poascope.*.{found['kind']}", found["kind"], _unescape(found["dep"]))
    head = subject.split(".", 1)[0]
    return Subject(f"{head[:40]}.>", "", "")


class _Refused(ValueError):
    """What a payload says cannot be so."""


def _worker(worker_id: int, dp_rank: int | None) -> tuple[int, int]:
    rank = dp_rank or 0
    if not 0 <= worker_id <= U64 or not 0 <= rank <= U32:
        raise _Refused("worker id out of range")
    return worker_id, rank


def _count(value: int | None, limit: int = U64) -> int | None:
    if value is not None and not 0 <= value <= limit:
        raise _Refused("count out of range")
    return value


def _hashes(values: Iterable[int]) -> tuple[int, ...]:
    found = tuple(values)
    if found and (min(found) < 0 or max(found) > U64):
        raise _Refused("block hash out of range")
    return found


def _active_sequence(payload: bytes) -> Added | Marked | Freed:
    said = _sequence.decode(payload)
    worker = _worker(said.worker.worker_id, said.worker.dp_rank)
    if not 0 <= said.router_id <= U64:
        raise _Refused("router id out of range")
    if said.data == "MarkPrefillCompleted":
        return Marked(said.request_id, worker)
    if said.data == "Free":
        return Freed(said.request_id, worker)
    if isinstance(said.data, str) or said.data.AddRequest is None:
        raise _Refused("unknown step of a request's life")
    add = said.data.AddRequest
    # A prompt that is wholly cached comes without a hint: the router tracks its prefill, and there is none.
    nothing_left = 0 if add.track_prefill_tokens else None
    hint = add.prefill_load_hint.initial_effective_prefill_tokens if add.prefill_load_hint else nothing_left
    tokens = None if add.token_sequence is None else _hashes(add.token_sequence)
    prefilled = None if add.track_prefill_tokens is None else not add.track_prefill_tokens
    return Added(
        said.request_id, worker, said.router_id, _count(add.isl, U32), _count(add.overlap, U32), _count(hint, U32), tokens, prefilled
    )


def _kv_change(said: _WorkerKvEvent) -> KvChange:
    worker = _worker(said.worker_id, said.event.dp_rank)
    event_id = _count(said.event.event_id) or 0
    data = said.event.data
    if data == "cleared":
        return KvChange(worker, event_id, "cleared", None, (), said.storage_tier)
    if isinstance(data, str) or (data.stored is None) == (data.removed is None):
        raise _Refused("unknown change of a cache")
    if data.stored is not None:
        hashes = _hashes(b.block_hash for b in data.stored.blocks)
        return KvChange(worker, event_id, "stored", _count(data.stored.parent_hash), hashes, said.storage_tier)
    assert data.removed is not None
    return KvChange(worker, event_id, "removed", None, _hashes(data.removed.block_hashes), said.storage_tier)


def _kv_changes(said: list[_WorkerKvEvent] | _WorkerKvEvent) -> tuple[KvChange, ...]:
    return tuple(_kv_change(e) for e in (said if isinstance(said, list) else [said]))


def _load(payload: bytes) -> Load:
    said = _metrics.decode(payload)
    worker = _worker(said.worker_id, said.dp_rank)
    return Load(worker, _count(said.active_decode_blocks), _count(said.active_prefill_tokens), _count(said.kv_used_blocks))


def _hit(payload: bytes) -> HitRate:
    said = _hit_rate.decode(payload)
    return HitRate(_worker(said.worker_id, said.dp_rank), _count(said.isl_blocks) or 0, _count(said.overlap_blocks) or 0)


def _step(payload: bytes) -> Step:
    said = _forward.decode(payload)
    if isinstance(said.worker_id, str) and not (said.worker_id.isdecimal() and len(said.worker_id) <= len(str(U64))):
        raise _Refused("worker id is no number")
    queued, running = said.queued_requests, said.scheduled_requests
    counts = (running.num_prefill_requests, running.num_decode_requests, queued.num_prefill_requests + queued.num_decode_requests)
    if min(counts) < 0 or max(counts[0] + counts[1], counts[2]) > U32 or not 0 <= said.wall_time < 3600:
        raise _Refused("step out of range")
    return Step(_worker(int(said.worker_id), said.dp_rank), said.wall_time, *counts)


# One decoder a topic; both formats share the payloads, only their envelopes and subjects differ.
_TOPICS: dict[str, Callable[[bytes], tuple[Event, ...]]] = {
    "active_sequences_events": lambda payload: (_active_sequence(payload),),
    "forward-pass-metrics": lambda payload: (_step(payload),),
    "kv_metrics": lambda payload: (_load(payload),),
    "kv-hit-rate": lambda payload: (_hit(payload),),
    "kv-events": lambda payload: _kv_changes(_kv_list.decode(payload)),
}


def decode(subject: str, data: bytes) -> Message | Unreadable:
    """What one NATS message says. Never raises on its content."""
    where = parse_subject(subject)
    if not where.topic:
        return Unreadable(where.pattern, "unknown subject")
    try:
        if where.topic in ("signals", "loop", "lease"):  # our own, and written down nowhere
            return Message(where.deployment, None, where.topic, None, None, None, ())
        if where.topic in ("intent", "target", "ack", "armed", "decision", "incident"):
            control = Control(where.topic, where.replica, _object.decode(data)) if data else Deleted(where.topic, where.replica)
            return Message(where.deployment, None, where.topic, None, None, None, (control,))
        if where.topic == "routed":
            return Message(where.deployment, None, where.topic, None, None, None, (_routed.decode(data),))
        if where.topic == "kv-events" and data[:1] in (b"{", b"["):
            return Message(where.deployment, where.component, where.topic, None, None, None, _kv_changes(_kv_json.decode(data)))
        if where.topic not in _TOPICS:
            raise _Refused("unknown topic")
        envelope = _envelope.decode(data)
        if not (0 <= envelope.publisher_id <= U64 and 0 <= envelope.sequence <= U64 and 0 <= envelope.published_at < 2**53):
            raise _Refused("envelope out of range")
        return Message(
            where.deployment,
            where.component,
            where.topic,
            envelope.publisher_id,
            envelope.sequence,
            envelope.published_at / 1000,
            _TOPICS[where.topic](envelope.payload),
        )
    except _Refused as refused:
        return Unreadable(where.pattern, str(refused))
    except msgspec.ValidationError as error:
        return Unreadable(where.pattern, f"other shape: {str(error).split(' - ')[0]}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Unreadable(where.pattern, "corrupt bytes")
