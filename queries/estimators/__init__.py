"""Estimators: pure functions on plain arrays. Live and replay call the same ones."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its doubt. `withheld` says why it is not to be trusted: `value` is then None, or there to be drawn hollow.

    low, high: the 90 % interval; n: samples behind it; as_of: Unix seconds of the newest one.
    `at_least`: the truth may be higher (a quantile in a histogram's open bucket).
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    as_of: float | None = None
    withheld: str | None = None
    at_least: bool = False
