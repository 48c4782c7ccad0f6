"""`poascope dash` and `report`, and `poascope operator add|list|remove`."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from poascope.addresses import without_password
from poascope.errors import Misconfigured, PoascopeError
from poascope.settings import Settings
from poascope.verbs import verb
from queries.verbs import StoreFile, Url

Name = Annotated[str, typer.Argument(help="Who it is: the name under which intents stand in the audit trail.")]


@verb(
    "dash_host",
    "dash_port",
    "dash_token",
    "api_host",
    "api_port",
    "api_token",
    "nats_url",
    "nats_credentials",
    "slo_ttft_s",
    "slo_itl_s",
    "operator",
    "operators_file",
)
def dash(
    settings: Settings,
    file: Annotated[
        Path | None, typer.Argument(help="A bundle (or a closed store) to replay: no collector, no NATS, nothing live.", show_default=False)
    ] = None,
) -> None:
    """Serve the dashboard. It reads the collector at api_host:api_port and writes overrides to NATS; or it shows a file, and only that."""
    from app.file import File
    from app.server import serve

    shown = File(file) if file else None
    first = None if shown else first_token(settings)

    def listening() -> None:
        typer.echo(f"dashboard: http://{settings.dash_host}:{settings.dash_port}")
        if shown:
            typer.echo(shown.said)
        if first:
            typer.echo(f"operator token, shown this once: {first}\nit signs you in to send overrides; `poascope operator add` makes others")

    serve(settings, listening, shown)


def first_token(settings: Settings) -> str | None:
    """A token for whoever starts the first dashboard here; None where operators were told before."""
    from app.tokens import NAME, Tokens

    tokens = Tokens(settings.operators_path)
    if settings.oidc_url or tokens.path.exists():
        return None
    return tokens.add(settings.operator_name if NAME.fullmatch(settings.operator_name) else "operator")


def add(
    settings: Settings, name: Name, renew: Annotated[bool, typer.Option("--renew", help="Another in place of the one they have.")] = False
) -> None:
    """Make a token by which NAME signs in to the dashboard and sends overrides. It is shown this once."""
    from app.tokens import Tokens

    typer.echo(Tokens(settings.operators_path).add(name, renew=renew))


def list_(settings: Settings, json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Who has a token, and since when."""
    import msgspec

    from app.tokens import Tokens

    records = Tokens(settings.operators_path).records()
    known = [{"name": name, "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(one.made_at))} for name, one in records.items()]
    for line in [msgspec.json.encode(known).decode()] if json else [f"{one['made_at']}  {one['name']}" for one in known]:
        typer.echo(line)


def remove(settings: Settings, name: Name) -> None:
    """Take the token of NAME away; whoever is signed in by it is not any more."""
    from app.tokens import Tokens

    Tokens(settings.operators_path).remove(name)


def report(
    settings: Settings,
    out: Annotated[Path, typer.Option("--out", help="The HTML file to write.", show_default=False)],
    store: StoreFile = None,
    url: Url = None,
    from_: Annotated[str | None, typer.Option("--from", help="ISO-8601 (UTC) or Unix seconds; default: the beginning.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="ISO-8601 (UTC) or Unix seconds; default: the end.")] = None,
    deployment: Annotated[str | None, typer.Option("--deployment", help="Default: the only one.")] = None,
) -> None:
    """Write a report of a span of time: one HTML file with the charts, decisions, gaps and slowest requests, that opens offline."""
    from app.report import render
    from app.reporting import tell
    from queries.verbs import one_of, source

    one_of(store, url)
    if out.exists():
        raise Misconfigured(f"out: {out} - exists; name another file, or remove it")
    with source(settings, store, url) as rows:
        told = tell(rows, settings, deployment, from_, to, without_password(str(url or store)))
    part = out.with_name(f"{out.name}.part")  # half a report is none: the file appears when it is whole
    try:
        size = part.write_bytes(render(told))
        part.rename(out)
    except OSError as error:
        raise PoascopeError(f"out: {out} - cannot be written ({error.strerror})") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    typer.echo(f"{out}: {size / 1e6:.1f} MB")


def register(cli: typer.Typer) -> None:
    """Add this package's verbs to the command line."""
    cli.command("dash")(dash)
    cli.command("report")(verb("api_token", "slo_ttft_s", "slo_itl_s")(report))
    operator = typer.Typer(name="operator", no_args_is_help=True, help="Who may send overrides from the dashboard.")
    for name, run in (("add", add), ("list", list_), ("remove", remove)):
        operator.command(name)(verb("operators_file")(run))
    cli.add_typer(operator)
