import subprocess
import sys
import time

from testbed.keeper import LEASH
from testbed.state import start_ticks

PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", sys.argv[1], str(os.getpid()), "/bin/sleep", "60"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_leashed_process_dies_with_its_parent() -> None:
    """SIGKILL to the parent ends the child, although it leads a session of its own."""
    parent = subprocess.Popen([sys.executable, "-S", "-c", PARENT, LEASH], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    child = int(parent.stdout.readline())
    assert start_ticks(child) is not None
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while start_ticks(child) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert start_ticks(child) is None


def test_a_leash_to_a_dead_parent_runs_nothing() -> None:
    """When the parent is already gone, the program does not start at all."""
    done = subprocess.run([sys.executable, "-S", LEASH, "1", "/bin/echo", "ran"], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
