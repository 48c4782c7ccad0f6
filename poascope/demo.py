"""`poascope demo`: a real Dynamo on mockers, poascope watching it, and a load spike that passes the knee again and again."""

import os
import signal
import sys
import time
import uuid
import webbrowser
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Annotated

import httpx
import typer

from poascope.errors import PoascopeError
from poascope.run import Children, environment, interrupt, start
from poascope.settings import Settings, load
from poascope.verbs import verb

READY_TIMEOUT_S = 60.0


def demo(
    settings: Settings,
    dynamo: Annotated[str, typer.Option(help="Dynamo version: 0.9.0, 1.4.2 or 1.6.1.")] = "0.9.0",
    scenario: Annotated[str, typer.Option(help="Load scenario, repeated until Ctrl-C.")] = "spike",
    port_base: Annotated[int | None, typer.Option(help="Shift every port into the 200 that start here.")] = None,
    dir: Annotated[Path, typer.Option("--dir", help="State dir of the cluster, its logs and the store.")] = Path(".testbed"),
) -> None:
    """Real Dynamo without GPUs, a load spike, and the dashboard on it. Ctrl-C ends everything."""
    from app.tokens import Tokens
    from testbed.cluster import Cluster
    from testbed.keeper import Spec

    signal.signal(signal.SIGTERM, interrupt)
    typer.echo(f"demo: starting Dynamo {dynamo} on mockers in {dir} (the first time it is downloaded)")
    cluster = Cluster.up(dir, Spec(dynamo=dynamo, port_base=port_base), leashed=True, tell=lambda line: typer.echo(f"demo: {line}"))
    try:
        file = dir / "poascope.toml"
        ours = replace(
            load(file, env={}),
            store=str(dir.resolve() / "demo.duckdb"),
            dash_host=settings.dash_host,
            dash_token=settings.dash_token,
            operators_file=str(dir.resolve() / "operators.json"),
        )
        # A new one each time, and not made by the dashboard, which would leave it in its log.
        token = Tokens(ours.operators_path).add("demo", renew=True)
        if port_base is None:
            ours = replace(ours, api_port=settings.api_port, dash_port=settings.dash_port)
        else:
            ours = replace(ours, api_port=port_base + 60, dash_port=port_base + 50)
        with Children(environment(ours, file), logs=dir) as children:
            _watch(children, ours, token, scenario, dir)
    finally:
        typer.echo(f"demo: {cluster.down()}")


def _watch(children: Children, settings: Settings, token: str, scenario: str, dir: Path) -> None:
    url = f"http://{settings.dash_host}:{settings.dash_port}"
    _wait_until_up(children, f"{url}/_stcore/health")
    _arm(settings)
    typer.secho(f"demo: {url} - the dashboard; logs in {dir}; Ctrl-C ends everything", bold=True)
    typer.secho(f"demo: {token} - the operator token: sign in with it at {url}/control to send overrides", bold=True)
    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(url)
    for seed in count():  # other prompts each time: those of the last round are in the cache, and would not saturate again
        load_process = start(["testbed", "load", scenario, "--dir", str(dir), "--seed", str(seed)], {})
        try:
            while load_process.poll() is None:
                children.check(time.monotonic())
                time.sleep(0.5)
        finally:
            load_process.terminate()
            load_process.wait()
        if load_process.returncode == 2:
            raise PoascopeError(f"demo: {scenario} - the load did not start; its message is above")
        time.sleep(2)


def _arm(settings: Settings) -> None:
    """A demonstration acts; a deployment of one's own is only watched until an operator arms it."""
    from controller.bus import Bus, call
    from controller.protocol import Arming

    deployment = settings.gateway_namespace

    async def arm(bus: Bus) -> None:
        seen, key = (await bus.arming(deployment)).revision, uuid.uuid4().hex
        who = settings.operator_name
        arming = Arming(armed=True, reason="poascope demo", operator=who, idempotency_key=key, expected_revision=seen)
        await bus.put_arming(deployment, arming, time.time())

    call(settings.nats, arm)
    typer.echo(f"demo: {deployment} is armed - the controller acts by itself; poascope intent disarm ends that")


def _wait_until_up(children: Children, url: str) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        children.check(time.monotonic())
        try:
            if httpx.get(url, timeout=1).status_code == 200:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.2)
    raise PoascopeError(f"demo: {url} - does not answer after {READY_TIMEOUT_S:.0f} s; see the logs")


def register(cli: typer.Typer) -> None:
    """Add this module's verb to the command line."""
    cli.command("demo")(verb("api_port", "dash_host", "dash_port", "dash_token")(demo))
