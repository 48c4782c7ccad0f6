import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queries.estimators.latency import Curve
from queries.whatif.arrivals import Arrivals
from queries.whatif.model import Cluster, Job, Model, Prefill
from queries.whatif.policy import Policy
from queries.whatif.simulate import Run, simulate

FLAT = Curve(5.0, 0.0)
ONE_SECOND = Model(Prefill(0.0, 1.0), FLAT)


def job(blocks: int = 1, path: tuple[int, ...] | None = None, hits: int = 0, work: float = 1.0, prefill: int = 0, decode: int = 0) -> Job:
    return Job(blocks, path, hits, work, 0.0, 0.0, prefill, decode)


def open_(*at_s: float) -> Arrivals:
    return Arrivals("open", np.array(at_s), np.empty(0), np.empty(0), at_s[-1], "")


def closed(joins: list[float], leaves: list[float], until_s: float, think_s: float = 0.0) -> Arrivals:
    return Arrivals("closed", np.array(joins), np.array(leaves), np.array([think_s]), until_s, "")


def test_a_prefill_worker_serves_in_order() -> None:
    """Three at once on one worker of 1 s each wait 0, 1 and 2 s; decode is alone and takes its curve."""
    run = simulate([job()] * 3, open_(0, 0, 0), ONE_SECOND, Cluster(1, 1), Policy("recorded"))
    assert run.prefill_done.tolist() == [1, 2, 3]
    assert run.finished.tolist() == [6, 7, 8]


def test_early_answers_leave_the_worker_busy() -> None:
    """Where the answer comes 0.1 s after the start of a step of 1 s, the next step still begins at its end."""
    model = Model(Prefill(0.0, 1.0, early_s=0.1), FLAT)
    assert simulate([job()] * 3, open_(0, 0, 0), model, Cluster(1, 1), Policy("recorded")).prefill_done.tolist() == [0.1, 1.1, 2.1]


def test_a_step_takes_what_waits_up_to_its_budget() -> None:
    """Budget 3, blocks of 2: the first goes alone, then one at a time, for two would be 4; blocks of 1 go three at a time."""
    model = Model(Prefill(1.0, 0.0, budget_blocks=3), FLAT)
    at = open_(0, 0.5, 0.5, 0.5, 0.5)
    assert simulate([job(2)] * 5, at, model, Cluster(1, 1), Policy("recorded")).prefill_done.tolist() == [1, 2, 3, 4, 5]
    assert simulate([job(1)] * 5, at, model, Cluster(1, 1), Policy("recorded")).prefill_done.tolist() == [1, 2, 2, 2, 3]


def test_decode_is_shared_by_all_on_the_worker() -> None:
    """f(1) = 1 s, f(2) = 2 s: two that start together end at 2 s; a lone third of half the work takes 0.5 s."""
    model = Model(Prefill(0.0, 0.0), Curve(1.0, 1.0))
    run = simulate([job(), job(), job(work=0.5)], open_(0, 0, 10), model, Cluster(1, 1), Policy("recorded"))
    assert run.finished.tolist() == pytest.approx([2, 2, 10.5])


def test_decode_ends_on_the_beat_of_its_steps() -> None:
    """With steps of 0.4 s a stay of 1 s ends at 1.2 or 0.8 s, the nearest beat, and never before it began."""
    model = Model(Prefill(0.0, 0.0), Curve(1.0, 0.0), step_s=0.4)
    assert simulate([job(work=1.1)], open_(0), model, Cluster(1, 1), Policy("recorded")).finished.tolist() == pytest.approx([1.2])


def test_blocks_held_are_not_computed_again() -> None:
    """The second of the same prompt computes only its last, partial block; with room for one block nothing is left of the first."""
    jobs = [job(4, (1, 2, 3)), job(4, (1, 2, 3)), job(4, (1, 2, 9))]
    assert simulate(jobs, open_(0, 10, 20), ONE_SECOND, Cluster(1, 1), Policy("recorded")).computed.tolist() == [4, 1, 2]
    tight = Model(ONE_SECOND.prefill, FLAT, cache_blocks=1)
    assert simulate(jobs, open_(0, 10, 20), tight, Cluster(1, 1), Policy("recorded")).computed.tolist() == [4, 4, 4]


def test_policies_place_as_they_say() -> None:
    """Round robin takes turns; least loaded the idle one; a large ω follows the cache into a queue, ω 0 does not."""
    jobs = [job(4, (1, 2, 3)) for _ in range(4)]
    at = open_(0, 5, 5.1, 5.2)

    def places(policy: Policy) -> list[int]:
        return simulate(jobs, at, ONE_SECOND, Cluster(2, 1), policy).prefill.tolist()

    assert places(Policy("round-robin")) in ([0, 1, 0, 1], [1, 0, 1, 0])
    assert len(set(places(Policy("kv", 0.0, 50.0)))) == 1
    assert sorted(places(Policy("least-loaded"))) == [0, 0, 1, 1]
    assert len(set(places(Policy("kv", 0.0, 0.0)))) == 2


