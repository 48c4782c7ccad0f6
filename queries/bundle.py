"""A bundle: one DuckDB file with a slice of every table, and a manifest of what made it. It opens like any store, and proves itself."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from poascope.errors import Misconfigured, PoascopeError
from queries import named
from queries.render import csv_chunks
from store import Store, rollups

TABLES = (
    "requests", "signals", "workers", "kv_events", "metric_samples", "histogram_samples", "decisions", "gaps",
    "games", "game_loads", "alarms", "incidents",
)  # fmt: skip
# Where the query of that name shows something else than the table holds.
GIVEN: Mapping[str, Mapping[str, str]] = {"game_loads": {"step_s": "5"}}
RENAMED = {"inflight": "load"}
Source = Callable[[str], AbstractContextManager[pa.RecordBatchReader]]
Change = Callable[[str, pa.RecordBatch], pa.RecordBatch]


def write_bundle(out: Path, source: Source, about: Mapping[str, object], change: Change | None = None) -> dict[str, dict[str, object]]:
    """Copy what `source` gives for each table into `out`; the file appears only when it is whole. `change`: what is done to each batch.

    The manifest has `about`, and for each table its rows and a SHA-256 (that of `poascope query TABLE --store OUT` wherever this prints the
    table), so anyone can check it; and one of itself. Raises PoascopeError: nothing to show in it, or it cannot be written.
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
                    _copy(store, name, reader, change)
                tables[name] = _digest(store, name)
            if not any(about["rows"] for about in tables.values()):
                raise PoascopeError(f"bundle: {out} - not one row in that span, so there would be nothing to show")
            for name in rollups.TABLES:
                tables[name] = _digest(store, name)
            manifest = {key: json.dumps(value, sort_keys=True) for key, value in {**about, "tables": tables}.items()}
            manifest["sha256"] = json.dumps(_own(manifest))
            with store.cursor() as cursor:
                cursor.execute("CREATE TABLE manifest (key VARCHAR PRIMARY KEY, value VARCHAR NOT NULL)")
            store.append("manifest", pa.table({"key": list(manifest), "value": list(manifest.values())}))
        part.rename(out)
    except OSError as error:
        raise PoascopeError(f"out: {out} - cannot be written ({error})") from error
    finally:
        part.unlink(missing_ok=True)
        part.with_name(part.name + ".wal").unlink(missing_ok=True)
    return tables


def _copy(store: Store, name: str, reader: pa.RecordBatchReader, change: Change | None) -> None:
    with store.cursor() as cursor:
        columns = {row[0] for row in cursor.execute(f"DESCRIBE {name}").fetchall()}
    for batch in reader:
        table = pa.Table.from_batches([change(name, batch) if change else batch])
        if name == "game_loads":
            table = table.rename_columns([RENAMED.get(column, column) for column in table.column_names])
        if name == "incidents":  # what was found by the regime alone is found again
            table = table.filter(pc.is_valid(table.column("marked_at")))
        store.append(name, table.select([column for column in table.column_names if column in columns]))


def _digest(store: Store, name: str, columns: Sequence[str] = ()) -> dict[str, object]:
    """Rows, columns and SHA-256 of the table as CSV, in the order of the query of its name, where that shows the table as it is."""
    digest, rows = hashlib.sha256(), 0
    with store.cursor() as cursor:
        if name in TABLES and name not in ("incidents", *GIVEN):
            reader = named.read(cursor, name, {})
        else:
            reader = cursor.sql(f"SELECT * FROM {name} ORDER BY ALL").to_arrow_reader(named.BATCH_ROWS)
        chosen = list(columns) or reader.schema.names
        digest.update(next(csv_chunks(pa.schema([reader.schema.field(column) for column in chosen]), [])))
        for batch in reader:
            rows += batch.num_rows
            for chunk in list(csv_chunks(batch.select(chosen).schema, [batch.select(chosen)]))[1:]:
                digest.update(chunk)
    return {"rows": rows, "columns": chosen, "sha256": digest.hexdigest()}


def _own(manifest: Mapping[str, str]) -> str:
    said = "\n".join(f"{key}={manifest[key]}" for key in sorted(manifest) if key != "sha256")
    return hashlib.sha256(said.encode()).hexdigest()


def read_manifest(store: Store) -> dict[str, Any]:
    """What the bundle says of itself; empty for a store that is none."""
    with store.cursor() as cursor:
        if not cursor.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'manifest'").fetchall():
            return {}
        return {key: json.loads(value) for key, value in cursor.execute("SELECT key, value FROM manifest").fetchall()}


def check(store: Store, path: Path) -> dict[str, Any]:
    """The manifest, every table being as it was written; empty for a store without one. Raises PoascopeError naming what is not."""
    try:
        manifest = read_manifest(store)
        if not manifest:
            return {}
        if manifest.get("sha256") != _own({key: json.dumps(value, sort_keys=True) for key, value in manifest.items()}):
            raise PoascopeError(f"bundle: {path} - its manifest was changed after it was written; ask for the file again")
        for name, about in dict(manifest["tables"]).items():
            if name not in (*TABLES, *rollups.TABLES):  # never a name of the file's own choosing in SQL
                raise PoascopeError(f"bundle: {path} - {name[:60]!r} in its manifest is no table of ours; ask for the file again")
            found = _digest(store, name, about["columns"])
            if found != about:
                raise PoascopeError(
                    f"bundle: {path} - {name} is not what was exported ({found['rows']} rows, {about['rows']} in the manifest; "
                    "the checksum differs); the file was edited or damaged, ask for it again"
                )
    except (duckdb.Error, KeyError, TypeError, ValueError) as error:
        raise PoascopeError(f"bundle: {path} - damaged ({str(error).splitlines()[0]}); ask for the file again") from error
    return manifest


def open_bundle(path: Path) -> tuple[Store, dict[str, Any]]:
    """A bundle (or any closed store) to read, and its manifest once all of it is checked. An older one is brought up to date in a copy.

    Raises PoascopeError: no such file, in use, truncated, edited, or from a newer poascope.
    """
    if not path.is_file():
        raise PoascopeError(f"bundle: {path} - no such file; `poascope export` makes one")
    try:
        store = Store.open(path, read_only=True)
    except duckdb.Error as error:
        raise PoascopeError(f"bundle: {path} - damaged ({str(error).splitlines()[0]}); ask for the file again") from error
    except PoascopeError as error:
        if " lacks " not in str(error):
            raise
        folder = Path(tempfile.mkdtemp(prefix="poascope-"))
        try:
            copy = folder / path.name
            shutil.copyfile(path, copy)
            Store.open(copy).close()
            store = Store.open(copy, read_only=True)
        finally:
            # The open file lives on without its name.
            shutil.rmtree(folder, ignore_errors=True)
    try:
        return store, check(store, path)
    except Exception:
        store.close()
        raise
