"""What the testbed's verbs print."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from testbed.state import State
from testbed.topology import REGIMES


def tell(line: str) -> None:
    Console(stderr=True, highlight=False).print(f"· {line}", markup=False)


def ready(state: State, folder: Path, *, detached: bool) -> None:
    """A table of what runs where, and how to watch it."""
    parameters = {f"frontend-{name}": f"τ {tau:g} ω {omega:g}" for name, tau, omega in REGIMES}
    table = Table(title=f"Dynamo {state.dynamo}, {state.topology}, namespace {state.namespace}", title_justify="left")
    for column in ("process", "pid", "where", "what"):
        table.add_column(column)
    for process in state.processes:
        if process.worker_id:
            what = f"worker {process.worker_id}"
        elif process.role == "gateway":
            what = f"new requests to {REGIMES[0][0]}; admin {state.admin_url}"
        else:
            what = parameters.get(process.name, "JetStream")
        table.add_row(process.name, str(process.pid), process.base_url, what)
    console = Console(highlight=False)
    console.print(table)
    lines = [f"model    {state.model}", f"watch    poascope up --config {folder / 'poascope.toml'}"]
    place = "" if folder == Path(".testbed") else f" --dir {folder}"
    lines += [f"load     poascope testbed load spike{place}", f"stop     {f'poascope testbed down{place}' if detached else 'Ctrl-C'}"]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
