"""The testbed against the real Dynamo. Tests that share the session's cluster leave it whole."""

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from poascope.errors import PoascopeError
from poascope.settings import load as load_settings
from testbed.cluster import Cluster
from testbed.gateway import read_access_log
from testbed.keeper import Keeper, Spec
from testbed.load import Load, discover
from testbed.ports import free_base, taken
from testbed.probe import complete, workers_used
from testbed.prompts import Shape
from testbed.scenario import Phase, Scenario
from testbed.state import start_ticks
from testbed.topology import plan_ports

pytestmark = pytest.mark.real
POASCOPE = (sys.executable, "-m", "poascope", "testbed")


def _wait(done: object, timeout_s: float = 30) -> None:
    assert callable(done)
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("version", "ending"),
    [("0.9.0", signal.SIGKILL), ("1.4.2", signal.SIGINT), ("1.6.1", signal.SIGKILL)],
)
def test_up_serves_and_nothing_outlives_its_keeper(version: str, ending: signal.Signals, tmp_path: Path) -> None:
    """Each version answers through the gateway; after Ctrl-C, or SIGKILL and two `down`s, no process, port or lock is left."""
    folder, base = tmp_path / "bed", free_base()
    command = [*POASCOPE, "up", "--dynamo", version, "--port-base", str(base), "--dir", str(folder)]
    keeper = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert keeper.stdout
        said = ""
        # The last line that it prints once everything is ready.
        while not said.endswith("Ctrl-C\n"):
            line = keeper.stdout.readline()
            assert line, said
            said += line
        assert f"poascope up --config {folder / 'poascope.toml'}" in said
        cluster = Cluster(folder)
        state, pids = cluster.state, cluster.pids
        assert set(pids) == {
            *("nats", "prefill-1", "decode-1", "decode-2", "gateway"),
            *("frontend-below", "frontend-transition", "frontend-saturated"),
        }
        with httpx.Client(timeout=20, trust_env=False) as client:
            assert complete(client, state.gateway_url, state.model) is None
            ids = {p.worker_id for p in state.processes if p.worker_id}
            assert len(ids) == 3
            assert workers_used(client, state.gateway_url, state.model, 8) <= ids
        settings = load_settings(folder / "poascope.toml", env={})
        assert settings.caddy_admin_url == state.admin_url
        assert [p.name for p in settings.profiles] == ["below", "transition", "saturated"]
        for target in settings.scrape:
            assert "# TYPE" in httpx.get(f"{target}/metrics", trust_env=False).text
        assert all(line.upstream == f"127.0.0.1:{base}" for line in read_access_log(folder / "access.jsonl"))
        keeper.send_signal(ending)
        keeper.communicate(timeout=60)
    finally:
        keeper.kill()
        keeper.wait()
        if keeper.stdout:
            keeper.stdout.close()
    _wait(lambda: all(start_ticks(pid) is None for pid in pids.values()))
    assert taken(plan_ports(base, 3).all()) == []
    for _ in range(2):
        assert subprocess.run([*POASCOPE, "down", "--dir", str(folder)], capture_output=True, check=False).returncode == 0
    assert not (folder / "state.json").exists()
    # The lock is free: a keeper that then finds a port taken gets past it.
    listener = subprocess.Popen([sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(base)], stderr=subprocess.DEVNULL)
    try:
        _wait(lambda: bool(taken([base])))
        with pytest.raises(PoascopeError, match=rf"{base} by python.* \(pid {listener.pid}\) - taken"):
            Keeper(folder, Spec(dynamo=version, port_base=base), lambda line: None).run(lambda state: None)
    finally:
        listener.kill()
        listener.wait()


def test_a_second_keeper_is_refused(cluster: Cluster) -> None:
    """Two testbeds never share a state dir; the error names the pid and the way out."""
    with pytest.raises(PoascopeError, match=rf"already running \(pid {cluster.state.keeper_pid}\); poascope testbed down"):
        Keeper(cluster.files.dir, Spec(), lambda line: None).run(lambda state: None)
    assert len(cluster.pids) == 8


def test_a_killed_worker_starts_again_as_a_new_one(cluster: Cluster) -> None:
    """Killing one decode worker leaves all others; started again it has a new id, and every frontend sends it requests."""
    before, pids = cluster.state, cluster.pids
    former = before.process("decode-1")
    assert former
    cluster.kill("decode-1")
    assert set(pids) - set(cluster.pids) == {"decode-1"}
    with pytest.raises(PoascopeError, match="does not run"):
        cluster.kill("decode-1")
    cluster.start("decode-1")
    now = cluster.state.process("decode-1")
    assert now
    assert (now.pid != former.pid, now.worker_id != former.worker_id) == (True, True)
    with httpx.Client(timeout=20, trust_env=False) as client:
        for frontend in (p for p in cluster.state.processes if p.role == "frontend"):
            seen: set[str] = set()
            _wait(lambda: now.worker_id in seen or seen.update(workers_used(client, frontend.base_url, before.model, 8)))  # noqa: B023
    with pytest.raises(PoascopeError, match="runs already"):
        cluster.start("decode-1")
    with pytest.raises(PoascopeError, match="decode-9 - no such process; there are nats"):
        cluster.kill("decode-9")


async def test_load_counts_what_a_killed_frontend_costs(cluster: Cluster, tmp_path: Path) -> None:
    """Requests cut or refused while the frontend is down are failures, and those before and after it are finished."""
    state = cluster.state
    model, overhead = await discover(state.gateway_url)
    assert model == state.model
    scenario = Scenario("fault", "", (Phase(1, users=4), Phase(3, users=4), Phase(2, users=4)))
    with (tmp_path / "requests.jsonl").open("wb") as out:
        run = Load(state.gateway_url, model, scenario, Shape(64 - overhead, 16), 1, out, lambda load: None)
        task = asyncio.create_task(run.run())
        await asyncio.sleep(1.5)
        await asyncio.to_thread(cluster.kill, "frontend-below")
        await asyncio.to_thread(cluster.start, "frontend-below")
        await task
    failed = [tally.errors.total() for tally in run.tallies]
    assert failed[0] == 0
    assert failed[1] > 0
    assert all(tally.sent == tally.finished + tally.errors.total() for tally in run.tallies)
    assert run.tallies[0].finished > 0
    assert len((tmp_path / "requests.jsonl").read_bytes().splitlines()) == sum(tally.sent for tally in run.tallies)


def test_a_process_that_cannot_start_is_named_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that dies during readiness ends the whole start with its name and the tail of its log, and leaves nothing."""
    monkeypatch.setattr("testbed.keeper.write_timing", lambda path, timing: path.write_bytes(b"not a profile"))
    base, said = free_base(), list[str]()
    with pytest.raises(PoascopeError, match=r"(?s)(prefill-1|decode-1): ended while starting \(exit 1\) - .*\1\.log ends:\n.+"):
        Keeper(tmp_path, Spec(topology="1P/1D", port_base=base), said.append).run(lambda state: None)
    assert taken(plan_ports(base, 2).all()) == []
    assert not (tmp_path / "state.json").exists()
