from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from queries.whatif.answer import Policy, ask, more, optimum, validate
from queries.whatif.model import Cluster
from queries.whatif.policy import parse_policy
from queries.whatif.trace import Refused, Trace, trace_of

Recorded = Callable[[str], dict[str, pa.Table]]
CAPTURES = ("cap-0.9.0-1p2d", "cap-1.6.1-1p2d", "spike-0.9.0-1p2d")


def of(tables: dict[str, pa.Table], loop: str | None = None) -> Trace:
    return trace_of("dynamo", tables["requests"], tables["kv_events"], tables["gaps"], tables["signals"], loop)


@pytest.mark.parametrize("capture", CAPTURES)
def test_the_model_reproduces_what_real_clusters_did(recorded: Recorded, capture: str) -> None:
    """TTFT P50 and P99 and throughput of the recordings, through the knee and back, within 15 %."""
    checked = validate(of(recorded(capture)))
    assert checked.refused is None
    assert set(checked.error) == {"ttft_p50_s", "ttft_p99_s", "per_s"} and max(map(abs, checked.error.values())) < 0.15


def test_a_prefill_worker_more_is_what_a_backlog_needs(recorded: Recorded) -> None:
    """The recording is bound by prefill: another worker halves the wait, a decode worker does not, nor does routing to the only one."""
    trace = of(recorded("cap-0.9.0-1p2d"))
    checked, kv = validate(trace), Policy("kv")
    was = checked.played.ttft_mean_s
    prefill, decode, spread = (
        ask(trace, checked, cluster, policy)
        for cluster, policy in ((more(trace.cluster, 1), kv), (more(trace.cluster, 0, 1), kv), (None, parse_policy("round-robin")))
    )
    assert prefill.value and decode.value and spread.value
    assert prefill.value.ttft_mean_s < 0.5 * was
    assert decode.value.ttft_mean_s == pytest.approx(was, rel=0.1) and spread.value.ttft_mean_s == pytest.approx(was, rel=0.1)
    assert all(any(said in text for text in prefill.assumptions) for said in ("closed loop", "worker more is like", "ω ×"))


def test_the_bound_is_below_what_was(recorded: Recorded) -> None:
    """The offline bound is under the recorded mean and above one idle prefill, and says what it is."""
    trace = of(recorded("cap-0.9.0-1p2d"))
    answer = optimum(trace, checked := validate(trace))
    assert answer.bound_s is not None and 0.01 < answer.bound_s <= checked.recorded.ttft_mean_s
    assert any("lower bound" in text for text in answer.assumptions)


def test_nothing_is_answered_by_a_model_that_is_off(recorded: Recorded) -> None:
    """Above 15 % every other question is refused with that error as the reason."""
    trace = of(recorded("cap-0.9.0-1p2d"))
    off = replace(trace, model=replace(trace.model, prefill=replace(trace.model.prefill, base_s=0.2)))
    checked = validate(off)
    assert checked.refused and "ttft_p50_s" in checked.refused
    for answer in (ask(off, checked, more(off.cluster, 1)), ask(off, checked, None, Policy("round-robin")), optimum(off, checked)):
        assert answer.value is None and answer.bound_s is None and answer.refused == checked.refused


def test_refusals_name_what_the_trace_lacks(recorded: Recorded) -> None:
    """Gaps inside, too few requests, one pool, lost requests, unknown placement, unknown sharing: each by its reason."""
    tables = recorded("cap-0.9.0-1p2d")
    some = pa.table({"source": ["nats"], "kind": ["disconnected"], "from": [None], "to": [None], "count": [1], "deployment": [None]})
    with pytest.raises(Refused, match="1 gaps inside"):
        of(tables | {"gaps": some})
    with pytest.raises(Refused, match="need 100"):
        of(tables | {"requests": tables["requests"].slice(0, 50)})
    with pytest.raises(Refused, match="aggregated"):
        of(recorded("aggregated-1.4.2"))
    lost = tables["requests"].set_column(
        tables["requests"].schema.get_field_index("outcome"), "outcome", pa.array(["lost", "finished"] * 280)
    )
    with pytest.raises(Refused, match="were lost"):
        of(tables | {"requests": lost})
    trace = of(tables)
    assert "name a policy" in str(ask(trace, validate(trace), Cluster(2, 1), Policy("recorded")).refused)
    blind = of(tables | {"kv_events": tables["kv_events"].slice(0, 0)})
    assert "cache events" in str(ask(blind, replace(validate(blind), refused=None), Cluster(2, 1), Policy("kv")).refused)


def test_a_span_that_begins_under_load_says_so(recorded: Recorded) -> None:
    """What was under way when the span begins is not in the model, and that is among its assumptions."""
    tables = recorded("cap-0.9.0-1p2d")
    trace = of(tables | {"requests": tables["requests"].slice(300)})
    assert any("empty when the span begins" in note for note in trace.notes)
    assert not any("empty when the span begins" in note for note in of(tables).notes)


def test_without_sizes_prompts_are_alike_and_caches_are_not_asked(recorded: Recorded) -> None:
    """Neither block counts nor cache events: each prompt is one block, nothing is held, it still reproduces the spike, and says so."""
    tables = recorded("spike-0.9.0-1p2d")
    trace = of(tables | {"kv_events": tables["kv_events"].slice(0, 0)})
    assert {(job.blocks, job.hits, job.path) for job in trace.jobs} == {(1, 0, None)}
    assert any("alike" in note for note in trace.notes) and validate(trace).refused is None
    assert ask(trace, validate(trace), Cluster(2, 2), Policy("kv")).refused is not None


def test_gaps_of_another_deployment_are_none_here(recorded: Recorded) -> None:
    """Somebody else's loss does not spoil this trace."""
    other = pa.table({"source": ["nats"], "kind": ["lost"], "from": [None], "to": [None], "count": [1], "deployment": ["elsewhere"]})
    assert len(of(recorded("cap-0.9.0-1p2d") | {"gaps": other}).jobs) == 560


def test_every_prompt_of_the_recordings_is_known_by_its_blocks(recorded: Recorded) -> None:
    """Cache events give the path of nearly all requests, so what another worker would have held can be played."""
    for capture in CAPTURES:
        trace = of(recorded(capture))
        assert trace.shared_known and np.mean([job.path is not None for job in trace.jobs]) > 0.95
