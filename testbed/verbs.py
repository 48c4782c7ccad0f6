import typer


def register(cli: typer.Typer) -> None:
    """Add this package's verbs to the command line."""
