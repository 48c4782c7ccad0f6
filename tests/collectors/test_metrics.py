"""Exposition text in, typed series and quantiles out."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.capture import Reader
from collectors.metrics import Histogram, Readings, growth, increase, parse_series, parse_text, quantile
from store.names import BY_ALIAS, QUANTITIES
from tests.conftest import CAPTURES

TTFT = BY_ALIAS["dynamo_frontend_time_to_first_token_seconds"]


def read(*counts: float, total: float = 0.0) -> Histogram:
    le = (*(float(i) for i in range(1, len(counts))), math.inf)
    return Histogram(TTFT, TTFT.aliases[0], "{}", le, counts, total)


def test_recorded_metrics_hold_what_estimates_need() -> None:
    """TTFT, ITL, block size and in-flight are found on 0.9.0, 1.4.2 and 1.6.1, each quantity once a label set."""
    for path in sorted(set(CAPTURES.glob("*.jsonl.gz")) - set(CAPTURES.glob("spike-*"))):  # which has events alone
        body = [line.body for line in Reader(path) if line.target == "frontend" and line.body][-1]
        gauges, histograms = parse_series(parse_text(body))
        assert {"block_tokens", "frontend_inflight"} <= {g.quantity.name for g in gauges}, path.name
        assert {"frontend_ttft_s", "frontend_itl_s"} <= {h.quantity.name for h in histograms}, path.name
        for h in histograms:
            assert h.le[-1] == math.inf and list(h.counts) == sorted(h.counts)
        keys = [(g.quantity.name, g.labels) for g in gauges]
        assert len(keys) == len(set(keys))


def test_a_renamed_metric_is_one_quantity() -> None:
    """Both names of the engine's cache usage are read; exported together they count once, under the newer name."""
    old, new = 'vllm:gpu_cache_usage_perc{engine="0"} 0.5\n', 'vllm:kv_cache_usage_perc{engine="0"} 0.6\n'
    for text, value in ((old, 0.5), (new, 0.6), (old + new, 0.6)):
        gauges, _ = parse_series(parse_text(text))
        assert [(g.quantity.name, g.value) for g in gauges] == [("engine_cache_ratio", value)]


def test_a_worker_has_one_id_whatever_the_family_spells() -> None:
    """16 hex digits on component families and decimal on frontend families are the same worker; the family decides."""
    text = (
        'dynamo_component_requests_total{worker_id="a23e477fe4f5b243"} 3\n'
        'dynamo_frontend_worker_active_decode_blocks{worker_id="11690860297328112195",dp_rank="0"} 3\n'
        'dynamo_frontend_worker_active_prefill_tokens{worker_id="1234567890123456",dp_rank="0"} 3\n'
    )
    gauges, _ = parse_series(parse_text(text))
    ids = [json.loads(g.labels)["worker_id"] for g in gauges]
    assert ids == ["11690860297328112195", "11690860297328112195", "1234567890123456"]


def test_every_alias_names_one_quantity() -> None:
    """No metric name stands for two quantities."""
    aliases = [alias for quantity in QUANTITIES for alias in quantity.aliases]
    assert len(aliases) == len(set(aliases)) == len(BY_ALIAS)


def test_a_counter_that_restarts_gains_what_it_shows() -> None:
    """100, 150, 5, 30 gained 50, then 5, then 25."""
    assert increase([100, 150, 5, 30]) == 80


@given(st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=2, max_size=8), st.data())
@settings(max_examples=150, deadline=None)
def test_a_histogram_restarts_as_a_whole(steps: list[list[int]], data: st.DataObject) -> None:
    """What a histogram gained is the sum of what was observed, restarts or not, and its counts stay cumulative."""
    now = [0.0, 0.0, 0.0]
    reads = [read(0, 0, 0)]
    seen = [0.0, 0.0, 0.0]
    for step in steps:
        if data.draw(st.booleans()):
            # After a restart with as many observations or more nobody can tell: then the counts must differ downwards somewhere.
            candidate = [float(sum(step[: i + 1])) for i in range(3)]
            restarted = any(c < n for c, n in zip(candidate, now, strict=True))
        else:
            restarted = False
        base = [0.0, 0.0, 0.0] if restarted else now
        now = [b + sum(step[: i + 1]) for i, b in enumerate(base)]
        seen = [s + sum(step[: i + 1]) for i, s in enumerate(seen)]
        reads.append(read(*now))
    gained, _ = growth(reads)
    assert list(gained) == seen


def test_a_quantile_above_the_last_bound_is_a_lower_bound() -> None:
    """In the open bucket the answer is "at least the highest bound"; without traffic there is none."""
    le = (1.0, 2.0, math.inf)
    inside, above = quantile(le, (10, 20, 20), 0.75), quantile(le, (1, 2, 100), 0.99)
    assert inside and (inside.value, inside.at_least) == (1.5, False)
    assert above and (above.value, above.at_least) == (2.0, True)
    assert quantile(le, (0, 0, 0), 0.99) is None


def test_no_traffic_between_reads_is_no_quantile() -> None:
    """Two equal reads have gained nothing: there is a growth of zero, and no quantile of it; one read alone shows nothing."""
    readings = Readings()
    readings.feed(10, "f", [], [read(5, 6, 7)])
    assert readings.grown("frontend_ttft_s", {"f"}, 0, 10) is None
    readings.feed(15, "f", [], [read(5, 6, 7)])
    grown = readings.grown("frontend_ttft_s", {"f"}, 0, 15)
    assert grown and quantile(grown.le, grown.counts, 0.99) is None


def test_frontends_add_up() -> None:
    """The quantile of a deployment is over the buckets of all its frontends."""
    readings = Readings()
    for target, counts in (("a", (10, 10, 10)), ("b", (0, 30, 30))):
        readings.feed(0, target, [], [read(0, 0, 0)])
        readings.feed(5, target, [], [read(*counts)])
    grown = readings.grown("frontend_ttft_s", {"a", "b"}, 0, 5)
    assert grown and grown.counts == (10, 40, 40)


@given(st.text(max_size=300))
@settings(max_examples=100, deadline=None)
def test_text_that_is_no_exposition_raises_value_errors_only(text: str) -> None:
    """A target that answers with something else is one kind of error, for the caller to count."""
    try:
        parse_series(parse_text("dynamo_frontend_queued_requests" + text))
    except ValueError:
        return


def test_an_unreadable_value_is_refused() -> None:
    """A known name with no number after it is an error, not a zero."""
    with pytest.raises(ValueError):
        parse_text("dynamo_frontend_queued_requests many\n")
