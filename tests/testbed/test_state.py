import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from poascope.errors import PoascopeError
from testbed.cluster import Cluster
from testbed.processes import Files
from testbed.state import Running, State, is_alive, read_state, signal_group, start_ticks, write_state


def _state(keeper: tuple[int, int], *processes: Running) -> State:
    return State(
        phase="ready",
        detail="",
        keeper_pid=keeper[0],
        keeper_started=keeper[1],
        dynamo="0.9.0",
        topology="1P/2D",
        namespace="dynamo",
        model="m",
        gateway_url="",
        admin_url="",
        nats_url="",
        processes=processes,
    )


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)


def test_a_recycled_pid_is_not_ours() -> None:
    """A living pid with another start time counts as gone and is never signalled."""
    child = _sleeper()
    try:
        started = start_ticks(child.pid)
        assert started is not None
        assert is_alive(child.pid, started)
        signal_group(Running("x", "decode", child.pid, started + 1, "", ""), signal.SIGKILL)
        assert child.poll() is None
        signal_group(Running("x", "decode", child.pid, started, "", ""), signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
        assert not is_alive(child.pid, started)
    finally:
        child.kill()


def test_down_after_a_killed_keeper_ends_what_is_left_and_nothing_else(tmp_path: Path) -> None:
    """A stale state dir: recorded processes that still run are killed, a stranger on a recycled pid is spared, twice is harmless."""
    left, stranger = _sleeper(), _sleeper()
    try:
        started = start_ticks(left.pid)
        assert started is not None
        ours = Running("decode-1", "decode", left.pid, started, "", "")
        recycled = Running("decode-2", "decode", stranger.pid, started - 1, "", "")
        write_state(Files(tmp_path).state, _state((os.getpid(), 1), ours, recycled))
        cluster = Cluster(tmp_path)
        with pytest.raises(PoascopeError, match="nothing runs there"):
            _ = cluster.state
        assert "decode-1" in cluster.down()
        assert start_ticks(left.pid) is None
        assert stranger.poll() is None
        assert "nothing runs" in cluster.down()
    finally:
        left.kill()
        stranger.kill()
        left.wait()
        stranger.wait()


def test_state_survives_the_file(tmp_path: Path) -> None:
    """What is written is read back, no file is no state, and a file of something else is named."""
    path = tmp_path / "state.json"
    assert read_state(path) is None
    state = _state((1, 2), Running("nats", "nats", 3, 4, "nats://x", "log", "18446744073709551615"))
    write_state(path, state)
    assert read_state(path) == state
    path.write_text("{}")
    with pytest.raises(PoascopeError, match=r"state\.json"):
        read_state(path)
