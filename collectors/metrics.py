"""Metrics of frontends and workers: Prometheus samples in, typed series out, and quantiles of what changed between two reads."""

import json
import math
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from prometheus_client.parser import text_string_to_metric_families

from queries.window import Quantile
from store.names import BY_ALIAS, Quantity

MAX_SERIES = 20_000
MAX_VALUE = 1e18  # past it sums and differences overflow or say nothing; infinities and NaN are not below it either
KEPT_S = 120.0
_SUFFIXES = ("_bucket", "_sum", "_count")

Raw = tuple[str, Mapping[str, str], float]
Series = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Gauge:
    """A gauge's or a counter's value at one read. `labels`: JSON object, sorted, worker ids in decimal."""

    quantity: Quantity
    name: str
    labels: str
    value: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram's cumulative counts at one read, one for each bound in `le`, +Inf last; `total` is the sum of what it saw."""

    quantity: Quantity
    name: str
    labels: str
    le: tuple[float, ...]
    counts: tuple[float, ...]
    total: float | None


def _family(sample: str) -> Quantity | None:
    if known := BY_ALIAS.get(sample):
        return known
    for suffix in _SUFFIXES:
        if sample.endswith(suffix) and (known := BY_ALIAS.get(sample[: -len(suffix)])) and known.kind == "histogram":
            return known
    return None


def parse_text(body: str) -> list[Raw]:
    """The samples of an exposition that poascope reads, in order. Raises ValueError on text that is not one."""
    wanted = [line for line in body.split("\n") if line and line[0] != "#" and _family(line.split("{", 1)[0].split(" ", 1)[0]) is not None]
    return [
        (sample.name, sample.labels, float(sample.value))
        for family in text_string_to_metric_families("\n".join(wanted) + "\n")
        for sample in family.samples
    ]


def canonical_worker(spelling: str, how: str | None) -> str:
    """A worker id in decimal. Decided by metric family, not by look: 16 digits may be either."""
    try:
        return str(int(spelling, 16 if how == "hex" else 10))
    except ValueError:
        return spelling


def _labels(quantity: Quantity, labels: Mapping[str, str]) -> str:
    kept = {k: v for k, v in labels.items() if k != "le"}
    if quantity.worker_label and "worker_id" in kept:
        kept["worker_id"] = canonical_worker(kept["worker_id"], quantity.worker_label)
    return json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def parse_series(samples: Iterable[Raw]) -> tuple[list[Gauge], list[Histogram]]:
    """Samples grouped into gauges and whole histograms; what is NaN or beyond all counting is no sample.

    A quantity exported under two of its names counts once.
    """
    gauges: dict[Series, Gauge] = {}
    buckets: dict[Series, dict[float, float]] = {}
    totals: dict[Series, float] = {}
    known: dict[Series, Quantity] = {}
    for name, labels, value in samples:
        quantity = _family(name)
        if quantity is None or not abs(value) < MAX_VALUE:
            continue
        text = _labels(quantity, labels)
        if quantity.kind != "histogram":
            gauges[name, text] = Gauge(quantity, name, text, value)
        elif name.endswith("_bucket"):
            try:
                bound = float(labels.get("le", ""))
            except ValueError:
                continue
            key = (name.removesuffix("_bucket"), text)
            known[key] = quantity
            buckets.setdefault(key, {})[bound] = value
        elif name.endswith("_sum"):
            totals[name.removesuffix("_sum"), text] = value
    histograms = []
    for key, bounds in buckets.items():
        le = tuple(sorted(bounds))
        if le[-1] == math.inf:
            histograms.append(Histogram(known[key], *key, le, tuple(bounds[b] for b in le), totals.get(key)))
    return _first_alias(list(gauges.values())), _first_alias(histograms)


_S = TypeVar("_S", Gauge, Histogram)


def _first_alias(series: list[_S]) -> list[_S]:
    best: dict[tuple[str, str], _S] = {}
    for one in series:
        key = (one.quantity.name, one.labels)
        aliases = one.quantity.aliases
        if key not in best or aliases.index(one.name) < aliases.index(best[key].name):
            best[key] = one
    return list(best.values())


def quantile(le: Sequence[float], counts: Sequence[float], q: float) -> Quantile | None:
    """Quantile `q` of cumulative bucket counts, linear within a bucket as Prometheus' `histogram_quantile`; None without traffic.

    In the open bucket the highest finite bound is returned as `at_least`.
    """
    total = counts[-1]
    if not total > 0:
        return None
    rank = q * total
    index = next(i for i, count in enumerate(counts) if count >= rank)
    if math.isinf(le[index]):
        return Quantile(le[index - 1], at_least=True) if index else None
    low, below = (le[index - 1], counts[index - 1]) if index else (0.0, 0.0)
    inside = counts[index] - below
    return Quantile(low + (le[index] - low) * ((rank - below) / inside if inside > 0 else 1.0))


