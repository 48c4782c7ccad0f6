"""The cache game: what of the prompts some worker held, what the router chose, what the engine found, and what the choice lost.

Three shares of the same prompt blocks. *possible*: the most that any eligible worker of the pool held when the request was routed;
*chosen*: what the worker held that it was sent to; *realised*: what that worker really did not compute again. chosen < possible is lost
to routing (the lever is ω); realised < chosen was evicted, realised > chosen arrived, between routing and prefill.
"""

from dataclasses import dataclass

import numpy as np

from queries.window import Floats

UNKNOWN_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Hits:
    """Ratios of prompt blocks, 0 to 1, over the requests of which they are known; None where more than one in twenty is not.

    blocks: of all prompts, NaN ones left out; lost_blocks: held by another worker of the pool and computed again all the same.
    """

    possible_ratio: float | None
    chosen_ratio: float | None
    realised_ratio: float | None
    lost_blocks: float | None
    blocks: float
    n: int


def _share(held: Floats | None, blocks: Floats) -> tuple[float | None, float]:
    """Σheld/Σblocks over those known, and the share of requests that are."""
    if held is None or not len(blocks):
        return None, 0.0
    known = ~np.isnan(held + blocks)
    total = float(blocks[known].sum())
    return (float(held[known].sum()) / total if total > 0 else None), float(known.mean())


def hits(blocks: Floats, chosen: Floats, best: Floats | None, realised: Floats | None, eligible: int) -> Hits:
    """blocks: of each whole input; chosen, best, realised: of these, held by the worker chosen, by the best one, and not computed again.

    NaN is unknown. With one eligible worker the best is the chosen one. A best below the chosen (it was looked up in events, which trail
    the router's own index by a moment) counts as the chosen.
    """
    most = chosen if eligible == 1 else None if best is None else np.maximum(best, chosen)
    ratios = {}
    for name, held in (("possible", most), ("chosen", chosen), ("realised", realised)):
        ratio, known = _share(held, blocks)
        ratios[name] = ratio if known >= 1 - UNKNOWN_SHARE else None
    lost = None
    if most is not None and ratios["possible"] is not None:
        both = ~np.isnan(most + chosen)
        lost = float((most - chosen)[both].sum()) / float(both.mean())
    return Hits(ratios["possible"], ratios["chosen"], ratios["realised"], lost, float(np.nansum(blocks)), len(blocks))
