"""How long a pulse takes, against window size and workers, and what the naive N × N Hungarian would take for its optimum alone.

Run: python bench/pulse.py [--hungarian 1024]. One run prints everything; the Hungarian is timed up to that size (4,096: a minute).
Times are of the CPU, so that what else the machine does is not in them; `wall` is what a clock says. Windows are made up: requests of
5.4 s that queue for prefill, the history full, the latency models fitted, the caches warm.
"""

import argparse
import time
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from queries.estimators.latency import Curve
from queries.signals import Memory, pulse
from queries.window import Metrics, Requests, Window

WINDOW_S = 30.0
END = 1_800_000_000.0
PULSES = 8


@dataclass(frozen=True, slots=True)
class Config:
    preset: str = "70b"
    regime_source: str = "censored"
    alarm_signal: str = "headroom"
    slo_ttft_s: float = 1.0


def window(finished: int, workers: int, end: float = END, seed: int = 0) -> Window:
    """`finished` requests that ended in the window, as many as their rate keeps in flight, and 2,000 older ones."""
    rng = np.random.default_rng(seed)
    per_s = finished / WINDOW_S
    count = int(finished + 6.5 * per_s + 2000)
    arrived = np.sort(end - rng.uniform(0, count / per_s, count))
    pool = max(1, workers // 4)
    prefill, decode = rng.integers(0, pool, count), pool + rng.integers(0, workers - pool, count)
    done = arrived + 0.055 * (1 + rng.poisson(4, count))
    finish = done + 5.4 + 0.01 * rng.standard_normal(count)

    def unless_later(t: np.ndarray) -> np.ndarray:
        return np.where(t <= end, t, np.nan)

    every = Requests(
        request_id=np.array([f"r{i}" for i in range(count)], dtype=object),
        arrived_at=arrived,
        prefill_done_at=unless_later(done),
        decode_started_at=unless_later(done + 0.001),
        first_token_at=unless_later(done + 0.02),
        finished_at=unless_later(finish),
        prefill=prefill,
        decode=np.where(done <= end, decode, -1),
        prefill_inflight=rng.poisson(4, count).astype(float),
        decode_inflight=np.where(done <= end, rng.poisson(5.4 * per_s / max(1, workers - pool), count), np.nan),
        input_blocks=np.full(count, 8.0),
        overlap_blocks=np.zeros(count),
        lost=np.zeros(count, dtype=bool),
        workers=tuple((2**63 + i, 0) for i in range(workers)),
    )
    old = every.finished_at <= end - WINDOW_S
    history = every.take(~np.isnan(every.finished_at))
    return Window(
        deployment="bench",
        end=end,
        window_s=WINDOW_S,
        recent=every.take(~old),
        history=history.take(np.arange(len(history)) >= len(history) - 2000),
        metrics=Metrics(),
        events_as_of=end,
    )


def pulse_ms(finished: int, workers: int) -> tuple[float, float, float]:
    """Median and greatest CPU of some pulses a second apart, one of them with a refit, and the median by the clock."""
    memory: Memory | None = None
    times, walls = [], []
    for k in range(PULSES + 1):
        seen = window(finished, workers, END + 2 * k, seed=k)
        start, wall = time.process_time(), time.perf_counter()
        _, memory = pulse(seen, memory, Config())
        times.append((time.process_time() - start) * 1000)
        walls.append((time.perf_counter() - wall) * 1000)
    return float(np.median(times[1:])), max(times[1:]), float(np.median(walls[1:]))


def hungarian_ms(requests: int, workers: int) -> float:
    """The social optimum as it is usually computed: requests × slots, each slot at its marginal cost, by `linear_sum_assignment`."""
    curve, slots = Curve(0.05, 0.01), np.arange(1, -(-requests // workers) + 1)
    marginal = curve.social(slots) - curve.social(slots - 1)
    cost = np.tile(np.tile(marginal, workers)[:requests], (requests, 1))
    start = time.process_time()
    linear_sum_assignment(cost)
    return (time.process_time() - start) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hungarian", type=int, default=1024, help="largest N for the N × N Hungarian")
    limit = parser.parse_args().hungarian
    print(f"{'requests':>9} {'workers':>8} {'pulse ms':>9} {'max ms':>8} {'wall ms':>8} {'Hungarian ms':>13} {'ratio':>8}")
    naive: dict[int, float] = {}
    for finished in (128, 512, 1024, 2048, 4096):
        for workers in (3, 8, 64):
            median, greatest, wall = pulse_ms(finished, workers)
            if finished <= limit and finished not in naive:
                naive[finished] = hungarian_ms(finished, workers)
            known = naive.get(finished)
            shown = f"{known:13.1f} {known / median:7.1f}×" if known else f"{'not run':>13} {'':>8}"
            print(f"{finished:9} {workers:8} {median:9.1f} {greatest:8.1f} {wall:8.1f} {shown}")


if __name__ == "__main__":
    main()
