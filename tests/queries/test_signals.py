import gzip
import re
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectors.capture import Reader
from collectors.core import Core
from collectors.importer import feed
from poascope.settings import Settings
from queries.estimators.baseline import read
from queries.estimators.regime import Regime
from queries.memory import Memory, dead_workers, learn, stay
from queries.signals import Anarchy, anarchy, is_silent, judge, pulse
from queries.window import Metrics, Quantile, Requests, Window, from_table, window_at
from store import Store

CAPTURES = Path(__file__).parents[1] / "captures"
VERSIONS = ["0.9.0", "1.6.1"]
T0 = 1_800_000_000.0


@dataclass(frozen=True, slots=True)
class Recording:
    rows: list[dict[str, Any]]
    requests: Requests
    phases: list[float]  # Unix seconds at which C = 8, 128, 8 begin, and the end


@cache
def recording(version: str) -> Recording:
    """A capture through the collector's core, as live; each is read once a session."""
    core, rows, phases = Core(Settings()), [], []
    path = CAPTURES / f"cap-{version}-1p2d.jsonl.gz"
    last = 0.0
    for line in Reader(path):
        rows += core.advance(line.t)
        feed(core, line)
        last = line.t
    with gzip.open(path, "rt") as text:
        phases = [float(m[1]) for raw in text if (m := re.search(r'^\{"t":([0-9.]+),"src":"phase"', raw))]
    return Recording(rows, from_table(core.take()["requests"]), [*phases, last])


@cache
def calibrated(version: str) -> Memory:
    """Curves fitted on every request of the recording: what a reviewer would compute afterwards."""
    requests = recording(version).requests
    return learn(Memory(), requests, float(np.nanmax(requests.finished_at)))


def of_phase(version: str, phase: int) -> Anarchy:
    """The estimate over the requests that arrived in one phase, each of which drains before the next begins."""
    seen = recording(version)
    start, end = seen.phases[phase], seen.phases[phase + 1]
    r = seen.requests
    mine = r.take((r.arrived_at >= start - 0.5) & (r.arrived_at < end - 0.5))
    span = float(np.ceil(np.nanmax(mine.finished_at) - mine.arrived_at.min())) + 1
    until = float(np.ceil(np.nanmax(mine.finished_at)))
    return anarchy(window_at(mine, until, span), mine, calibrated(version), "70b", silent=False)


@pytest.mark.parametrize("version", VERSIONS)
def test_below_the_knee_poa_is_one(version: str) -> None:
    """First phase, C = 8: within 5 % of 1, routing within 1.00–1.10, nothing withheld."""
    a = of_phase(version, 0)
    assert a.poa.withheld is None
    assert a.poa.value == pytest.approx(1, abs=0.05)
    assert a.routing is not None and 1 <= a.routing <= 1.10


@pytest.mark.parametrize("version", VERSIONS)
def test_beyond_the_knee_poa_says_so_and_blames_the_queue(version: str) -> None:
    """C = 128: PoA between 1.4 and 2 with its band above 1.2, no fault of routing; TTFT's at least three times its value before."""
    before, beyond = of_phase(version, 0), of_phase(version, 1)
    assert beyond.poa.value is not None and 1.4 <= beyond.poa.value <= 2.0
    assert beyond.poa.low is not None and beyond.poa.low > 1.2
    assert beyond.routing is not None and 1 <= beyond.routing <= 1.10
    assert before.ttft.value is not None and beyond.ttft.value is not None
    assert beyond.ttft.value >= 3 * before.ttft.value
    lost = beyond.lost
    assert lost and lost.prefill_queue_s is not None and lost.transfer_s is not None
    assert lost.prefill_queue_s > 20 * max(lost.imbalance_s, abs(lost.transfer_s), abs(lost.other_s))


@pytest.mark.parametrize("version", VERSIONS)
def test_live_the_regime_rises_and_falls(version: str) -> None:
    """Second by second: below through the first phase, then saturated, then below again by the end; never unknown."""
    seen = recording(version)
    names = [row["regime"] for row in seen.rows]
    first = [row["regime"] for row in seen.rows if row["ts"] < seen.phases[1]]
    changes = [names[0]] + [b for a, b in pairwise(names) if a != b]
    assert set(first) == {"below"}
    assert changes[0] == changes[-1] == "below"
    assert "saturated" in changes and "unknown" not in changes
    assert len(changes) <= 5


