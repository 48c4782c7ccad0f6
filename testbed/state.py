"""What a testbed writes about itself: which processes run, with start times so that a recycled pid is never taken for ours."""

import contextlib
import os
import signal
import time
from pathlib import Path

import msgspec

from poascope.errors import PoascopeError


class Running(msgspec.Struct, frozen=True):
    """One process. `started` is its start in clock ticks since boot; `worker_id` is a u64 as text."""

    name: str
    role: str
    pid: int
    started: int
    base_url: str
    log: str
    worker_id: str | None = None


class State(msgspec.Struct, frozen=True, kw_only=True):
    """`phase` is starting, ready, stopping or failed (`detail` says why)."""

    phase: str
    detail: str
    keeper_pid: int
    keeper_started: int
    dynamo: str
    topology: str
    namespace: str
    model: str
    gateway_url: str
    admin_url: str
    nats_url: str
    processes: tuple[Running, ...] = ()

    def process(self, name: str) -> Running | None:
        return next((p for p in self.processes if p.name == name), None)


def start_ticks(pid: int) -> int | None:
    """When that process started, or None where there is none (a zombie counts as none)."""
    try:
        # The name may hold spaces and brackets: fields are counted from the last one.
        rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # While other threads of a dead process are still ending, its ports are taken.
        ended = rest[0] in "ZX" and len(list(Path(f"/proc/{pid}/task").iterdir())) <= 1
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if ended else int(rest[19])


def is_alive(pid: int, started: int) -> bool:
    return start_ticks(pid) == started


def signal_group(process: Running, number: signal.Signals) -> None:
    """Signal the process group that `process` leads, if it is still the same process."""
    if is_alive(process.pid, process.started):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def stop_all(processes: tuple[Running, ...], patience_s: float) -> list[str]:
    """Ask every process to end, wait, kill what is left. Returns the names of those that had to be killed."""
    for process in processes:
        signal_group(process, signal.SIGTERM)
    alive = _wait(processes, patience_s)
    for process in alive:
        signal_group(process, signal.SIGKILL)
    _wait(tuple(alive), 5)
    return [process.name for process in alive]


def _wait(processes: tuple[Running, ...], timeout_s: float) -> list[Running]:
    deadline = time.monotonic() + timeout_s
    while True:
        # Where we are the parent, the dead must be collected; elsewhere there is nothing to collect.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        alive = [p for p in processes if is_alive(p.pid, p.started)]
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.05)


def read_state(path: Path) -> State | None:
    """The state written there, or None where there is none. Raises PoascopeError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise PoascopeError(f"testbed: {path} - not a testbed's state ({error}); remove the file") from error


def write_state(path: Path, state: State) -> None:
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
    partial.rename(path)
