"""Mooncake traces: when each request comes, how long it is, and which blocks of its prompt it shares with others."""

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from poascope.errors import Misconfigured

MAX_TOKENS = 1_000_000
# Other writers of the format spell the fields otherwise.
ALIASES = {"input_tokens": "input_length", "output_tokens": "output_length", "created_time": "timestamp"}
# Fields that make a row mean something else: a turn of a conversation that waits for the one before.
REFUSED = ("session_id", "delay", "delay_ms")
KNOWN = {"timestamp", "input_length", "output_length", "hash_ids", "type"}


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request `at_s` seconds after the first. Equal leading `blocks` are equal leading prompt blocks; none: a prompt of its own."""

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def read_mooncake(path: Path) -> tuple[Arrival, ...]:
    """The arrivals of `FILE.jsonl` or `.jsonl.gz` by time. Raises Misconfigured, naming the line and what is wrong with it."""
    if not path.is_file():
        raise Misconfigured(f"trace: {path} - no such file")
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            found = [_arrival(f"trace: {path}, line {number}", text) for number, text in enumerate(file, 1) if text.strip()]
    except (EOFError, zlib.error, OSError) as error:
        raise Misconfigured(f"trace: {path} - cannot be read ({error})") from error
    if not found:
        raise Misconfigured(f"trace: {path} - empty")
    first = min(arrival.at_s for arrival in found)
    moved = [Arrival(a.at_s - first, a.input_tokens, a.output_tokens, a.blocks) for a in found]
    return tuple(sorted(moved, key=lambda arrival: arrival.at_s))


def _arrival(where: str, text: bytes) -> Arrival:
    try:
        given: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Misconfigured(f"{where}: not a JSON object ({error})") from error
    row = {ALIASES.get(name, name): value for name, value in given.items()}
    if refused := [name for name in REFUSED if row.get(name) is not None]:
        raise Misconfigured(
            f"{where}: {refused[0]} - turns that wait for each other cannot be sent yet; known fields: {', '.join(sorted(KNOWN))}"
        )
    if missing := [name for name in ("timestamp", "input_length", "output_length") if name not in row]:
        raise Misconfigured(
            f"{where}: {missing[0]} - missing; is this a Mooncake trace (timestamp in ms, input_length, output_length, hash_ids)?"
        )
    at, tokens, output, blocks = row["timestamp"], row["input_length"], row["output_length"], row.get("hash_ids") or []
    if not isinstance(at, int | float) or isinstance(at, bool) or not 0 <= at < 1e15:
        raise Misconfigured(f"{where}: timestamp {at} - must be milliseconds")
    for name, value in (("input_length", tokens), ("output_length", output)):
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_TOKENS:
            raise Misconfigured(f"{where}: {name} {value} - must be a whole number within 1 and {MAX_TOKENS}")
    if not isinstance(blocks, list) or not all(isinstance(block, int) for block in blocks):
        raise Misconfigured(f"{where}: hash_ids - must be a list of whole numbers")
    return Arrival(at / 1e3, tokens, output, tuple(blocks))
