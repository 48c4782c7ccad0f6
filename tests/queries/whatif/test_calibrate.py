import numpy as np
import pytest

from queries.estimators.latency import Curve
from queries.whatif.calibrate import Stays, fit_prefill, replay_prefill, works
from queries.whatif.model import Prefill
from queries.window import Requests


def stays(timing: Prefill, workers: int = 1, count: int = 400) -> Stays:
    """What such workers make of bursts of prompts of 1 to 8 blocks."""
    rng = np.random.default_rng(5)
    arrived = np.sort(
        np.concatenate([rng.uniform(0, 60, count // 2), rng.choice([10.0, 30.0, 50.0], count // 2) + rng.uniform(0, 0.2, count // 2)])
    )
    empty = Stays(arrived, arrived, rng.integers(1, 9, count).astype(float), np.arange(count) % workers)
    done = replay_prefill(empty, timing) + rng.normal(0, 0.0005, count)
    order = np.lexsort((arrived, done, empty.worker))
    return Stays(arrived[order], done[order], empty.blocks[order], empty.worker[order])


@pytest.mark.parametrize(
    "timing",
    [Prefill(0.030, 0.008), Prefill(0.028, 0.006, early_s=0.001), Prefill(0.025, 0.006, budget_blocks=120.0)],
    ids=["in order", "answers first", "in steps"],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_each_kind_of_worker_is_told_from_what_it_did(timing: Prefill, workers: int) -> None:
    """The kind, its base and its price of a block come back within a tenth."""
    found, error = fit_prefill(stays(timing, workers))
    assert error < 0.05
    assert (found.early_s is None) == (timing.early_s is None) and (found.budget_blocks > 0) == (timing.budget_blocks > 0)
    assert found.step_s(8) == pytest.approx(timing.step_s(8), rel=0.1)


def test_nobody_waited_is_still_a_price() -> None:
    """With prompts far apart the stays themselves are the service."""
    at = np.arange(50) * 10.0
    found, _ = fit_prefill(Stays(at, at + 0.055, np.full(50, 8.0), np.zeros(50, dtype=np.int64)))
    assert found.step_s(8) == pytest.approx(0.055, rel=0.05)


def test_work_played_with_the_same_companions_gives_the_same_seconds() -> None:
    """Alone for 1 s at f(1) = 2 and with another for 2 s at f(2) = 4: work 1/2 + 2/4."""
    n, nan = 2, np.full(2, np.nan)
    r = Requests(
        np.array(["a", "b"], dtype=object), np.zeros(n), np.zeros(n), np.array([0.0, 1.0]), np.zeros(n), np.array([3.0, 3.0]),
        np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), nan, nan, nan, nan, np.zeros(n, dtype=np.bool_), ((1, 0),),
    )  # fmt: skip
    assert works(r, Curve(2.0, 2.0)).tolist() == pytest.approx([1.0, 0.5])
