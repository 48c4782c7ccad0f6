"""From a click on the scrubber to the picture, on a day of some 10 M events: `python bench/replay.py [REQUESTS_PER_S]` (default 14.5).

The store holds what a collector leaves of 24 h at that rate: requests (eight messages each), a row of signals and of five workers a
second, a decision a minute. Random instants are asked for as the page asks (the moment's sentence and tiles; a span of 5 min round it; the
whole day), beside what a page without named queries would do: read the day's rows and cut them in pandas. Play at 60× needs the moment
every 0.4 s.
"""

import asyncio
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from app.file import File  # noqa: E402
from app.panels import LIVE  # noqa: E402
from app.past import KEEP_S, Past  # noqa: E402
from app.status import Objectives  # noqa: E402
from poascope.settings import Settings  # noqa: E402
from store import Store, rollups  # noqa: E402

BEGIN = datetime(2026, 1, 30, tzinfo=UTC).replace(tzinfo=None)
DAY_S = 86_400
INSTANTS = 60


def fill(path: Path, per_s: float) -> None:
    given = {"begin": BEGIN, "requests": int(DAY_S * per_s), "per_s": per_s}

    def write(cursor) -> None:  # type: ignore[no-untyped-def]
        cursor.execute(
            "INSERT INTO requests BY NAME SELECT 'd' AS deployment, uuid()::VARCHAR AS request_id, 11690860297328112195 AS prefill_worker, "
            "16882743587675780000 + i % 4 AS decode_worker, $begin + to_microseconds((i * 1e6 / $per_s)::BIGINT) AS arrived_at, "
            "arrived_at + INTERVAL 60 MILLISECONDS AS prefill_done_at, prefill_done_at AS decode_started_at, "
            "prefill_done_at + INTERVAL 20 MILLISECONDS AS first_token_at, arrived_at + INTERVAL 5 SECONDS AS finished_at, "
            "8 AS input_blocks, 1 AS overlap_blocks, 0 AS prefill_inflight, 8 AS decode_inflight, "
            "'finished' AS outcome FROM range($requests) AS t(i)",
            given,
        )
        cursor.execute(
            "INSERT INTO signals BY NAME SELECT $begin + to_seconds(i) AS ts, 'd' AS deployment, 60 + 50 * sin(i / 3000) AS inflight, "
            "14 + random() AS arrivals_per_s, 14 + random() AS finished_per_s, 3 AS queued, 0.06 AS ttft_p50_s, 0.1 AS ttft_p90_s, "
            "exp(4 * sin(i / 3000)) AS ttft_p99_s, ttft_p99_s AS ttft_p99_censored_s, ttft_p99_s AS ttft_ewma_s, "
            "0.021 AS itl_p50_s, 0.023 AS itl_p99_s, 5.4 AS e2e_p99_s, 0.1 AS kv_hit_ratio, 1 + random() AS poa_hat, "
            "1 AS poa_low, 2 AS poa_high, 400 AS poa_n, "
            "78 AS knee_inflight, CASE WHEN sin(i / 3000) > 0.9 THEN 'saturated' ELSE 'below' END AS regime, 'auto' AS mode, "
            "['cache_miss: overlap with other workers unknown'] AS quality FROM range(86400) AS t(i)",
            {"begin": BEGIN},
        )
        cursor.execute(
            "INSERT INTO workers BY NAME SELECT $begin + to_seconds(i) AS ts, 'd' AS deployment, 'backend' AS component, 'decode' AS role, "
            "16882743587675780000 + w AS worker_id, 0 AS dp_rank, 'events' AS source, (12 + 9 * sin(i / 3000))::UINTEGER AS inflight "
            "FROM range(86400) AS t(i), range(5) AS u(w) ORDER BY i, w",
            {"begin": BEGIN},
        )
        cursor.execute(
            "INSERT INTO decisions BY NAME SELECT $begin + to_minutes(i) AS ts, 'd' AS deployment, 'hold' AS kind, 'controller' AS actor, "
            "'below the first threshold' AS why FROM range(1440) AS t(i)",
            {"begin": BEGIN},
        )

    with Store.open(path) as store:
        store.change("filling", write)
        store.change("rolling up", rollups.cover)
    rows = f"{given['requests'] * 8 / 1e6:.1f} M messages of requests, {DAY_S * 6} rows of signals and workers"
    print(f"{rows}; {path.stat().st_size / 2**20:.0f} MiB")


async def naive(file: File, at: float) -> None:
    """The day's signals and workers as frames, and then the two minutes before the moment."""
    for name in ("signals", "workers"):
        frame = await file.frame(name, deployment="d")
        stamps = frame["ts"].astype("int64") / 1e6
        frame[(stamps > at - KEEP_S) & (stamps <= at)]


async def main(per_s: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "day.duckdb"
        fill(path, per_s)
        file = File(path)
        past = Past(file, Objectives(1.0, 0.05), Settings())
        rng = np.random.default_rng(1)
        start, took = file.begin, dict[str, list[float]]()

        async def timed(name: str, ask) -> None:  # type: ignore[no-untyped-def]
            began = time.perf_counter()
            await ask
            took.setdefault(name, []).append(1e3 * (time.perf_counter() - began))

        for i, at in enumerate(start + rng.uniform(300, DAY_S - 300, INSTANTS)):
            await timed("moment", past.moment(LIVE, "d", float(at)))
            await timed("span of 5 min", past.span(LIVE, "d", float(at) - 150, float(at) + 150, "light", False))
            if i % 10 == 0:
                await timed("span of 24 h", past.span(LIVE, "d", start, start + DAY_S, "light", False))
                await timed("naive", naive(file, float(at)))
        await file.client.aclose()
    base = float(np.median(took["naive"]))
    print(f"{'':16}{'P50 ms':>8}{'P99 ms':>8}   of naive")
    for name, values in took.items():
        p50, p99 = np.quantile(values, [0.5, 0.99])
        print(f"{name:16}{p50:8.0f}{p99:8.0f}{p50 / base:11.3f}")
    speed = 400 / float(np.quantile(took["moment"], 0.99))
    print(f"play: a moment every 0.4 s leaves room for {speed:.0f} viewers at once, whatever the speed (P99)")


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 14.5))
