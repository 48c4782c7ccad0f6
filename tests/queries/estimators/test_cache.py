import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queries.estimators.anarchy import cache_miss_seconds
from queries.estimators.cache import hits

NAN = float("nan")


def test_by_hand() -> None:
    """Three prompts of 8: another worker held 4 more of the first; the second grew by 2 in the queue; the third was nowhere."""
    found = hits(
        blocks=np.array([8.0, 8.0, 8.0]),
        chosen=np.array([0.0, 4.0, 0.0]),
        best=np.array([4.0, 4.0, 0.0]),
        realised=np.array([0.0, 6.0, 0.0]),
        eligible=2,
    )
    assert (found.possible_ratio, found.chosen_ratio, found.realised_ratio) == (8 / 24, 4 / 24, 6 / 24)
    assert (found.lost_blocks, found.blocks, found.n) == (4.0, 24.0, 3)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=30))
def test_possible_is_never_below_chosen(pairs: list[tuple[int, int]]) -> None:
    """0 ≤ chosen ≤ possible ≤ 1, and the blocks lost are their difference; following the best loses none."""
    own, best = (np.array(column, dtype=np.float64) for column in zip(*pairs, strict=True))
    blocks = np.full(len(own), 8.0)
    found = hits(blocks, own, best, None, eligible=3)
    assert found.possible_ratio is not None and found.chosen_ratio is not None and found.lost_blocks is not None
    assert 0 <= found.chosen_ratio <= found.possible_ratio <= 1
    assert found.lost_blocks == pytest.approx((found.possible_ratio - found.chosen_ratio) * found.blocks)
    followed = hits(blocks, np.maximum(own, best), best, None, eligible=3)
    assert followed.lost_blocks == 0 and followed.possible_ratio == followed.chosen_ratio


def test_what_was_not_published_is_unknown_and_not_zero() -> None:
    """Without overlaps of the others possible and lost are None; a real miss everywhere is 0."""
    blocks, own = np.full(20, 8.0), np.zeros(20)
    silent = hits(blocks, own, np.full(20, NAN), None, eligible=2)
    assert (silent.possible_ratio, silent.lost_blocks, silent.realised_ratio, silent.chosen_ratio) == (None, None, None, 0.0)
    missed = hits(blocks, own, np.zeros(20), np.zeros(20), eligible=2)
    assert (missed.possible_ratio, missed.lost_blocks, missed.realised_ratio) == (0.0, 0.0, 0.0)
    assert hits(np.empty(0), np.empty(0), None, None, eligible=2).chosen_ratio is None


def test_one_unknown_in_twenty_is_borne() -> None:
    """19 of 20 known is enough, and the one counts as the others do; 18 of 20 is not."""
    blocks, own, best = np.full(20, 8.0), np.zeros(20), np.full(20, 4.0)
    best[0] = NAN
    found = hits(blocks, own, best, None, eligible=2)
    assert found.possible_ratio == 0.5 and found.lost_blocks == pytest.approx(80.0)
    assert cache_miss_seconds(own, best, blocks, 0.06, workers=2) == pytest.approx(20 * 0.06 / 2)
    best[1] = NAN
    assert hits(blocks, own, best, None, eligible=2).lost_blocks is None
    assert cache_miss_seconds(own, best, blocks, 0.06, workers=2) is None


def test_with_one_worker_nothing_is_lost_to_routing() -> None:
    """Where there is one place to go to, the best is the chosen, whatever events say."""
    found = hits(np.array([8.0]), np.array([2.0]), np.array([5.0]), None, eligible=1)
    assert (found.possible_ratio, found.lost_blocks) == (0.25, 0.0)
