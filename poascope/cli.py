"""`poascope VERB`: each package brings its verbs, this module only gathers them."""

import sys

import typer

import app.verbs
import collectors.verbs
import controller.verbs
import queries.verbs
import queries.whatif.verbs
import testbed.verbs
from poascope import __version__, demo, run
from poascope.errors import PoascopeError
from poascope.verbs import complain

cli = typer.Typer(
    name="poascope",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@cli.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Live price of anarchy, TTFT, ITL and regimes of disaggregated LLM inference on NVIDIA Dynamo."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


for package in (collectors, controller, app, queries, testbed):
    package.verbs.register(cli)
queries.whatif.verbs.register(cli)
run.register(cli)
demo.register(cli)


def main() -> None:
    try:
        cli()
    except PoascopeError as error:
        sys.exit(complain(error))