@pytest.mark.parametrize("version", VERSIONS)
def test_live_values_are_honest(version: str) -> None:
    """Before there are 30 requests to fit on, PoA is withheld or hollow and says so; afterwards routing stays within 1.00–1.10."""
    seen = recording(version)
    for row in seen.rows:
        finished = (seen.requests.finished_at <= row["ts"]).sum()
        if finished < 29:  # an event that comes late may be counted a second later
            assert row["poa_withheld"] is not None
        if row["poa_routing"] is not None:
            assert 1 <= row["poa_routing"] <= 1.10
    firm = [r for r in seen.rows if r["poa_withheld"] is None]
    assert len(firm) > 20
    assert all(r["poa_low"] <= r["poa_hat"] <= r["poa_high"] for r in firm)
    assert all(r["poa_hat"] == pytest.approx(r["poa_routing"] * r["poa_temporal"]) for r in firm)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_frozen_estimator_reads_as_the_papers(version: str) -> None:
    """With the papers' uncalibrated 70b curve: near its plateau of 7.47 below the knee, higher beyond it."""
    plateau, beyond = of_phase(version, 0).frozen, of_phase(version, 1).frozen
    assert plateau == pytest.approx(7.47, abs=0.5)
    assert beyond is not None and beyond > 1.2 * plateau


@cache
def columns() -> frozenset[str]:
    with Store.open(":memory:") as store, store.cursor() as cursor:
        return frozenset(name for name, *_ in cursor.execute("DESCRIBE signals").fetchall())


REASON = {
    "inflight": "events", "queued": "events", "arrivals_per_s": "events", "finished_per_s": "events", "ttft_p50_s": "ttft",
    "ttft_p90_s": "ttft", "ttft_p99_s": "ttft", "ttft_p99_censored_s": "ttft|events", "ttft_p99_prometheus_s": "ttft_p99_prometheus",
    "ttft_ewma_s": "ttft_ewma", "itl_p50_s": "itl_p50", "itl_p99_s": "itl_p99", "e2e_p99_s": "e2e", "kv_hit_ratio": "kv_hit_ratio",
    "poa_hat": "poa", "poa_low": "poa", "poa_high": "poa", "poa_frozen": "poa", "poa_ttft": "poa", "poa_routing": "poa",
    "poa_temporal": "poa", "prefill_queue_s": "poa|prefill_queue, transfer", "imbalance_s": "poa", "cache_miss_s": "poa|cache_miss",
    "transfer_s": "poa|prefill_queue, transfer", "other_s": "poa", "knee_inflight": "knee", "headroom_ratio": "knee|events",
    "tau": "tau, omega", "omega": "tau, omega", "mode": "mode",
}  # fmt: skip


def assert_every_none_has_a_reason(row: dict[str, Any]) -> None:
    for name, value in row.items():
        if value is None and name != "poa_withheld":
            assert any(re.match(f"({REASON[name]}): ", note) for note in row["quality"]), (name, row["quality"])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_row_has_the_tables_columns_and_a_reason_for_each_none(version: str) -> None:
    """Exactly the columns of `signals`, each None explained by an entry of `quality`, no NaN anywhere."""
    for row in recording(version).rows:
        assert set(row) == columns()
        assert_every_none_has_a_reason(row)
        assert not [k for k, v in row.items() if isinstance(v, float) and not np.isfinite(v)]
        assert not [k for k, v in row.items() if isinstance(v, np.generic)]


def test_the_same_windows_give_the_same_rows() -> None:
    """Pure: a second pass over the same windows with a new memory gives equal rows; a table's windows do too."""
    requests = recording("0.9.0").requests
    passes = []
    for _ in range(2):
        memory, rows = None, []
        for t in np.arange(np.ceil(requests.arrived_at[0]), requests.arrived_at[0] + 40):
            row, memory = pulse(window_at(requests, float(t), 30.0), memory, Settings())
            rows.append(row)
        passes.append(rows)
    assert passes[0] == passes[1]


# -- made-up windows for what the recordings do not have


