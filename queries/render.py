"""Rows on their way out. In text u64 are decimal digits in full, times ISO-8601 with Z, NULL is nothing; equal rows give equal bytes."""

import csv
import io
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as types

_json = msgspec.json.Encoder()


def arrow_chunks(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """The Arrow IPC stream format, a chunk a batch."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            yield sink.getvalue()
            sink.seek(0)
            sink.truncate()
    yield sink.getvalue()


def csv_chunks(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """A header line, then a line a row; lists are JSON in one field."""
    yield _csv([schema.names])
    for batch in batches:
        columns = [[_field(value) for value in column] for column in _columns(batch)]
        yield _csv(zip(*columns, strict=True))


def json_chunks(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """`{"columns": [...], "rows": [[...], ...]}`; u64 as text, since a JSON number is a float to most readers."""
    yield b'{"columns":' + _json.encode(schema.names) + b',"rows":['
    first = True
    for batch in batches:
        rows = b",".join(_json.encode(row) for row in zip(*_columns(batch), strict=True))
        if rows:
            yield rows if first else b"," + rows
            first = False
    yield b"]}"


def _csv(rows: Iterable[Any]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def _field(value: Any) -> Any:
    return _json.encode(value).decode() if isinstance(value, list) else value


def _columns(batch: pa.RecordBatch) -> list[list[Any]]:
    return [_plain(column.type, column.to_pylist()) for column in batch.columns]


def _plain(kind: pa.DataType, values: list[Any]) -> list[Any]:
    if types.is_timestamp(kind):
        return [value if value is None else f"{value.isoformat(timespec='microseconds')}Z" for value in values]
    if kind == pa.uint64():
        return [value if value is None else str(value) for value in values]
    if types.is_floating(kind):
        return [value if value is None or isfinite(value) else _infinite(value) for value in values]
    if types.is_list(kind):
        return [value if value is None else _plain(kind.value_type, value) for value in values]
    return values


def _infinite(value: float) -> str:
    """As the Prometheus exposition format spells it: the last bound of every histogram."""
    return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"