def test_a_closed_loop_asks_again_when_it_was_answered() -> None:
    """Two users, 1 s of decode, no thinking, told to go at 2.5 s: six requests, never more than two at once."""
    model = Model(Prefill(0.0, 0.0), Curve(1.0, 0.0))
    run = simulate([job()] * 2, closed([0, 0], [2.5, 2.5], 100.0), model, Cluster(1, 1), Policy("recorded"))
    assert run.arrived.tolist() == [0, 0, 1, 1, 2, 2]
    thinking = simulate([job()] * 2, closed([0, 0], [], 4.0, think_s=1.0), model, Cluster(1, 1), Policy("recorded"))
    assert thinking.arrived.tolist() == [0, 0, 2, 2, 4, 4]


def test_a_second_lap_has_new_prompts_with_the_old_shared_beginnings() -> None:
    """A loop that is faster than life starts over; what only one prompt had is not a hit then, what two shared is."""
    jobs = [job(3, (1, 2)), job(3, (1, 3))]
    run = simulate(jobs, closed([0], [50.0], 100.0), Model(Prefill(0.0, 1.0), Curve(1.0, 0.0)), Cluster(1, 1), Policy("recorded"))
    assert run.computed.tolist()[:4] == [3, 2, 2, 2]
    assert run.job.tolist()[:4] == [0, 1, 0, 1]


times = st.lists(st.integers(0, 60), min_size=1, max_size=40).map(sorted)


@given(times, st.integers(1, 4), st.integers(1, 3), st.sampled_from(["round-robin", "least-loaded", "kv"]), st.integers(0, 3))
def test_conserved_and_deterministic(at: list[int], prefill: int, decode: int, kind: str, seed: int) -> None:
    """Whoever comes is served once, in time's order; the same seed gives the same run."""
    jobs = [job(3 + k % 3, (k % 4, 10 + k), work=1 + k % 2) for k in range(len(at))]
    arrivals, policy = open_(*map(float, at)), Policy(kind, 0.5, 1.0)
    run, again = (simulate(jobs, arrivals, Model(Prefill(0.1, 0.5), Curve(2.0, 0.1)), Cluster(prefill, decode), policy, seed) for _ in "ab")
    assert run.job.tolist() == list(range(len(at)))
    assert (
        (run.arrived < run.prefill_done).all() and (run.prefill_done <= run.decode_started).all() and (run.first_token < run.finished).all()
    )
    assert (run.computed >= 1).all()
    for name in Run.__dataclass_fields__:
        assert getattr(run, name).tolist() == getattr(again, name).tolist()


@given(times, st.integers(1, 3))
def test_more_workers_are_never_worse_in_order_without_caches(at: list[int], workers: int) -> None:
    """Requests alike, dealt in turn to queues in order: with one worker more nobody waits longer in total."""
    total = []
    for count in (workers, workers + 1):
        run = simulate([job()] * len(at), open_(*map(float, at)), ONE_SECOND, Cluster(count, 1), Policy("least-loaded"))
        total.append(float((run.prefill_done - run.arrived).sum()))
    assert total[1] <= total[0] + 1e-9


@given(st.integers(1, 4), st.integers(5, 30))
def test_below_capacity_and_evenly_spaced_nobody_waits(workers: int, count: int) -> None:
    """λ = 0.9 of what the workers can do, evenly: no queue anywhere."""
    at = np.arange(count) / (0.9 * workers)
    run = simulate([job()] * count, open_(*at), ONE_SECOND, Cluster(workers, 1), Policy("round-robin"))
    assert run.prefill_done - run.arrived == pytest.approx(np.ones(count))


@given(times, st.permutations([0, 1, 2]))
def test_renaming_workers_changes_nothing(at: list[int], names: list[int]) -> None:
    """The recorded placement under other names gives the same seconds."""
    places = [k * 7 % 3 for k in range(len(at))]
    runs = [
        simulate([job(2, (k % 3, k), prefill=name(p), decode=name(p)) for k, p in enumerate(places)], open_(*map(float, at)),
                 Model(Prefill(0.1, 0.4), Curve(1.0, 0.3)), Cluster(3, 3), Policy("recorded"))
        for name in (lambda p: p, lambda p: names[p])
    ]  # fmt: skip
    assert runs[0].finished.tolist() == pytest.approx(runs[1].finished.tolist())
