"""`query` and `export`: a closed file is opened, a running collector is asked over HTTP."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poascope.addresses import without_password
from poascope.errors import Misconfigured
from poascope.settings import Settings
from poascope.verbs import verb

if TYPE_CHECKING:
    import pyarrow as pa

Rows = Callable[[str, Mapping[str, str]], "AbstractContextManager[pa.RecordBatchReader]"]
StoreFile = Annotated[str | None, typer.Option("--store", help="A store that no process has open, or a bundle.")]
Url = Annotated[str | None, typer.Option("--url", help="A running collector, as http://127.0.0.1:8600.")]


def register(cli: typer.Typer) -> None:
    """Add this package's verbs to the command line."""
    cli.command("query")(verb("api_token")(query))
    cli.command("export")(verb("api_token")(export))


def query(
    settings: Settings,
    name: Annotated[str, typer.Argument(help="A file in queries/sql: signals, requests, deployments, gaps, ...", show_default=False)],
    store: StoreFile = None,
    url: Url = None,
    param: Annotated[list[str] | None, typer.Option("--param", help="k=v; may be given again.")] = None,
    format: Annotated[str, typer.Option("--format", help="csv or json.")] = "csv",
) -> None:
    """Print the rows of a named query; u64 in full, times in UTC, equal stores give equal bytes."""
    one_of(store, url)
    if format not in ("csv", "json"):
        raise Misconfigured(f"format: {format} - must be csv or json")
    given: dict[str, str] = {}
    for pair in param or ():
        key, equals, value = pair.partition("=")
        if not equals or key in given:
            raise Misconfigured(f"param: {pair} - " + ("given twice" if equals else "must be k=v"))
        given[key] = value
    out = sys.stdout.buffer
    if url:
        from queries.remote import ask

        with ask(url, settings.api_token, name, given, format) as response:
            for chunk in response.iter_bytes():
                out.write(chunk)
    elif store:
        from queries import named
        from queries.render import csv_chunks, json_chunks
        from store import Store

        with Store.open(store, read_only=True) as file, file.cursor() as cursor:
            rows = named.read(cursor, name, given)
            for chunk in (csv_chunks if format == "csv" else json_chunks)(rows.schema, rows):
                out.write(chunk)
    if format == "json":
        out.write(b"\n")
    out.flush()


def export(
    settings: Settings,
    out: Annotated[Path, typer.Option("--out", help="The bundle to write: one DuckDB file.", show_default=False)],
    store: StoreFile = None,
    url: Url = None,
    from_: Annotated[str | None, typer.Option("--from", help="ISO-8601 (UTC) or Unix seconds; default: the beginning.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="ISO-8601 (UTC) or Unix seconds; default: the end.")] = None,
    pseudonymise: Annotated[
        bool, typer.Option("--pseudonymise", help="Ids and names as a keyed hash, the same within the file; free text is left out.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows and checksums as JSON.")] = False,
) -> None:
    """Write a slice of every table, with a manifest of versions, settings and checksums, into one file: `poascope dash OUT` opens it."""
    import json
    import secrets

    from queries import named
    from queries.bundle import GIVEN, write_bundle
    from queries.pseudonyms import Pseudonyms

    one_of(store, url)
    span = {key: value for key, value in {"from": from_, "to": to}.items() if value is not None}
    bounds = named.bind(named.catalogue()["gaps"], span)
    if bounds["from"] and bounds["to"] and bounds["from"] >= bounds["to"]:
        raise Misconfigured(f"from, to: {from_} to {to} - must be one before the other")
    change = Pseudonyms(secrets.token_bytes(32)).rows if pseudonymise else None
    with source(settings, store, url) as rows:
        said = about(settings, span, str(url or store), pseudonymise)
        tables = write_bundle(out, lambda name: rows(name, {**span, **GIVEN.get(name, {})}), said, change)
    if as_json:
        typer.echo(json.dumps({"out": str(out), "tables": tables}))
    else:
        typer.echo(f"{out}: " + ", ".join(f"{table['rows']} {name}" for name, table in tables.items()))


def about(settings: Settings, span: Mapping[str, str], source: str, pseudonymise: bool) -> dict[str, object]:
    """What a bundle's manifest says beside its tables. Secrets are never in it, and names only where ids are as they are."""
    import platform
    from dataclasses import asdict, fields
    from datetime import UTC, datetime

    import duckdb

    from poascope import __version__
    from store.migrations import migrations

    said: dict[str, object] = {
        "poascope": __version__,
        "schema": migrations()[-1].name,
        "python": platform.python_version(),
        "duckdb": duckdb.__version__,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "span": dict(span),
        "pseudonymised": pseudonymise,
    }
    if pseudonymise:
        return said | {"settings": {name: value for name, value in asdict(settings).items() if isinstance(value, int | float)}}
    shown = {f.name: _shown(asdict(settings)[f.name]) for f in fields(settings) if not f.metadata["secret"]}
    return said | {"source": _shown(source), "settings": shown}


@contextmanager
def source(settings: Settings, store: str | None, url: str | None) -> Iterator[Rows]:
    """Named queries of a closed file or of a running collector: `rows(name, parameters)` is a context that gives their batches."""
    from queries import named, remote
    from store import Store

    if url:
        yield lambda name, given: remote.read(url, settings.api_token, name, given)
        return
    with Store.open(str(store), read_only=True) as file:

        @contextmanager
        def rows(name: str, given: Mapping[str, str]) -> "Iterator[pa.RecordBatchReader]":
            with file.cursor() as cursor:
                yield named.read(cursor, name, given)

        yield rows


def _shown(value: Any) -> Any:
    """A setting as others may see it: a bundle is made to be passed on."""
    if isinstance(value, str):
        return without_password(value)
    if isinstance(value, dict):
        return {key: _shown(inner) for key, inner in value.items()}
    return [_shown(inner) for inner in value] if isinstance(value, list | tuple) else value


def one_of(store: str | None, url: str | None) -> None:
    if (store is None) == (url is None):
        raise Misconfigured("source: give --store FILE (closed) or --url URL (a running collector), one of the two")
