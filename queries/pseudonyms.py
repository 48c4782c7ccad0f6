"""Names and ids that tell nothing, the same for the same within one bundle: a keyed hash whose key nobody keeps.

Ids of workers stay u64 in each of their spellings, names stay text. What people wrote (why, notes) is left out: no rule finds names in it.
"""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

_ID = re.compile(r"\d{12,20}")
_HEX = re.compile(r"[0-9a-f]{16}")
# Labels that say what was measured, not on whom.
_PLAIN = {"le", "quantile", "status", "request_type", "method", "error_type", "token_type", "type", "dp_rank", "reason", "operation"}
_IDS = {
    "requests": ("prefill_worker", "decode_worker"),
    "workers": ("worker_id",),
    "game_loads": ("worker_id",),
    "kv_events": ("worker_id", "parent_hash", "block_hashes"),
}
_NAMES = {"requests": ("request_id", "model"), "decisions": ("actor", "replica"), "incidents": ("author",)}
_LEFT_OUT = {"decisions": ("why", "error"), "incidents": ("notes",), "alarms": ("why",)}


class Pseudonyms:
    """`rows(table, batch)` is the batch without a name of its origin; equal keys give equal pseudonyms."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def id(self, value: int) -> int:
        digest = hashlib.blake2b(value.to_bytes(8, "big"), key=self._key, digest_size=8).digest()
        return int.from_bytes(digest, "big")

    def name(self, value: str) -> str:
        return "x" + hashlib.blake2b(value.encode(), key=self._key, digest_size=6).hexdigest()

    def rows(self, table: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        changes: dict[str, Callable[[Any], Any]] = {"deployment": self.name}
        changes |= dict.fromkeys(_IDS.get(table, ()), self._ids) | dict.fromkeys(_NAMES.get(table, ()), self.name)
        changes |= dict.fromkeys(_LEFT_OUT.get(table, ()), lambda _: None)
        if table in ("metric_samples", "histogram_samples"):
            changes |= {"target": self.name, "labels": self._labels}
        elif table == "gaps":
            changes["source"] = self._source
        elif table == "incidents":
            changes["title"] = lambda _: "incident"
        elif table in ("signals", "games"):
            changes["quality"] = lambda said: [_ID.sub(self._digits, text) for text in said]
            changes |= {"sentence": self._text, "coupling": lambda said: [self._text(text) for text in said]} if table == "games" else {}
        for index, field in enumerate(batch.schema):
            change = changes.get(field.name)
            if change:
                values = [value if value is None else change(value) for value in batch.column(index).to_pylist()]
                batch = batch.set_column(index, field, pa.array(values, field.type))
        return batch

    def _ids(self, value: Any) -> Any:
        return [self.id(one) for one in value] if isinstance(value, list) else self.id(value)

    def _digits(self, found: re.Match[str]) -> str:
        return str(self.id(int(found[0]))) if int(found[0]) < 2**64 else self.name(found[0])

    def _text(self, text: str) -> str:
        return _ID.sub(self._digits, text)

    def _source(self, source: str) -> str:
        kind, colon, rest = source.partition(":")
        return f"{kind}:{self.name(rest)}" if colon else self._text(source)

    def _labels(self, labels: str) -> str:
        return json.dumps({key: self._label(key, value) for key, value in json.loads(labels).items()}, sort_keys=True)

    def _label(self, key: str, value: str) -> str:
        if key in _PLAIN or not value:
            return value
        if _ID.fullmatch(value):
            return self._text(value)
        if _HEX.fullmatch(value):  # the same worker in the spelling of dynamo_component_*
            return f"{self.id(int(value, 16)):016x}"
        return self.name(value)
