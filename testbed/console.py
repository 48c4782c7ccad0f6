"""What the testbed's verbs print."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from poascope.errors import PoascopeError
from testbed import report
from testbed.scenario import Scenario
from testbed.state import State
from testbed.topology import REGIMES

if TYPE_CHECKING:
    from testbed.load import Load


def tell(line: str) -> None:
    Console(stderr=True, highlight=False).print(f"· {line}", markup=False)


def ready(state: State, folder: Path, *, detached: bool) -> None:
    """A table of what runs where, and how to watch it."""
    parameters = {f"frontend-{name}": f"τ {tau:g} ω {omega:g}" for name, tau, omega in REGIMES}
    parameters |= {"nats": "JetStream", "frontend": "round-robin to the routers"}
    routers = any(process.role == "router" for process in state.processes)
    table = Table(title=f"Dynamo {state.dynamo}, {state.topology}, namespace {state.namespace}", title_justify="left")
    for column in ("process", "pid", "where", "what"):
        table.add_column(column)
    for process in state.processes:
        if process.role == "router":
            what = "τ and ω from the controller"
        elif process.worker_id:
            what = f"worker {process.worker_id}"
        elif process.role == "gateway":
            what = f"new requests to {'frontend' if routers else REGIMES[0][0]}; admin {state.admin_url}"
        else:
            what = parameters.get(process.name, "")
        table.add_row(process.name, str(process.pid), process.base_url, what)
    console = Console(highlight=False)
    console.print(table)
    lines = [f"model    {state.model}", f"watch    poascope up --config {folder / 'poascope.toml'}"]
    place = "" if folder == Path(".testbed") else f" --dir {folder}"
    lines += [f"load     poascope testbed load spike{place}", f"stop     {f'poascope testbed down{place}' if detached else 'Ctrl-C'}"]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


@contextlib.contextmanager
def opened(path: Path | None) -> Iterator[BinaryIO | None]:
    """The file to write to, if there is one. Raises PoascopeError where it cannot be written."""
    if path is None:
        yield None
        return
    try:
        file = path.open("wb")
    except OSError as error:
        raise PoascopeError(f"out: {path} - {error.strerror}") from error
    with file:
        yield file


@contextlib.contextmanager
def progress(scenario: Scenario, *, quiet: bool) -> Iterator[Callable[["Load"], None]]:
    """A bar on stderr over the scenario's time, with what is under way."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeRemainingColumn())
    # Redrawn by the load's own ticks: a refreshing thread would take time from the clock that is being read.
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, disable=quiet) as bar:
        task = bar.add_task(scenario.name, total=scenario.seconds, now="")
        began = time.monotonic()

        def tell(load: "Load") -> None:
            tally = load.tally
            failed = tally.errors.total()
            now = f"phase {load.phase + 1}/{len(load.tallies)} {tally.phase}  in flight {load.in_flight}  finished {tally.finished}"
            bar.update(task, completed=time.monotonic() - began, now=now + (f"  failed {failed}" if failed else ""), refresh=True)

        yield tell


def load_summary(scenario: Scenario, tallies: Sequence[report.Tally], *, as_json: bool) -> None:
    if as_json:
        Console(highlight=False).print(
            json.dumps({"scenario": scenario.name, "phases": report.as_data(tallies)}), markup=False, soft_wrap=True
        )
        return
    Console(highlight=False).print(report.table(f"{scenario.name}, as the client saw it", tallies))
    for line in report.error_lines(tallies):
        Console(highlight=False).print(line, markup=False, soft_wrap=True)
