"""A testbed seen from outside its keeper: bring one up, kill and start single processes, take it down."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from poascope.errors import PoascopeError
from testbed.keeper import LEASH, PATIENCE_S, Spec, reap_stale
from testbed.processes import Files
from testbed.state import Running, State, is_alive, read_state, signal_group

UP_TIMEOUT_S = 600.0  # the first use of a version downloads it


class Cluster:
    """A running testbed in a state dir. Every method reads the state afresh; the keeper is the only writer."""

    def __init__(self, folder: Path) -> None:
        self.files = Files(folder.resolve())

    @classmethod
    def up(cls, folder: Path, spec: Spec, *, leashed: bool = False, tell: Callable[[str], None] = lambda line: None) -> "Cluster":
        """Start a keeper and wait until all is ready. `leashed`: it ends with this process, however this ends. Raises PoascopeError."""
        cluster = cls(folder)
        cluster.files.dir.mkdir(parents=True, exist_ok=True)
        log = cluster.files.dir / "keeper.log"
        command = [sys.executable, "-m", "testbed.keeper", str(cluster.files.dir), msgspec.json.encode(spec).decode()]
        if leashed:
            command = [sys.executable, "-S", "-E", LEASH, str(os.getpid()), *command]
        with log.open("wb") as output:
            keeper = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        told, deadline = 0, time.monotonic() + UP_TIMEOUT_S
        while True:
            ended = keeper.poll() is not None
            lines = log.read_text(errors="replace").splitlines()
            for line in lines[told:]:
                if line == "ready":
                    return cluster
                if line.startswith("failed: "):
                    keeper.wait(PATIENCE_S * 3)
                    raise PoascopeError("\n".join([line.removeprefix("failed: "), *lines[lines.index(line) + 1 :]]))
                tell(line)
            told = len(lines)
            if ended:
                raise PoascopeError(f"testbed: the keeper ended with {keeper.returncode} - {log} says: {' '.join(lines[-5:])}")
            if time.monotonic() > deadline:
                keeper.terminate()
                raise PoascopeError(f"testbed: not ready after {UP_TIMEOUT_S:.0f} s - see {log}")
            time.sleep(0.05)

    @property
    def state(self) -> State:
        """What runs where. Raises PoascopeError where nothing runs."""
        state = read_state(self.files.state)
        if state is None or not is_alive(state.keeper_pid, state.keeper_started):
            raise PoascopeError(f"testbed: {self.files.dir} - nothing runs there; poascope testbed up")
        return state

    @property
    def pids(self) -> dict[str, int]:
        """Name to pid of every process that lives."""
        return {p.name: p.pid for p in self.state.processes if is_alive(p.pid, p.started)}

    def _process(self, name: str) -> Running:
        state = self.state
        process = state.process(name)
        if process is None:
            raise PoascopeError(f"testbed: {name} - no such process; there are {', '.join(p.name for p in state.processes)}")
        return process

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send the signal and wait until the process is gone. Returns its pid; raises PoascopeError where it does not run."""
        process = self._process(name)
        if not is_alive(process.pid, process.started):
            raise PoascopeError(f"testbed: {name} - does not run; poascope testbed start {name}")
        signal_group(process, number)
        deadline = time.monotonic() + PATIENCE_S
        while is_alive(process.pid, process.started):
            if time.monotonic() > deadline:
                raise PoascopeError(f"testbed: {name} - pid {process.pid} still runs {PATIENCE_S:.0f} s after {number.name}")
            time.sleep(0.02)
        return process.pid

    def start(self, name: str, timeout_s: float = 90) -> int:
        """Have the keeper start a process that ended, and wait until it serves. Returns the new pid; raises PoascopeError."""
        process = self._process(name)
        if is_alive(process.pid, process.started):
            raise PoascopeError(f"testbed: {name} - runs already (pid {process.pid})")
        self.files.wanted(name).touch()
        deadline = time.monotonic() + timeout_s
        while True:
            state = self.state
            now = state.process(name)
            if now and now.pid != process.pid and state.detail == f"{name} started":
                return now.pid
            if state.detail.startswith(("testbed:", f"{name}:", "ports:")):
                raise PoascopeError(state.detail)
            if time.monotonic() > deadline:
                raise PoascopeError(f"testbed: {name} - not ready after {timeout_s:.0f} s; see {process.log}")
            time.sleep(0.05)

    def down(self) -> str:
        """End everything, also what a killed keeper left. Returns one line on what was done; doing it twice does no harm."""
        state = read_state(self.files.state)
        if state is None:
            return f"nothing runs in {self.files.dir}"
        if is_alive(state.keeper_pid, state.keeper_started):
            os.kill(state.keeper_pid, signal.SIGTERM)
            deadline = time.monotonic() + 3 * PATIENCE_S
            while is_alive(state.keeper_pid, state.keeper_started):
                if time.monotonic() > deadline:
                    # The kernel takes its children along.
                    os.kill(state.keeper_pid, signal.SIGKILL)
                time.sleep(0.05)
        left = reap_stale(self.files)
        return f"stopped the testbed in {self.files.dir}" + (f" (left behind, killed: {', '.join(left)})" if left else "")
