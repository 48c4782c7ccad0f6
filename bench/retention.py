"""What long ranges cost, from raw rows and from rollups: `python bench/retention.py [ROWS]` (default a million). Compare, do not quote.

One store with as many raw rows as asked for, spread over 30 days as a collector would leave them (signals and three workers a second,
requests). Each query the pages make over 24 h and 30 d: with rollups as shipped, and the same aggregate over raw rows alone.
"""

import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from queries import named  # noqa: E402
from store import Store, rollups  # noqa: E402
from store.retention import Limits, Retention  # noqa: E402

END = datetime(2026, 1, 31, tzinfo=UTC).replace(tzinfo=None)
REPEATS = 15


def fill(store: Store, rows: int) -> None:
    """Signals every second would be 2.6 M rows in 30 days; fewer rows are spread thinner."""
    per_table = {"signals": rows * 2 // 10, "workers": rows * 6 // 10, "requests": rows * 2 // 10}

    def write(cursor) -> None:  # type: ignore[no-untyped-def]
        n = per_table["signals"]
        cursor.execute(
            "INSERT INTO signals BY NAME SELECT $end - to_microseconds((2592000e6 * (i + 1) / $n)::BIGINT) AS ts, 'd' AS deployment, "
            "32 + random() AS inflight, 6 + random() AS arrivals_per_s, 6 + random() AS finished_per_s, random() AS ttft_p50_s, "
            "random() AS ttft_p99_s, 1 + random() AS poa_hat, 'below' AS regime, ['metrics: absent'] AS quality FROM range($n) AS t(i)",
            {"n": n, "end": END},
        )
        n = per_table["workers"]
        cursor.execute(
            "INSERT INTO workers BY NAME SELECT $end - to_microseconds((2592000e6 * (i // 3 + 1) / ($n / 3))::BIGINT) AS ts, "
            "'d' AS deployment, 'backend' AS component, 'decode' AS role, i % 3 AS worker_id, 'events' AS source, 12 AS inflight "
            "FROM range($n) AS t(i)",
            {"n": n, "end": END},
        )
        n = per_table["requests"]
        cursor.execute(
            "INSERT INTO requests BY NAME SELECT 'd' AS deployment, i::VARCHAR AS request_id, came AS arrived_at, "
            "came + to_microseconds((60000 * exp(random())) ::BIGINT) AS first_token_at, came + INTERVAL 5 SECONDS AS finished_at, "
            "'finished' AS outcome FROM (SELECT i, $end - to_microseconds((2592000e6 * (i + 1) / $n)::BIGINT) AS came "
            "FROM range($n) AS t(i))",
            {"n": n, "end": END},
        )

    store.change("filling", write)
    began = time.perf_counter()
    store.change("rolling up", rollups.cover)
    print(f"rolled up in {time.perf_counter() - began:.1f} s")


# A step that is no multiple of 10 s is answered from raw rows by the very same query; histograms have no raw query, so one stands in.
RAW_LATENCY = (
    "SELECT time_bucket(to_seconds($step_s), first_token_at) AS bin, quantile_disc(epoch_us(first_token_at) - epoch_us(arrived_at), "
    "[0.5, 0.9, 0.99]) FROM requests WHERE first_token_at >= $from GROUP BY bin ORDER BY bin"
)


def timed(run) -> str:  # type: ignore[no-untyped-def]
    took = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        run()
        took.append(1e3 * (time.perf_counter() - began))
    return f"{np.quantile(took, 0.5):7.0f} {np.quantile(took, 0.99):7.0f}"


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "s.duckdb") as store:
        fill(store, rows)
        store.change("joining", lambda cursor: rollups.compact(cursor, END, 10**6))
        measure(store, rows)
        retention, turns = Retention(store, Limits(7, 1000, 400)), []
        for _ in range(100_000):
            began = time.perf_counter()
            turn = retention.turn(END)
            turns.append(1e3 * (time.perf_counter() - began))
            if not turn.joined and not turn.deleted:
                break
        print(f"{len(turns)} turns of retention: P50 {np.quantile(turns, 0.5):.0f} ms, P99 {np.quantile(turns, 0.99):.0f} ms")
        with store.cursor() as cursor:
            kept = named.signals_binned(cursor, 3600, from_=END - timedelta(days=30)).num_rows
        print(f"raw rows older than 7 days deleted; 30 d still answers with {kept} bins of 1 h; {turn.used_bytes / 1e6:.0f} MB in use")


def measure(store: Store, rows: int) -> None:
    print(f"{rows} raw rows over 30 d; ms, P50 and P99 of {REPEATS}\n{'':18}{'range':6}{'rollups':>16}{'raw':>16}")
    for name in ("signals_binned", "worker_inflight", "latency_binned"):
        for label, days, step in (("24 h", 1, 120), ("30 d", 30, 3600)):
            since = END - timedelta(days=days)
            with store.cursor() as cursor:
                rolled = timed(lambda: named.read(cursor, name, {"from": since, "step_s": step}).read_all())  # noqa: B023
                if name == "latency_binned":
                    exact = timed(lambda: cursor.execute(RAW_LATENCY, {"step_s": step, "from": since}).fetchall())  # noqa: B023
                else:
                    exact = timed(lambda: named.read(cursor, name, {"from": since, "step_s": step + 1}).read_all())  # noqa: B023
            print(f"{name:18}{label:6}{rolled:>16}{exact:>16}")


main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
