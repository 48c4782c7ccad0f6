"""`poascope testbed up|down|kill|start|load`."""

from pathlib import Path
from typing import Annotated

import typer

from poascope.settings import Settings
from poascope.verbs import verb

Dir = Annotated[Path, typer.Option("--dir", help="State dir: logs, discovery, access log, poascope.toml.")]
DEFAULT_DIR = Path(".testbed")


def up(
    settings: Settings,
    dynamo: Annotated[str, typer.Option(help="Dynamo version: 0.9.0, 1.4.2 or 1.6.1.")] = "0.9.0",
    topology: Annotated[str, typer.Option(help="Workers: nP/mD, or nA for aggregated ones.")] = "1P/2D",
    timing: Annotated[str, typer.Option(help="Mocker: prefill base ms / ms per token / ITL ms.")] = "5/0.39/20",
    namespace: Annotated[str, typer.Option(help="Dynamo namespace.")] = "dynamo",
    port_base: Annotated[int | None, typer.Option(help="Shift every port into the 200 that start here.")] = None,
    dir: Dir = DEFAULT_DIR,
    detach: Annotated[bool, typer.Option("--detach", help="Return when all is ready; end it with `testbed down`.")] = False,
) -> None:
    """Start a real Dynamo on mockers: NATS, workers, three frontends, a gateway. Ctrl-C ends everything."""
    from testbed import console
    from testbed.cluster import Cluster
    from testbed.keeper import Keeper, Spec
    from testbed.topology import parse_timing, parse_topology, plan_ports

    plan_ports(port_base, len(parse_topology(topology).workers))
    spec = Spec(dynamo=dynamo, topology=topology, timing=parse_timing(timing), namespace=namespace, port_base=port_base)
    if detach:
        console.ready(Cluster.up(dir, spec, tell=console.tell).state, dir, detached=True)
    else:
        Keeper(dir, spec, console.tell).run(lambda state: console.ready(state, dir, detached=False))


def down(settings: Settings, dir: Dir = DEFAULT_DIR) -> None:
    """End the testbed in that state dir, whatever is left of it."""
    from testbed.cluster import Cluster

    typer.echo(Cluster(dir).down())


def kill(settings: Settings, name: Annotated[str, typer.Argument(help="As in the table, e.g. decode-1.")], dir: Dir = DEFAULT_DIR) -> None:
    """Kill one process of the testbed with SIGKILL, as a fault would."""
    from testbed.cluster import Cluster

    typer.echo(f"killed {name} (pid {Cluster(dir).kill(name)})")


def start(settings: Settings, name: Annotated[str, typer.Argument(help="As in the table, e.g. decode-1.")], dir: Dir = DEFAULT_DIR) -> None:
    """Start one process of the testbed that ended, and wait until it serves."""
    from testbed.cluster import Cluster

    typer.echo(f"started {name} (pid {Cluster(dir).start(name)})")


def register(cli: typer.Typer) -> None:
    """Add this package's verbs to the command line."""
    testbed = typer.Typer(name="testbed", no_args_is_help=True, help="A real Dynamo cluster without GPUs, and load for it.")
    for run in (up, down, kill, start):
        testbed.command()(verb()(run))
    cli.add_typer(testbed)
