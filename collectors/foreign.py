"""Traces of other tools, as rows of `requests`: AIPerf's per-request records and Dynamo's request trace. Pure, save reading.

A format is told by what its first record holds, never by a file's name; a schema version that is not known is refused by its name. What a
format does not tell stays NULL, and `lacks` says what that is.
"""

import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from collectors.rows import Rows
from poascope.errors import PoascopeError

MAX_LINE = 64 * 2**20
ROWS_PER_TAKE = 20_000
DYNAMO_SCHEMA = "dynamo.request.trace.v1"
Record = dict[str, Any]
_decode = msgspec.json.Decoder(Record).decode


@dataclass(frozen=True, slots=True)
class Format:
    """How a format is read. `row`: a record as a row of `requests`, None for no request; raises KeyError, TypeError or ValueError."""

    name: str
    row: Callable[[Record], Record | None]
    lacks: str


@dataclass(slots=True)
class Read:
    """What was read, and what was not."""

    format: Format
    tables: list[pa.Table] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    truncated: str | None = None


def _milliseconds(record: Record, name: str) -> float | None:
    value = record.get(name)
    return None if value is None else float(value) / 1e3


def dynamo(record: Record) -> Record | None:
    """A `request_end` of Dynamo's request trace. Arrival is to the millisecond there, what follows is counted from it.

    Blocks are of `trace_block_size` tokens, as the router counts them. `prefill_wait_time_ms` ends when the request is sent to its prefill
    worker; there is no time at which decoding began, so decode_started_at is NULL.
    """
    event = record["event"]
    if event["event_type"] != "request_end":
        return None
    request = event["request"]
    worker, replay = request.get("worker") or {}, request.get("replay") or {}
    arrived = float(request["request_received_ms"]) / 1e3
    ttft, total = _milliseconds(request, "ttft_ms"), _milliseconds(request, "total_time_ms")
    wait, prefill = _milliseconds(request, "prefill_wait_time_ms"), _milliseconds(request, "prefill_time_ms")
    read = None if wait is None or prefill is None else min(wait + prefill, wait + prefill if ttft is None else ttft)
    block, tokens, cached = replay.get("trace_block_size"), request.get("input_tokens"), request.get("cached_tokens")
    return {
        "request_id": str(request["request_id"]),
        "model": request.get("model"),
        "prefill_worker": worker.get("prefill_worker_id"),
        "prefill_dp_rank": worker.get("prefill_dp_rank"),
        "decode_worker": worker.get("decode_worker_id"),
        "decode_dp_rank": worker.get("decode_dp_rank"),
        "arrived_at": arrived,
        "prefill_done_at": None if read is None else arrived + read,
        "first_token_at": None if ttft is None else arrived + ttft,
        "finished_at": None if total is None else arrived + total,
        "input_blocks": None if block is None or tokens is None else -(-int(tokens) // int(block)),
        "overlap_blocks": None if block is None or cached is None else int(cached) // int(block),
        "outcome": "lost" if total is None or ttft is None else "finished",
    }


def aiperf(record: Record) -> Record | None:
    """A record of AIPerf's profile_export.jsonl: the client's view of one request. Warm-up requests are load like any other."""
    metadata, metrics = record["metadata"], record["metrics"]
    if metadata.get("context_overflow_skip"):
        return None  # never sent
    sent = int(metadata["request_start_ns"]) / 1e9
    first = metrics.get("time_to_first_token")
    if first is not None and first["unit"] != "ms":
        raise ValueError(f"time_to_first_token in {first['unit']}")
    failed = record.get("error") is not None or bool(metadata.get("was_cancelled"))
    return {
        "request_id": str(metadata["x_request_id"]),
        "arrived_at": sent,
        "first_token_at": None if first is None else sent + float(first["value"]) / 1e3,
        "finished_at": int(metadata["request_end_ns"]) / 1e9,
        "outcome": "lost" if failed else "finished",
    }


DYNAMO = Format(
    "dynamo request trace",
    dynamo,
    "when decoding began, how many requests each worker had, τ and ω, and the regime",
)
AIPERF = Format("aiperf", aiperf, "workers, blocks, stages other than the first token, τ and ω, and the regime")


def recognise(path: Path, first: bytes) -> Format | None:
    """Which of these formats the first line is of; None for none. Raises PoascopeError naming a schema version that is not known."""
    try:
        record = _decode(first)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    event, metadata = record.get("event"), record.get("metadata")
    schema = event.get("schema") if isinstance(event, dict) else record.get("schema")
    if isinstance(schema, str) and schema.startswith("dynamo."):
        if schema != DYNAMO_SCHEMA or not isinstance(event, dict):
            raise PoascopeError(f"import: {path} - schema {schema[:80]} is not known here; known: {DYNAMO_SCHEMA}; upgrade poascope")
        return DYNAMO
    if isinstance(metadata, dict) and isinstance(record.get("metrics"), dict):
        if "request_start_ns" in metadata and "x_request_id" in metadata:
            return AIPERF
        raise PoascopeError(
            f"import: {path} - AIPerf records without {'request_start_ns' if 'x_request_id' in metadata else 'x_request_id'}; "
            "known are those that AIPerf 0.13 writes to profile_export.jsonl"
        )
    if {"timestamp", "input_length", "output_length"} <= record.keys():
        raise PoascopeError(
            f"import: {path} - a Mooncake trace says what to send and not what happened; send it with `poascope testbed load {path}`"
        )
    return None


def first_line(path: Path) -> bytes:
    """The first line of a plain or gzipped file; empty when there is none."""
    return next(_lines(path, Counter(), lambda _: None), b"")


def read(path: Path, known: Format, deployment: str) -> Read:
    """Every record of the file as rows. A damaged one is counted, a file that breaks off is read up to there."""
    done, rows = Read(known), Rows()

    def broke(why: str) -> None:
        done.truncated = why

    for text in _lines(path, done.counts, broke):
        try:
            row = known.row(_checked(path, _decode(text)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError, ValueError, AttributeError):
            done.counts["damaged"] += 1
            continue
        if row is None:
            done.counts["not a request"] += 1
            continue
        rows.put("requests", deployment=deployment, **row)
        if len(rows) >= ROWS_PER_TAKE:
            done.tables += rows.take().values()
    done.tables += rows.take().values()
    if rows.refused:
        done.counts["damaged"] += sum(rows.refused.values())
    return done


def _checked(path: Path, record: Record) -> Record:
    event = record.get("event")
    schema = event.get("schema") if isinstance(event, dict) else None
    if schema is not None and schema != DYNAMO_SCHEMA:
        raise PoascopeError(f"import: {path} - schema {str(schema)[:80]} is not known here; known: {DYNAMO_SCHEMA}; nothing was imported")
    return record


def _lines(path: Path, counts: Counter[str], broke: Callable[[str], None]) -> Iterator[bytes]:
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream: Any = gzip.GzipFile(fileobj=raw) if zipped else raw
        while True:
            try:
                text = bytes(stream.readline(MAX_LINE))
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                broke(str(error) or "unexpected end")
                return
            if not text:
                return
            counts["lines"] += 1
            if text.strip():
                yield text
