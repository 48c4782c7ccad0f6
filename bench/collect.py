"""What watching a real cluster costs: `python bench/collect.py [DYNAMO]`. Compare the ratio; the absolute numbers are this machine's.

A real Dynamo on mockers at C = 8 and C = 128. CPU of `poascope collect` (events, scrapes of every frontend and worker, pulse, store, API),
and beside it, on the same messages, a nats-py client that subscribes to the same subjects and does nothing with them.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from testbed.cluster import Cluster  # noqa: E402
from testbed.keeper import Spec  # noqa: E402
from testbed.ports import free_base  # noqa: E402

TICK = os.sysconf("SC_CLK_TCK")
IDLE_CLIENT = """
import asyncio, nats, sys
async def main():
    client = await nats.connect(sys.argv[1])
    async def nothing(message): pass
    for subject in ("namespace.>", "*.kv-events"):
        await client.subscribe(subject, cb=nothing)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def counters(api: str) -> dict[str, float]:
    return dict(httpx.get(f"{api}/readyz").json()["counters"])


def measure(folder: Path, version: str) -> None:
    cluster = Cluster.up(folder, Spec(dynamo=version, port_base=free_base()), leashed=True, tell=print)
    port = int(cluster.state.gateway_url.rpartition(":")[2]) + 70
    env = {
        **os.environ,
        "POASCOPE_CONFIG": str(cluster.files.config),
        "POASCOPE_STORE": str(folder / "bench.duckdb"),
        "POASCOPE_API_PORT": str(port),
    }
    collect = subprocess.Popen([sys.executable, "-m", "poascope", "collect"], env=env, stderr=subprocess.DEVNULL)
    idle = subprocess.Popen([sys.executable, "-c", IDLE_CLIENT, cluster.state.nats_url])
    api = f"http://127.0.0.1:{port}"
    try:
        print(f"Dynamo {version}, 1P/2D, three frontends: six targets scraped every 5 s")
        for users, seconds in ((8, 25), (128, 60)):
            command = [sys.executable, "-m", "poascope", "testbed", "load", "steady", "--dir", str(folder), "--users", str(users)]
            load = subprocess.Popen([*command, "--seconds", str(seconds)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(10)  # the opening burst, and our own start
            began, ours, theirs, before = time.monotonic(), cpu_s(collect.pid), cpu_s(idle.pid), counters(api)
            time.sleep(seconds - 12)
            took, after = time.monotonic() - began, counters(api)
            ours, theirs = (cpu_s(collect.pid) - ours) / took, (cpu_s(idle.pid) - theirs) / took
            rates = {name: (after[name] - before[name]) / took for name in ("messages_total", "pulse_seconds_total", "flush_seconds_total")}
            print(
                f"C = {users:3}: collect {100 * ours:.1f} % of one core at {rates['messages_total']:.0f} messages/s "
                f"(pulse {100 * rates['pulse_seconds_total']:.1f}, flushes {100 * rates['flush_seconds_total']:.1f} on a thread); "
                f"idle client {100 * theirs:.1f} %; ratio {ours / max(theirs, 1 / TICK / took):.1f}"
            )
            load.wait()
    finally:
        for process in (collect, idle):
            process.terminate()
            process.wait()
        cluster.down()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), sys.argv[1] if len(sys.argv) > 1 else "0.9.0")
