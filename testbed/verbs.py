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
    actuator: Annotated[
        str, typer.Option(help="gateway: a frontend for each regime behind Caddy. router: one frontend, two routers that take any τ and ω.")
    ] = "gateway",
    nats: Annotated[str, typer.Option("--nats", help="A NATS server that runs already; default: one of the testbed's own.")] = "",
    dir: Dir = DEFAULT_DIR,
    detach: Annotated[bool, typer.Option("--detach", help="Return when all is ready; end it with `testbed down`.")] = False,
) -> None:
    """Start a real Dynamo on mockers: NATS, workers, frontends, an actuator. Ctrl-C ends everything."""
    from testbed import console
    from testbed.cluster import Cluster
    from testbed.keeper import Keeper, Spec
    from testbed.topology import parse_timing, parse_topology, plan_ports

    plan_ports(port_base, len(parse_topology(topology).workers), actuator)
    spec = Spec(
        dynamo=dynamo,
        topology=topology,
        timing=parse_timing(timing),
        namespace=namespace,
        port_base=port_base,
        nats_url=nats,
        actuator=actuator,
    )
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


def load(
    settings: Settings,
    scenario: Annotated[str, typer.Argument(help="steady, ramp, spike, spike-long, FILE.toml[:NAME], or a Mooncake trace FILE.jsonl.")],
    dir: Dir = DEFAULT_DIR,
    url: Annotated[str | None, typer.Option(help="Where to send; default: the gateway of the testbed in --dir.")] = None,
    users: Annotated[int | None, typer.Option(help="One closed loop of that many users instead of the phases.")] = None,
    rate: Annotated[float | None, typer.Option(help="One open loop of that many requests a second instead of the phases.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Length of the whole, phases in proportion.")] = None,
    input_tokens: Annotated[int, typer.Option(min=16, max=8000, help="Tokens of a prompt, chat template included.")] = 128,
    output_tokens: Annotated[int, typer.Option(min=1, max=8000, help="Tokens of an answer.")] = 256,
    templates: Annotated[int, typer.Option(min=1, max=10_000, help="Different shared prefixes.")] = 5,
    shared: Annotated[float, typer.Option(min=0, max=1, help="Share of a prompt that is its template's prefix.")] = 0.1,
    trace_block: Annotated[int, typer.Option(min=1, max=65_536, help="Tokens that one hash id of a Mooncake trace stands for.")] = 512,
    seed: Annotated[int, typer.Option(help="Same seed, same prompts and arrivals.")] = 7,
    out: Annotated[Path | None, typer.Option(help="Write one JSON line for each request.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Send load, and say what the client measured: TTFT, ITL and E2E quantiles by phase, and every failure."""
    import asyncio

    from testbed import console
    from testbed.cluster import Cluster
    from testbed.load import Load, discover
    from testbed.prompts import Shape
    from testbed.scenario import choose

    chosen = choose(scenario, users=users, rate=rate, seconds=seconds)
    base_url = (url or Cluster(dir).state.gateway_url).rstrip("/")
    model, overhead = asyncio.run(discover(base_url))
    shape = Shape(max(1, input_tokens - overhead), output_tokens, templates, shared, seed)
    with console.progress(chosen, quiet=json) as tell, console.opened(out) as file:
        run = Load(base_url, model, chosen, shape, seed, file, tell, overhead=overhead, block_tokens=trace_block)
        interrupted = False
        try:
            asyncio.run(run.run())
        except KeyboardInterrupt:
            interrupted = True
    console.load_summary(chosen, run.tallies, as_json=json)
    if interrupted:
        raise KeyboardInterrupt


def register(cli: typer.Typer) -> None:
    """Add this package's verbs to the command line."""
    testbed = typer.Typer(name="testbed", no_args_is_help=True, help="A real Dynamo cluster without GPUs, and load for it.")
    for run in (up, down, kill, start, load):
        testbed.command()(verb()(run))
    cli.add_typer(testbed)
