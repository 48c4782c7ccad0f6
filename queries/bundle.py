"""A bundle: one DuckDB file with a slice of every table, and a manifest of what made it. It opens like any store."""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa

from poascope.errors import Misconfigured, PoascopeError
from queries.render import csv_chunks
from store import Store

TABLES = ("requests", "signals", "workers", "kv_events", "metric_samples", "histogram_samples", "decisions", "gaps")
Source = Callable[[str], AbstractContextManager[pa.RecordBatchReader]]


def write_bundle(out: Path, source: Source, about: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Copy what `source` gives for each table into `out`; the file appears only when it is whole.

    The manifest has `about`, and for each table its rows and the SHA-256 of `poascope query TABLE --store OUT`, so anyone can check it.
    """
    if out.exists():
        raise Misconfigured(f"out: {out} - exists; name another file, or remove it")
    part = out.with_name(out.name + ".part")
    part.unlink(missing_ok=True)
    tables: dict[str, dict[str, object]] = {}
    try:
        with Store.open(part) as store:
            for name in TABLES:
                with source(name) as reader:
                    tables[name] = _copy(store, name, reader)
            manifest = {**about, "tables": tables}
            with store.cursor() as cursor:
                cursor.execute("CREATE TABLE manifest (key VARCHAR PRIMARY KEY, value VARCHAR NOT NULL)")
            store.append("manifest", pa.table({"key": list(manifest), "value": [json.dumps(v, sort_keys=True) for v in manifest.values()]}))
        part.rename(out)
    except OSError as error:
        raise PoascopeError(f"out: {out} - cannot be written ({error})") from error
    finally:
        part.unlink(missing_ok=True)
        part.with_name(part.name + ".wal").unlink(missing_ok=True)
    return tables


def _copy(store: Store, name: str, reader: pa.RecordBatchReader) -> dict[str, object]:
    digest, rows = hashlib.sha256(), 0
    for i, batch in enumerate(reader):
        store.append(name, pa.Table.from_batches([batch]))
        rows += batch.num_rows
        for chunk in list(csv_chunks(batch.schema, [batch]))[1 if i else 0 :]:
            digest.update(chunk)
    if not rows:
        digest.update(next(csv_chunks(reader.schema, [])))
    return {"rows": rows, "sha256": digest.hexdigest()}
