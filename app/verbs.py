"""`poascope dash`."""

import typer

from poascope.settings import Settings
from poascope.verbs import verb


@verb("dash_host", "dash_port", "dash_token", "api_host", "api_port", "api_token", "nats_url", "slo_ttft_s", "slo_itl_s", "operator")
def dash(settings: Settings) -> None:
    """Serve the dashboard. It reads the collector at api_host:api_port and writes overrides to NATS."""
    from app.server import serve

    serve(settings, lambda: typer.echo(f"dashboard: http://{settings.dash_host}:{settings.dash_port}"))


def register(cli: typer.Typer) -> None:
    """Add this package's verbs to the command line."""
    cli.command("dash")(dash)
