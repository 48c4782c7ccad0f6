"""`poascope up`: collect, control and dash as one command, each a process of its own that may die without the others."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import typer

from poascope.errors import PoascopeError
from poascope.settings import Settings, to_env
from poascope.verbs import verb

VERBS = ("collect", "control", "dash")
SETTLED_S = 5.0  # a child that ends sooner than this on its first start has something to say to the person who started it
BACK_OFF_S = (1.0, 2.0, 5.0, 10.0, 30.0)
STOP_S = 10.0
PR_SET_PDEATHSIG = 1


class ChildFailed(PoascopeError):
    """A child ended while starting; what it said itself is in `said_in`."""

    def __init__(self, name: str, code: int, said_in: str) -> None:
        super().__init__(f"{name}: ended with {code} while starting - see {said_in}")
        self.exit_code = code if code > 0 else 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def start(args: Sequence[str], env: Mapping[str, str], log: Path | None = None) -> subprocess.Popen[bytes]:
    """`poascope ARGS` as a child that a kill -9 of its parent takes along. Ctrl-C reaches it only through the parent.

    `log`: the file its output is appended to; without one it shares the parent's.
    """
    command = [sys.executable, "-m", "poascope", *args]
    dies = _die_with_parent if sys.platform == "linux" else None
    with log.open("ab") if log else nullcontext() as output:
        return subprocess.Popen(
            command,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=dies,
        )


@dataclass(slots=True)
class Child:
    name: str
    process: subprocess.Popen[bytes]
    started: float
    restarts: int = 0
    again_at: float | None = None


class Children:
    """The processes of `up`: started together, restarted alone, stopped together."""

    def __init__(self, env: Mapping[str, str], logs: Path | None = None) -> None:
        self.env, self.logs = env, logs
        self.children: list[Child] = []

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        return start([name], self.env, self.logs / f"{name}.log" if self.logs else None)

    def __enter__(self) -> "Children":
        for name in VERBS:
            self.children.append(Child(name, self._start(name), time.monotonic()))
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            child.process.terminate()
        deadline = time.monotonic() + STOP_S
        for child in self.children:
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()

    def check(self, now: float) -> None:
        """Start again what has ended. Raises ChildFailed for one that never got going."""
        for child in self.children:
            code = child.process.poll()
            if code is None:
                if now - child.started > 60:
                    child.restarts = 0
                continue
            if child.again_at is None:
                if code == 2 or (child.restarts == 0 and now - child.started < SETTLED_S):
                    raise ChildFailed(child.name, code, str(self.logs / f"{child.name}.log") if self.logs else "its message above")
                wait_s = BACK_OFF_S[min(child.restarts, len(BACK_OFF_S) - 1)]
                typer.echo(f"poascope: {child.name} ended with {code} - starting it again in {wait_s:.0f} s", err=True)
                child.again_at = now + wait_s
            elif now >= child.again_at:
                child.process, child.started, child.again_at = self._start(child.name), now, None
                child.restarts += 1


def interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def environment(settings: Settings, config: Path | None) -> dict[str, str]:
    """What a child needs to load the same settings."""
    return to_env(settings) | ({"POASCOPE_CONFIG": str(config.resolve())} if config else {})


def up(settings: Settings, config: Path | None) -> None:
    """Collector, controller and dashboard against a running cluster; Ctrl-C stops all three."""
    signal.signal(signal.SIGTERM, interrupt)
    with Children(environment(settings, config)) as children:
        typer.echo("poascope: starting collector, controller and dashboard - Ctrl-C stops all three")
        while True:
            children.check(time.monotonic())
            time.sleep(0.5)


def register(cli: typer.Typer) -> None:
    """Add this module's verbs to the command line."""
    flags = ("nats_url", "prometheus_url", "scrape", "namespaces", "store", "api_port", "dash_host", "dash_port", "dash_token")
    cli.command("up")(verb(*flags, "api_token", "caddy_admin_url", "preset", "regime_source", "alarm_signal")(up))