def made(count: int = 120, spacing: float = 0.5, burst: int = 3, prefill: bool = True, **changes: Any) -> Requests:
    """Bursts up to T0, one request each `spacing` on average: 0.05 s of prefill in order, then 5 s of decode on two workers in turn."""
    nth = np.arange(count) % burst
    arrived = T0 - 0.01 - spacing * burst * ((count - 1 - np.arange(count)) // burst)
    done = arrived + 0.05 * (nth + 1)
    r = Requests(
        request_id=np.array([f"r{i}" for i in range(count)], dtype=object),
        arrived_at=arrived,
        prefill_done_at=done if prefill else np.full(count, np.nan),
        decode_started_at=done if prefill else arrived,
        first_token_at=done + 0.02,
        finished_at=done + 5,
        prefill=np.zeros(count, dtype=np.int64) if prefill else np.full(count, -1),
        decode=1 + np.arange(count) % 2,
        prefill_inflight=nth.astype(float) if prefill else np.full(count, np.nan),
        decode_inflight=np.full(count, 2.5 / spacing),
        input_blocks=np.full(count, 8.0),
        overlap_blocks=np.full(count, 2.0),
        lost=np.zeros(count, dtype=bool),
        workers=((2**64 - 1, 0), (2**64 - 2, 0), (2**64 - 3, 0)),
    )
    return replace(r, **changes)


def row_at(requests: Requests, t: float = T0, **changes: Any) -> dict[str, Any]:
    window = replace(window_at(requests, t, 30.0), events_as_of=t, **changes)
    row, _ = pulse(window, None, Settings())
    assert_every_none_has_a_reason(row)
    return row


def test_counts_and_rates_by_hand() -> None:
    """Three each 1.5 s: 21 in the last 10 s, 12 in flight (3 of them just come and waiting), TTFT 70, 120 and 170 ms, 2 of 8 blocks hit."""
    row = row_at(made())
    assert (row["inflight"], row["queued"], row["arrivals_per_s"], row["finished_per_s"]) == (12, 3, 2.1, 2.1)
    assert [row["ttft_p50_s"], row["ttft_p99_s"], row["e2e_p99_s"]] == pytest.approx([0.12, 0.17, 5.15])
    assert row["kv_hit_ratio"] == 0.25


def test_a_calm_deployment_has_a_poa_and_no_knee() -> None:
    """Prefill always found empty: what is unqueued is known, so PoA is 1; a slope is not, so the knee is withheld."""
    row = row_at(made(burst=1, decode_inflight=np.arange(120) % 5 + 3.0))
    assert row["poa_hat"] == pytest.approx(1, abs=0.01)
    assert row["poa_withheld"] is None
    assert row["knee_inflight"] is None
    assert "knee: prefill seen at 1 loads < 3" in row["quality"]


def test_nothing_heard_is_unknown_and_not_zero() -> None:
    """Before the first event every number is None with a reason, and the regime unknown."""
    nothing = made(0)
    row, _ = pulse(Window("d", T0, 30.0, nothing, nothing, Metrics()), None, Settings())
    assert_every_none_has_a_reason(row)
    assert row["regime"] == "unknown"
    assert {k for k, v in row.items() if v is not None} == {"ts", "deployment", "poa_n", "poa_withheld", "regime", "quality"}
    assert row["poa_n"] == 0


def test_no_traffic_holds_the_regime_and_gives_no_poa() -> None:
    """A minute after the last request: counts are a real zero, PoA null with n = 0, the regime its last one and marked."""
    requests = made()
    _, memory = pulse(window_at(requests, T0 + 1, 30.0), None, Settings())
    row, _ = pulse(window_at(requests, T0 + 60, 30.0), memory, Settings())
    assert (row["inflight"], row["arrivals_per_s"], row["poa_n"], row["poa_hat"]) == (0, 0, 0, None)
    assert row["regime"] == "below"
    assert "regime: no requests: last state held" in row["quality"]


def test_silence_with_requests_open_is_unknown() -> None:
    """Requests under way and no event for more than 15 s: regime unknown, rates None, PoA hollow."""
    requests = made()
    window = replace(window_at(requests, T0, 30.0), events_as_of=T0 - 16)
    row, _ = pulse(window, None, Settings())
    assert_every_none_has_a_reason(row)
    assert (row["regime"], row["arrivals_per_s"], row["poa_withheld"]) == ("unknown", None, "events are stale")
    assert pulse(replace(window, events_as_of=T0 - 15), None, Settings())[0]["regime"] == "below"


def test_requests_that_no_event_tells_of_are_not_none() -> None:
    """Engines work and no routing is heard: counts are unknown, with the window's reason, and not zero."""
    said = "events: requests run but no routing is heard; start the frontends with --router-replica-sync"
    row = row_at(made(0), notes=(said,))
    assert [row[name] for name in ("inflight", "queued", "arrivals_per_s", "finished_per_s")] == [None] * 4
    assert said in row["quality"]


def test_transfer_is_from_prefill_done_to_decode_start() -> None:
    """0.3 s between the pools for each request that finished in the window."""
    r = made()
    later = replace(r, decode_started_at=r.prefill_done_at + 0.3, first_token_at=r.first_token_at + 0.3, finished_at=r.finished_at + 0.3)
    row = row_at(later)
    assert row["transfer_s"] == pytest.approx(0.3 * row["poa_n"])


def test_lost_requests_are_no_load() -> None:
    """Sixty lost ones, long ago, on workers that live: the average in flight, and all of PoA, are as without them."""
    r = made(spacing=2.0)
    lost = np.arange(120) < 60
    with_lost = replace(r, lost=lost, finished_at=np.where(lost, np.nan, r.finished_at))
    a, b = row_at(with_lost), row_at(r.take(~lost))
    assert [a[k] for k in a if k.startswith("poa")] == [b[k] for k in b if k.startswith("poa")]


def test_gaps_make_poa_hollow() -> None:
    """Events lost in the window: the value stays to be drawn hollow, with its reason."""
    row = row_at(made(), gaps=3)
    assert row["poa_hat"] is not None
    assert row["poa_withheld"] == "3 gaps in the window"


def test_few_in_flight_make_poa_hollow() -> None:
    """One request each 2 s keeps two or three in flight: hollow, as the papers' artefact at 1–4 in flight asks."""
    withheld = row_at(made(spacing=2.0))["poa_withheld"]
    assert re.fullmatch(r"[23]\.\d in flight on average < 5", withheld)


def test_the_frozen_estimate_of_too_few_is_none() -> None:
    """One request each 5 s leaves six finished in the window: there is no frozen estimate, which could not be drawn hollow."""
    row = row_at(made(spacing=5.0))
    assert row["poa_frozen"] is None
    assert f"poa_frozen: {row['poa_n']} finished < 8" in row["quality"]


def test_an_aggregated_deployment_has_one_pool() -> None:
    """No prefill stage: PoA and knee from the one pool; the prefill queue and the transfer are None and say why."""
    requests = made(prefill=False, spacing=0.25)
    row = row_at(requests)
    assert row["poa_hat"] == pytest.approx(1, abs=0.05)
    assert (row["prefill_queue_s"], row["transfer_s"]) == (None, None)
    assert row["poa_frozen"] == pytest.approx(5.1 / 0.7, rel=0.05)  # the preset's decode curve
    assert row["imbalance_s"] is not None


def test_a_dead_worker_does_not_look_idle() -> None:
    """A worker whose newest request was lost leaves the roster, so the others are not blamed for carrying all the load; one that lost
    a request and was routed to since stays."""
    place = np.where(np.arange(120) < 20, 1, 2)
    gone = made(decode=place, lost=np.arange(120) == 19)
    assert dead_workers(gone) == {1}
    assert stay(gone, "decode", dead_workers(gone))[0].workers == 1
    assert stay(gone, "decode", frozenset())[0].workers == 2
    assert dead_workers(made(decode=place, lost=np.arange(120) == 18)) == frozenset()


def test_a_worker_that_left_its_last_prefill_undone_is_dead() -> None:
    """It was killed and another took its place: one worker, not two, shares the load. Alone in its pool it stays."""
    r = made(prefill_done_at=np.where(np.arange(120) == 59, np.nan, made().prefill_done_at))
    replaced = replace(r, prefill=np.where(np.arange(120) < 60, 0, 3), workers=(*r.workers, (7, 0)))
    assert dead_workers(replaced) == {0}
    assert dead_workers(replaced.take(np.arange(120) < 60)) == frozenset()


def test_a_ceiling_is_passed_on_as_a_lower_bound() -> None:
    """A quantile from an open bucket keeps its value and is marked; what metrics do not say stays None."""
    row = row_at(made(), metrics=Metrics(as_of=T0, itl_p99=Quantile(2.0, at_least=True), ttft_p99=Quantile(0.4)))
    assert (row["itl_p99_s"], row["ttft_p99_prometheus_s"], row["itl_p50_s"]) == (2.0, 0.4, None)
    assert "itl_p99: at least" in row["quality"]


def follow(requests: Requests, seconds: int, every: int = 1, after: float = 0.0) -> list[dict[str, Any]]:
    """The rows of the `seconds` up to T0 + after."""
    memory, rows = None, []
    for t in T0 + after - np.arange(0, seconds, every)[::-1]:
        row, memory = pulse(replace(window_at(requests, float(t), 30.0), events_as_of=float(t)), memory, Settings())
        assert_every_none_has_a_reason(row)
        rows.append(row)
    return rows


def cut(requests: Requests, which: np.ndarray) -> Requests:
    """These ended 0.4 s after decode began: cut off, or as short as if."""
    return replace(requests, finished_at=np.where(which, requests.decode_started_at + 0.4, requests.finished_at))


BUSY = {"decode_inflight": np.arange(240) % 5 + 3.0}


def test_cut_streams_turn_no_curve_over() -> None:
    """A hundred streams of 5 s, then five seconds of streams cut after 0.4 s, then as before: knee and PoA stay, and while more than one in
    twenty of the window was cut, PoA is hollow and says so."""
    r = made(240, **BUSY)
    fell = (r.arrived_at > T0 - 60) & (r.arrived_at < T0 - 55)
    rows = follow(cut(r, fell), 100)
    knees = [row["knee_inflight"] for row in rows if row["knee_inflight"] is not None]
    assert max(knees) < 1.05 * min(knees)
    hollow = [row["poa_withheld"] for row in rows if row["ts"] > T0 - 50 and row["ts"] < T0 - 30]
    assert all(re.fullmatch(r"\d+ of \d+ ended short: cut streams or very short answers", h) for h in hollow)
    assert rows[-1]["poa_withheld"] is None
    assert rows[-1]["poa_hat"] == pytest.approx(rows[30]["poa_hat"], rel=0.05)


def test_answers_that_stay_short_become_the_usual() -> None:
    """After five minutes of nothing but short answers they are what a request costs: the fit starts anew and PoA is near 1 again."""
    r = made(1200, decode_inflight=np.arange(1200) % 5 + 3.0, spacing=0.5)
    rows = follow(cut(r, r.arrived_at > T0 - 400), 480, every=5)
    during = [row["poa_withheld"] for row in rows if T0 - 360 < row["ts"] < T0 - 110]
    assert all("ended short" in h for h in during)
    assert "ended short" not in (rows[-1]["poa_withheld"] or "")
    assert rows[-1]["poa_hat"] == pytest.approx(1, abs=0.25)


def test_what_had_no_prefill_of_its_pool_is_no_sample() -> None:
    """The pool is down for 20 s and decode workers prefill themselves, slowly: the curves stay, PoA is hollow, the knee withheld, each with
    the reason."""
    r = made(240, **BUSY)
    down = (r.arrived_at > T0 - 60) & (r.arrived_at < T0 - 40)
    led_past = replace(
        r,
        prefill=np.where(down, -1, r.prefill),
        prefill_done_at=np.where(down, np.nan, r.prefill_done_at),
        first_token_at=r.first_token_at + 3.0 * down,
        finished_at=r.finished_at + 9.0 * down,
    )
    rows = follow(led_past, 100, after=8.0)
    amid = next(row for row in rows if row["ts"] == T0 - 30)
    assert re.fullmatch(r"\d+ of \d+ had no prefill from its pool", amid["poa_withheld"])
    assert f"knee: {amid['poa_withheld']}" in amid["quality"]
    assert rows[-1]["poa_withheld"] is None
    assert rows[-1]["poa_hat"] == pytest.approx(1, abs=0.1)


def regimes(requests: Requests, seconds: int) -> list[str]:
    """The regime at each whole second of the last ones up to T0."""
    return [row["regime"] for row in follow(requests, seconds)]


def stuck(requests: Requests, positions: list[int]) -> Requests:
    """These never got past prefill: their marks were lost, or they hang."""
    never = np.isin(np.arange(len(requests)), positions)
    times = ("prefill_done_at", "decode_started_at", "first_token_at", "finished_at")
    return replace(requests, **{name: np.where(never, np.nan, getattr(requests, name)) for name in times})


def test_one_stuck_request_is_no_saturation() -> None:
    """Two requests a second at 0.1 s and one that waits for 50 s: below throughout, although it is the P99 of every 5 s."""
    assert set(regimes(stuck(made(), [19]), 40)) == {"below"}


def test_one_slow_answer_is_no_saturation() -> None:
    """Nor does one that is answered after 8 s, when the answer comes."""
    r = made()
    late = np.arange(120) == 80
    times = ("prefill_done_at", "decode_started_at", "first_token_at", "finished_at")
    assert set(regimes(replace(r, **{name: getattr(r, name) + 8.0 * late for name in times}), 40)) == {"below"}


def test_a_queue_is_a_saturation_before_it_is_served() -> None:
    """All those of the last 15 s wait: the regime rises within them, with no first token to see it by."""
    names = regimes(stuck(made(), list(range(90, 120))), 25)
    assert names[0] == "below"
    assert names[-1] == "saturated"


def test_the_only_request_that_waits_is_all_there_is_to_judge() -> None:
    """With nobody else in the window, one that waits decides."""
    alone = replace(stuck(made(1), [0]), arrived_at=np.array([T0 - 20.0]))
    assert regimes(alone, 15)[-1] == "saturated"


def sourced(source: str, metrics: Metrics, events_as_of: float | None, end: float = T0, regime: Regime | None = None) -> Regime:
    """One step by a source on a calm window, with these metrics and events as new as said."""
    window = replace(window_at(made(), end, 30.0), metrics=metrics, events_as_of=events_as_of)
    return judge(regime or Regime(), window, "70b", is_silent(window), source)


@pytest.mark.parametrize(("source", "metrics_at", "events_at", "name"), [
    ("prometheus", T0 - 5, None, "transition"),
    ("prometheus", T0 - 16, T0, "unknown"),
    ("prometheus", None, T0, "unknown"),
    ("censored", None, T0, "below"),
    ("events", None, T0, "below"),
    ("censored", T0, T0 - 16, "unknown"),
    ("events", T0, T0 - 16, "unknown"),
])  # fmt: skip
def test_a_source_is_unknown_when_it_is_silent_itself(source: str, metrics_at: float | None, events_at: float | None, name: str) -> None:
    """Three missed steps of what it reads make it unknown, whatever the others say; the bucket's bound counts as it stands."""
    metrics = Metrics(as_of=metrics_at, ttft_p99=Quantile(4.64, at_least=True)) if metrics_at else Metrics()
    assert sourced(source, metrics, events_at).name == name


def test_without_requests_the_buckets_hold_the_state() -> None:
    """Fresh metrics without traffic are no P99: the last state stands, and says so."""
    held = sourced("prometheus", Metrics(as_of=T0), T0, regime=Regime("transition", 0.5, T0 - 5, T0 - 60))
    assert (held.name, held.held) == ("transition", "no requests: last state held")


def test_only_the_censored_source_sees_those_who_wait() -> None:
    """All of the last 15 s wait: by first tokens there is nothing to judge by, and the state is held."""
    queue = stuck(made(), list(range(90, 120)))
    names = {}
    for source in ("censored", "events"):
        regime = Regime()
        for k in range(30):
            window = window_at(queue, T0 - 15 + k / 2, 30.0)
            regime = judge(regime, window, "70b", is_silent(window), source)
        names[source] = regime.name
    assert names == {"censored": "saturated", "events": "below"}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_knee_is_where_throughput_ends(version: str) -> None:
    """On the recordings N* times 1/D is what was served at most: within 15 % of the best 10 s, by Little's law, once there was a queue."""
    rows = recording(version).rows
    busy = [r for r in rows if r["knee_inflight"] and (r["queued"] or 0) > 8]
    best = max(r["finished_per_s"] for r in rows if r["finished_per_s"] is not None)
    curves = calibrated(version).curves
    unqueued = float(curves["prefill"].at(1)) + float(curves["decode"].at(1))
    assert busy[-1]["knee_inflight"] / unqueued == pytest.approx(best, rel=0.25)


def test_with_preset_learn_the_regime_waits_for_thresholds_of_its_own() -> None:
    """Unknown, and saying how far it is, until two minutes were quiet; then by what was learnt, which the row tells each second."""
    requests, memory, rows = made(count=600), None, []
    for t in T0 - np.arange(0, 250, 1)[::-1]:
        row, memory = pulse(replace(window_at(requests, float(t), 30.0), events_as_of=float(t)), memory, Settings(preset="learn"))
        assert_every_none_has_a_reason(row)
        rows.append(row)
    assert rows[40]["regime"] == "unknown"
    assert any(note.startswith("regime: thresholds: not learnt yet, ") for note in rows[40]["quality"])
    learnt = next(filter(None, map(read, rows[-1]["quality"])))
    assert rows[-1]["regime"] == "below"
    assert learnt == pytest.approx((0.34, 2.04), rel=0.02)  # 2 and 12 times the third of each burst: 0.17 s
