"""Thresholds of one's own deployment: factors on the TTFT P99 that it has while nothing queues. Pure.

A step of 5 s is quiet when its median TTFT is less than twice that of a cluster that does not queue, by the fitted curves.
The factors are between those that the papers' presets have on their unsaturated P99 (0.544 s at C = 96 for 340B: 1.8 and 18; 0.354 s
for 70B: 0.8 and 5.6).
It learns as long as it runs, so a quiet hour after an upgrade moves the thresholds; a collector that starts anew learns anew.
When it lies: where the prompts that come in quiet times are much shorter than those of busy ones.
"""

import math
import re
from dataclasses import dataclass
from statistics import median

FACTORS = (2.0, 12.0)
QUIET_RATIO = 2.0
NEED_STEPS, KEEP_STEPS = 24, 720
NOTE = "thresholds: "
_LEARNT = re.compile(NOTE + r"([0-9.e+-]+) s, ([0-9.e+-]+) s - learnt")


@dataclass(frozen=True, slots=True)
class Baseline:
    """TTFT P99 of each of the last quiet steps, seconds."""

    p99s_s: tuple[float, ...] = ()

    def add(self, p99_s: float | None, p50_s: float | None, unqueued_s: float | None) -> "Baseline":
        """With one more step, if it was quiet. `unqueued_s`: TTFT without a queue by the fitted curves, None while there is no firm fit."""
        if p99_s is None or p50_s is None or unqueued_s is None or not math.isfinite(p99_s) or p50_s > QUIET_RATIO * unqueued_s:
            return self
        return Baseline((*self.p99s_s, p99_s)[-KEEP_STEPS:])

    @property
    def thresholds_s(self) -> tuple[float, float] | None:
        """(transition above, saturated above) for the smoothed P99; None until 24 steps were quiet."""
        if len(self.p99s_s) < NEED_STEPS:
            return None
        usual = median(self.p99s_s)
        return FACTORS[0] * usual, FACTORS[1] * usual

    @property
    def note(self) -> str:
        """What it has learnt, or how far it is; `read` gets the numbers back."""
        learnt, n = self.thresholds_s, len(self.p99s_s)
        if learnt is None:
            return f"{NOTE}not learnt yet, {n} of {NEED_STEPS} quiet steps of 5 s"
        usual = f"the unsaturated TTFT P99 of {median(self.p99s_s):.3g} s ({n} quiet steps of 5 s)"
        return f"{NOTE}{learnt[0]:.3g} s, {learnt[1]:.3g} s - learnt as {FACTORS[0]:g} and {FACTORS[1]:g} times {usual}"


def read(note: str) -> tuple[float, float] | None:
    """The thresholds (s) that a note of the pulse tells, None if it tells of something else or of none yet."""
    found = _LEARNT.match(note)
    return (float(found[1]), float(found[2])) if found else None
