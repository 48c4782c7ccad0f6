"""The scraped targets: what each one reads, and which deployment it speaks of."""

import json
import re
from collections.abc import Collection, Sequence

from collectors.metrics import Gauge, Histogram, Readings

_MAX_BLOCK_TOKENS = 1e6


def _as_label(namespace: str) -> str:
    # Dynamo 1.x writes the namespace my-ns as my_ns into its labels, and as it is into its subjects.
    return re.sub(r"[^A-Za-z0-9_]", "_", namespace)


class Targets:
    """Readings of every target, with the namespaces and models that its labels name."""

    def __init__(self) -> None:
        self.readings = Readings()
        self._namespaces: dict[str, set[str]] = {}
        self._models: dict[str, set[str]] = {}

    def feed(self, at: float, target: str, gauges: Sequence[Gauge], histograms: Sequence[Histogram]) -> None:
        self.readings.feed(at, target, gauges, histograms)
        series: list[Gauge | Histogram] = [*gauges, *histograms]
        for one in series:
            labels = json.loads(one.labels)
            if namespace := labels.get("dynamo_namespace"):
                self._namespaces.setdefault(target, set()).add(_as_label(namespace))
            if one.quantity.name == "block_tokens" and "model" in labels:
                self._models.setdefault(target, set()).add(labels["model"])

    def of(self, deployment: str, *, alone: bool, tied: Collection[str | None]) -> set[str]:
        """The targets that speak of a deployment: those whose labels name it; of those that name none, the ones tied to it by its
        routers, or all when it is alone. A 0.9 frontend names none."""
        return {
            target
            for target in self.readings.read_at
            if _as_label(deployment) in (named := self._namespaces.get(target, set())) or (not named and (alone or target in tied))
        }

    def block_tokens(self, targets: Collection[str]) -> int | None:
        """Tokens in a KV block, as the frontends say; None while none has said."""
        sizes = [gauge.value for gauge in self.readings.latest("block_tokens", targets) if 1 <= gauge.value < _MAX_BLOCK_TOKENS]
        return int(max(sizes)) if sizes else None

    def model(self, targets: Collection[str]) -> str | None:
        """The one model that the targets serve; None when they serve several, or have not said."""
        models = {model for target in targets for model in self._models.get(target, ())}
        return models.pop() if len(models) == 1 else None

    def forget(self, before: float) -> None:
        """Drop what was not read since."""
        self.readings.forget(before)
        for known in (self._namespaces, self._models):
            for target in [t for t in known if t not in self.readings.read_at]:
                del known[target]