@dataclass(frozen=True, slots=True)
class Grown:
    """What a histogram gained in a window: cumulative counts for each bound, and the sum of the values."""

    le: tuple[float, ...]
    counts: tuple[float, ...]
    total: float


def growth(reads: Sequence[Histogram]) -> tuple[tuple[float, ...], float]:
    """Counts and total gained over consecutive reads. A histogram resets as a whole: after a restart all it shows is new."""
    gained = [0.0] * len(reads[0].counts)
    total = 0.0
    for before, after in pairwise(reads):
        restarted = any(b > a for b, a in zip(before.counts, after.counts, strict=True))
        gained = [g + (a if restarted else a - b) for g, b, a in zip(gained, before.counts, after.counts, strict=True)]
        total += (after.total or 0.0) - (0.0 if restarted else before.total or 0.0)
    return tuple(gained), total


def increase(values: Sequence[float]) -> float:
    """What a counter gained over consecutive reads; a fall is a restart from zero."""
    return sum(after if after < before else after - before for before, after in pairwise(values))


class Readings:
    """The last two minutes of every series of every target, oldest series dropped beyond a bound."""

    def __init__(self) -> None:
        self._histograms: OrderedDict[tuple[str, str, str], deque[tuple[float, Histogram]]] = OrderedDict()
        self._gauges: OrderedDict[tuple[str, str, str], deque[tuple[float, Gauge]]] = OrderedDict()
        self.read_at: dict[str, float] = {}

    def feed(self, at: float, target: str, gauges: Iterable[Gauge], histograms: Iterable[Histogram]) -> None:
        self.read_at[target] = at
        for gauge in gauges:
            _keep(self._gauges, (target, gauge.name, gauge.labels), at, gauge)
        for histogram in histograms:
            reads = self._histograms.get((target, histogram.name, histogram.labels))
            if reads and reads[-1][1].le != histogram.le:
                reads.clear()
            _keep(self._histograms, (target, histogram.name, histogram.labels), at, histogram)

    def forget(self, before: float) -> None:
        """Drop targets and series not read since: a pod that is gone, a worker that is no longer exported."""
        self.read_at = {target: at for target, at in self.read_at.items() if at >= before}
        for key in [k for k, reads in self._gauges.items() if reads[-1][0] < before]:
            del self._gauges[key]
        for key in [k for k, histograms in self._histograms.items() if histograms[-1][0] < before]:
            del self._histograms[key]

    def grown(self, quantity: str, targets: Collection[str], start: float, end: float) -> Grown | None:
        """What the histograms of a quantity gained together in (start, end]; None when fewer than two reads show it.

        Series with other bounds than the first one are left out: their counts do not add up.
        """
        le: tuple[float, ...] | None = None
        counts: tuple[float, ...] = ()
        total = 0.0
        for (target, _, _), reads in self._histograms.items():
            if target not in targets or reads[-1][1].quantity.name != quantity:
                continue
            inside = _within(reads, start, end)
            if len(inside) < 2 or (le is not None and inside[0].le != le):
                continue
            gained, gained_total = growth(inside)
            counts = gained if le is None else tuple(a + b for a, b in zip(counts, gained, strict=True))
            le, total = inside[0].le, total + gained_total
        return None if le is None else Grown(le, counts, total)

    def count(self, quantity: str, target: str) -> float:
        """How many observations the histograms of a quantity hold now, together."""
        return sum(
            reads[-1][1].counts[-1]
            for (owner, _, _), reads in self._histograms.items()
            if owner == target and reads[-1][1].quantity.name == quantity
        )

    def latest(self, quantity: str, targets: Collection[str]) -> list[Gauge]:
        """The newest value of each series of a gauge or counter."""
        return [
            reads[-1][1] for (target, _, _), reads in self._gauges.items() if target in targets and reads[-1][1].quantity.name == quantity
        ]

    def labels(self, target: str) -> Iterator[tuple[Quantity, str]]:
        """Every series a target showed, as its quantity and labels."""
        for series in (self._gauges, self._histograms):
            for (owner, _, labels), reads in series.items():
                if owner == target:
                    yield reads[-1][1].quantity, labels


_T = TypeVar("_T", Gauge, Histogram)


def _keep(series: "OrderedDict[tuple[str, str, str], deque[tuple[float, _T]]]", key: tuple[str, str, str], at: float, value: _T) -> None:
    reads = series.get(key)
    if reads is None:
        reads = series[key] = deque()
        if len(series) > MAX_SERIES:
            series.popitem(last=False)
    reads.append((at, value))
    while reads[0][0] < at - KEPT_S:
        reads.popleft()


def _within(reads: Iterable[tuple[float, _T]], start: float, end: float) -> list[_T]:
    """The reads in (start, end] and the last one before, from which the first of them grew."""
    before: list[_T] = []
    inside: list[_T] = []
    for at, value in reads:
        if at <= start:
            before = [value]
        elif at <= end:
            inside.append(value)
    return before + inside
