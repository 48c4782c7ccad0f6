import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from poascope import run
from poascope.run import ChildFailed, Children


def scripted(monkeypatch: pytest.MonkeyPatch, script: str) -> list[list[str]]:
    """Children that run a line of Python instead of a verb; returns the list that each start is added to."""
    starts: list[list[str]] = []

    def start(args: list[str], env: object, log: Path | None = None) -> subprocess.Popen[bytes]:
        starts.append(args)
        return subprocess.Popen([sys.executable, "-c", script])

    monkeypatch.setattr(run, "start", start)
    return starts


def test_one_that_dies_is_started_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that ends is started again after its back-off; the other two are left alone."""
    starts = scripted(monkeypatch, "import time; time.sleep(60)")
    with Children({}) as children:
        now = time.monotonic() + run.SETTLED_S + 1
        victim, others = children.children[0], [c.process.pid for c in children.children[1:]]
        victim.process.kill()
        victim.process.wait()
        children.check(now)
        assert len(starts) == 3  # not before its back-off
        children.check(now + run.BACK_OFF_S[0])
        assert starts[3:] == [["collect"]]
        assert victim.process.poll() is None
        assert [c.process.pid for c in children.children[1:]] == others
    assert all(c.process.poll() is not None for c in children.children)


def test_one_that_never_got_going_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that ends while starting ends everything, with its own exit code: nobody waits for a port that is taken."""
    scripted(monkeypatch, "raise SystemExit(3)")
    with Children({}) as children:
        for child in children.children:
            child.process.wait()
        with pytest.raises(ChildFailed, match="collect: ended with 3") as caught:
            children.check(time.monotonic())
    assert caught.value.exit_code == 3


def test_kill_of_the_parent_takes_children_along(tmp_path: Path) -> None:
    """After kill -9 of `up` no child of it runs on."""
    code = (
        "import subprocess, sys, time\n"
        "from poascope import run\n"
        "real = subprocess.Popen\n"
        "run.subprocess.Popen = lambda command, **k: real(['/bin/sleep', '60'], **k)\n"
        "print(run.start(['collect'], {}).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    child = int(parent.stdout.readline())
    os.kill(child, 0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}/stat").exists() and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)
