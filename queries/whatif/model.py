"""The model's parts: what a prefill step and a stay in decode cost. Calibrated by `calibrate`, played by `simulate`."""

from dataclasses import dataclass

from queries.estimators.latency import Curve


@dataclass(frozen=True, slots=True)
class Prefill:
    """A prefill worker serves its queue in order, in steps. A step takes what waits, until it has `budget_blocks` to compute but always at
    least one request, and lasts `base_s + block_s·(blocks computed)`.

    A request is done when its step ends; where `early_s` is a number, that long after its step began, while the worker goes on being busy:
    the 0.9 mocker answers first and takes its time afterwards. `budget_blocks` 0: one request at a time; infinite: all that wait.
    """

    base_s: float
    block_s: float
    budget_blocks: float = 0.0
    early_s: float | None = None

    def step_s(self, blocks: float) -> float:
        return self.base_s + self.block_s * blocks


@dataclass(frozen=True, slots=True)
class Model:
    """`decode`: seconds of a stay at n requests on the worker, for work 1 (the curve of `queries.estimators.latency`).
    step_s: an engine's decode step, on whose beat the requests of a worker end together; None: not known, and they end at any moment.
    cache_blocks: how many blocks a worker's prefix cache holds; None: evictions were never seen."""

    prefill: Prefill
    decode: Curve
    step_s: float | None = None
    cache_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One request as the model sees it. `blocks`: of its input, the last perhaps in part.

    path: the hashes of its full blocks, first to last; None when they are not known, and then `hits` blocks are held wherever it goes.
    work: its stay in decode as a multiple of the curve's, so it has the length of its answer in it. prefill, decode: 0-based workers that
    served it, by pool. transfer_s: prefill done → decode started. first_s: decode started → first token.
    """

    blocks: int
    path: tuple[int, ...] | None
    hits: int
    work: float
    transfer_s: float
    first_s: float
    prefill: int = 0
    decode: int = 0


@dataclass(frozen=True, slots=True)
class Cluster:
    prefill: int
    decode: int

    def __str__(self) -> str:
        return f"{self.prefill}P/{self.decode}D"
