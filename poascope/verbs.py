"""A verb of the command line: settings in, exit code out. Flags are made from the settings table."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from poascope.errors import Misconfigured, PoascopeError
from poascope.settings import Settings, load

TESTBED = ("aiohttp", "tokenizers", "uv")  # what the extra of that name brings


def complain(error: PoascopeError) -> int:
    """Print the error where a person looks, and return its exit code."""
    typer.secho(f"poascope: {error}", err=True, fg=None if not sys.stderr.isatty() else "red")
    return error.exit_code


def _option(name: str, described: Field[Any]) -> inspect.Parameter:
    kind = {int: int | None, float: float | None}.get(described.type, str | None)  # type: ignore[arg-type]
    names = [f"--{name.replace('_', '-')}", *filter(None, [described.metadata["flag"]])]
    option = typer.Option(*names, help=described.metadata["help"], rich_help_panel="Settings")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def group(cli: typer.Typer, name: str, help: str) -> typer.Typer:
    """The sub-commands `poascope NAME ...`: the group of that name, made by whoever asks for it first."""
    for known in cli.registered_groups:
        if known.name == name and known.typer_instance:
            return known.typer_instance
    made = typer.Typer(help=help, no_args_is_help=True)
    cli.add_typer(made, name=name)
    return made


def verb(*flags: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Wrap `run(settings, **own)` as a Typer command with --config and one flag for each named setting.

    A `run` that has a parameter `config` gets the path as well.
    """

    def wrap(run: Callable[..., None]) -> Callable[..., None]:
        known = {f.name: f for f in fields(Settings)}
        own = [p for p in list(inspect.signature(run).parameters.values())[1:] if p.name != "config"]
        wants_config = "config" in inspect.signature(run).parameters
        added = [_option(name, known[name]) for name in flags]
        config = inspect.Parameter(
            "config",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                Path | None,
                typer.Option("--config", help="Settings file (default: ./poascope.toml).", rich_help_panel="Settings"),
            ],
        )

        def command(**given: Any) -> None:
            chosen = {name: given.pop(name) for name in flags}
            path = given["config"] if wants_config else given.pop("config")
            try:
                run(load(path, flags=chosen), **given)
            except PoascopeError as error:
                raise typer.Exit(complain(error)) from error
            except KeyboardInterrupt:
                raise typer.Exit(130) from None
            except ModuleNotFoundError as error:
                if error.name not in TESTBED:
                    raise
                missing = Misconfigured(f"testbed: {error.name} - not installed; it comes with `pip install 'poascope[testbed]'`")
                raise typer.Exit(complain(missing)) from error

        keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        command.__name__, command.__doc__ = run.__name__, run.__doc__
        command.__signature__ = inspect.Signature([*keyword, *added, config])  # type: ignore[attr-defined]
        return command

    return wrap
