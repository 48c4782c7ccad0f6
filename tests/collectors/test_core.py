"""The whole pipeline on recordings of real clusters, and on damaged ones."""

import json
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.capture import Line, Reader
from collectors.core import Core
from collectors.importer import feed
from collectors.rows import SCHEMAS
from collectors.wire import Added, Message, decode, parse_subject
from poascope.settings import Profile, Settings
from store import Store
from tests.conftest import CAPTURES

COUNTS = {"0.9.0": 560, "1.6.1": 613}
START = 1_700_000_000


def play(core: Core, lines: Any) -> dict[str, pa.Table]:
    for line in lines:
        core.advance(line.t)
        feed(core, line)
    core.finish()
    return core.take()


def recorded(name: str) -> list[Line]:
    return list(Reader(CAPTURES / f"{name}.jsonl.gz"))


def clients(path: Path) -> dict[str, dict[str, Any]]:
    """What the load generator itself saw, by request id."""
    import gzip

    with gzip.open(path, "rt") as file:
        said = [json.loads(text) for text in file if '"src":"client"' in text]
    return {line["id"].removeprefix("chatcmpl-"): line for line in said if line.get("id")}


def seconds(table: pa.Table, column: str) -> list[float | None]:
    values = table[column].cast(pa.int64()).to_pylist()
    return [None if v is None else v / 1e6 for v in values]


def test_every_request_of_a_recording_is_found_with_its_workers(capture: Path) -> None:
    """560 of 560 and 613 of 613 are finished, on the workers that the client was told, with the hit rate that the client was told."""
    requests = play(Core(Settings()), Reader(capture))["requests"]
    truth = clients(capture)
    assert requests.num_rows == len(truth) == COUNTS[capture.name.split("-")[1]]
    for row in requests.to_pylist():
        told = truth[row["request_id"]]["nvext"]
        assert row["outcome"] == "finished"
        assert row["prefill_worker"] == told["worker_id"]["prefill_worker_id"]
        assert row["decode_worker"] == told["worker_id"]["decode_worker_id"]
        assert row["overlap_blocks"] / row["input_blocks"] == pytest.approx(told["timing"]["kv_hit_rate"])
    for column in requests.column_names:
        optional = column in ("tau", "omega", "regime")
        assert optional or requests[column].null_count == 0, column


def test_ttft_agrees_with_the_client(capture: Path) -> None:
    """TTFT from events is within 50 ms (P50) and 100 ms (P99) of the client's clock."""
    requests = play(Core(Settings()), Reader(capture))["requests"]
    truth = clients(capture)
    ids = requests["request_id"].to_pylist()
    ttft = np.array(seconds(requests, "first_token_at")) - np.array(seconds(requests, "arrived_at"))
    error = np.abs(ttft - [truth[i]["first"] - truth[i]["sent"] for i in ids])
    assert np.percentile(error, 50) <= 0.050 and np.percentile(error, 99) <= 0.100


def test_a_healthy_recording_shows_no_loss_and_nothing_unknown(capture: Path) -> None:
    """Repeated and reordered counters of a healthy bus raise no alarm, and every message is understood."""
    core = Core(Settings())
    tables = play(core, Reader(capture))
    assert "gaps" not in tables
    assert not [name for name in core.counts() if name.startswith(("lost", "unreadable", "requests:"))]


@pytest.mark.parametrize("name", ["cap-0.9.0-1p2d", "cap-1.6.1-1p2d"])
def test_deleted_messages_are_counted_exactly(name: str) -> None:
    """40 messages taken out of a recording are 40 in `gaps`, by subject."""
    lines = recorded(name)
    rng = random.Random(5)
    topics = ("active_sequences_events", "kv_metrics", "forward-pass-metrics", "kv-hit-rate")
    by_subject: dict[str, list[int]] = defaultdict(list)
    for i, line in enumerate(lines):
        if line.subject and parse_subject(line.subject).topic in topics:
            by_subject[line.subject].append(i)
    # Not at the edges: before the first and after the last message of a publisher nobody can tell.
    gone = [i for found in by_subject.values() if len(found) > 1000 for i in rng.sample(found[200:-200], 10)]
    tables = play(Core(Settings()), [line for i, line in enumerate(lines) if i not in set(gone)])
    expected = Counter(f"events:{lines[i].subject}" for i in gone)
    found: Counter[str] = Counter()
    for row in tables["gaps"].to_pylist():
        assert row["kind"] == "lost" and row["deployment"] == "dynamo"
        found[row["source"]] += row["count"]
    assert found == expected and len(gone) >= 40


def test_a_single_pool_has_no_prefill_columns() -> None:
    """On an aggregated cluster (1.4.2) every request has one worker, the client's, and NULL in the prefill columns."""
    path = CAPTURES / "aggregated-1.4.2.jsonl.gz"
    tables = play(Core(Settings()), Reader(path))
    truth = clients(path)
    requests = tables["requests"].to_pylist()
    assert len(requests) == len(truth) == 54
    for row in requests:
        told = truth[row["request_id"]]["nvext"]
        assert row["decode_worker"] == told["worker_id"]["decode_worker_id"]
        assert row["prefill_worker"] is row["prefill_done_at"] is row["prefill_inflight"] is None
        assert row["decode_started_at"] == row["arrived_at"] and row["outcome"] == "finished"
        assert row["overlap_blocks"] / row["input_blocks"] == pytest.approx(told["timing"]["kv_hit_rate"])
    assert set(tables["workers"]["role"].to_pylist()) <= {None, "aggregated"}


def test_requests_that_a_dying_worker_refuses_are_lost() -> None:
    """On a cluster whose decode worker was killed (1.4.2) requests that never got a token end as lost, and none stays in flight."""
    path = CAPTURES / "decode-worker-killed-1.4.2.jsonl.gz"
    core = Core(Settings())
    requests = play(core, Reader(path))["requests"].to_pylist()
    served = {i for i, c in clients(path).items() if c["status"] == 200}
    outcomes = Counter(r["outcome"] for r in requests)
    assert {r["request_id"] for r in requests if r["outcome"] == "finished"} == served
    assert outcomes["lost"] == 35
    for row in requests:
        assert (row["finished_at"] is None) == (row["first_token_at"] is None) == (row["outcome"] == "lost")
    (deployment,) = core.deployments.values()
    assert not any(deployment.assembler.inflight.values())


def test_requests_on_a_worker_that_vanished_are_lost_and_leave_it() -> None:
    """On 0.9.0 nobody frees what a killed worker held: once it has not reported for 15 s its requests end as lost, and it is gone."""
    path = CAPTURES / "decode-worker-killed-0.9.0.jsonl.gz"
    core = Core(Settings())
    tables = play(core, Reader(path))
    truth = clients(path)
    finished = {r["request_id"] for r in tables["requests"].to_pylist() if r["outcome"] == "finished"}
    assert finished == {i for i, c in truth.items() if c["chunks"] == 129}
    lost = [r for r in tables["requests"].to_pylist() if r["outcome"] == "lost"]
    (gap,) = tables["gaps"].to_pylist()
    assert len(lost) == gap["count"] == 5 and gap["kind"] == "worker gone"
    (worker,) = {r["decode_worker"] for r in lost}
    assert gap["source"] == f"worker:backend:{worker}:0"
    (deployment,) = core.deployments.values()
    assert not any(deployment.assembler.inflight.values()) and ("backend", (worker, 0)) not in deployment.worker_seen


def renamed(lines: list[Line], deployment: str, shift: int) -> list[Line]:
    """The same cluster under another name, with other ids."""
    import msgspec

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                k: (v + shift if k in ("worker_id", "publisher_id", "router_id") and isinstance(v, int) else moved(v))
                for k, v in value.items()
            }
        if isinstance(value, list):
            return [moved(v) for v in value]
        return value

    out = []
    for line in lines:
        if line.subject is None or line.data is None:
            continue
        subject = line.subject.replace("namespace.dynamo.", f"namespace.{deployment}.").replace("-dynamo-", f"-{deployment}-")
        if line.data[:1] == b"{":
            data = json.dumps(moved(json.loads(line.data))).encode()
        else:
            envelope = moved(msgspec.msgpack.decode(line.data))
            envelope["payload"] = msgspec.msgpack.encode(moved(msgspec.msgpack.decode(envelope["payload"])))
            data = msgspec.msgpack.encode(envelope)
        out.append(Line(line.t, "nats", subject=subject, data=data))
    return out


def test_two_deployments_at_once_are_kept_apart() -> None:
    """Two clusters on one bus give each the rows it gives alone."""
    lines = [line for line in recorded("cap-0.9.0-1p2d") if line.src == "nats"][:4000]
    other = renamed(lines, "staging", 1)
    both = sorted([*lines, *other], key=lambda line: line.t)
    tables = play(Core(Settings()), both)
    single = play(Core(Settings()), lines)
    for table in ("requests", "workers", "kv_events", "signals"):
        rows = tables[table].to_pylist()
        assert [r for r in rows if r["deployment"] == "dynamo"] == single[table].to_pylist(), table
        assert len([r for r in rows if r["deployment"] == "staging"]) == single[table].num_rows
    ids = {r["decode_worker"] for r in tables["requests"].to_pylist()}
    assert len(ids) == 2 * len(set(single["requests"]["decode_worker"].to_pylist()))


def test_only_the_named_namespaces_are_watched() -> None:
    """With `namespaces` set, others are counted and not shown."""
    core = Core(Settings(namespaces=("staging",)))
    play(core, recorded("aggregated-1.4.2"))
    assert not core.deployments and core.counts()["other namespace:active_sequences_events"] == 162


def test_a_pulse_each_second_of_event_time(capture: Path) -> None:
    """Each whole second between the first and the last message has one row of `signals`, whatever its distance to the messages."""
    tables = play(Core(Settings()), Reader(capture))
    ts = seconds(tables["signals"], "ts")
    assert ts == [(ts[0] or 0) + i for i in range(len(ts))] and len(ts) >= 68


def test_kv_events_are_stored_once() -> None:
    """Each 0.9 cache event is heard three times and stored once; the copies are counted."""
    core = Core(Settings())
    tables = play(core, Reader(CAPTURES / "cap-0.9.0-1p2d.jsonl.gz"))
    assert tables["kv_events"].num_rows == 560 and core.counts()["copies:kv-events"] == 1120


def test_a_lost_kv_event_shows_though_it_has_no_envelope() -> None:
    """On 0.9 one copy more or less is no loss; an event of which every copy is gone is one."""
    lines = recorded("cap-0.9.0-1p2d")
    kept = [line for line in lines if not (line.data and b'"event_id":77,' in line.data)]
    first = next(i for i, line in enumerate(lines) if line.data and b'"event_id":78,' in line.data)
    assert len(lines) - len(kept) == 3
    (gap,) = play(Core(Settings()), kept)["gaps"].to_pylist()
    assert (gap["source"], gap["kind"], gap["count"]) == ("events:kv-events", "lost", 1)
    assert "gaps" not in play(Core(Settings()), lines[:first] + lines[first + 1 :])


def test_a_gap_marks_the_windows_it_touches() -> None:
    """What the edge reports as not heard is a row, and the pulses of the next 30 s say so and withhold their estimate."""
    core = Core(Settings())
    lines = recorded("cap-0.9.0-1p2d")
    start = lines[0].t
    for line in lines:
        core.advance(line.t)
        if line.t > start + 25 and not core.rows.dropped and "told" not in core.counts():
            core.gap("nats", "disconnected", line.t - 2, line.t, None)
            core.count("told", "")
        feed(core, line)
    signals = core.take()["signals"].to_pylist()
    marked = [any("gap" in note for note in row["quality"]) for row in signals]
    assert not any(marked[:25]) and all(marked[25:54]) and not any(marked[57:])
    assert all(row["poa_withheld"] for row, is_marked in zip(signals, marked, strict=True) if is_marked)


def test_load_samples_keep_what_a_null_does_not_say() -> None:
    """Router and worker each speak for themselves: a field that one leaves out is not wiped by the other."""
    tables = play(Core(Settings()), Reader(CAPTURES / "aggregated-1.4.2.jsonl.gz"))
    sources: dict[str, set[str]] = defaultdict(set)
    for row in tables["workers"].to_pylist():
        sources[row["source"]] |= {
            k for k in ("inflight", "active_decode_blocks", "kv_used_blocks", "running", "step_s") if row[k] is not None
        }
    assert sources == {
        "events": {"inflight"},
        "router": {"active_decode_blocks"},
        "worker": {"kv_used_blocks"},
        "step": {"running", "step_s"},
    }


def test_tables_fit_the_store(tmp_path: Path) -> None:
    """What the core hands out has the columns of the schema, and goes into a store."""
    with Store.open(tmp_path / "s.duckdb") as store, store.cursor() as cursor:
        for table, schema in SCHEMAS.items():
            described = cursor.execute(f'DESCRIBE "{table}"').fetchall()
            assert [row[0] for row in described] == schema.names
        store.append_all(play(Core(Settings()), Reader(CAPTURES / "aggregated-1.4.2.jsonl.gz")))
        assert cursor.execute("SELECT count(*) FROM requests").fetchone() == (54,)


def test_routers_are_tied_to_profiles(capture: Path) -> None:
    """τ and ω of each request are those of the frontend whose router routed it: named by metrics on 1.x, found by counters on 0.9."""
    profiles = (Profile("frontend", 0.0, 1.0, "http://a"), Profile("frontend2", 0.7, 1.0, "http://b"))
    requests = play(Core(Settings(profiles=profiles)), Reader(capture))["requests"]
    known = [(r["tau"], r["omega"]) for r in requests.to_pylist() if r["tau"] is not None]
    assert set(known) == {(0.0, 1.0)} and len(known) > 0.8 * requests.num_rows


def test_what_a_router_says_of_a_request_is_under_what_it_was_routed(capture: Path) -> None:
    """Request by request, though the word comes after the routing or even the end; the newest are observed. Nonsense is counted."""
    core, told, words = Core(Settings()), dict[str, tuple[float, float]](), list[tuple[float, bytes]]()
    signals: list[dict[str, object]] = []
    for line in Reader(capture):
        signals += core.advance(line.t)
        feed(core, line)
        message = decode(line.subject or "", line.data or b"") if line.src == "nats" else None
        for event in message.events if isinstance(message, Message) else ():
            if isinstance(event, Added) and event.request_id not in told:
                late_s = 7.0 if len(told) % 10 == 9 else 0.0
                told[event.request_id] = (0.5, float(len(told) // 100))
                said = {"request_id": event.request_id, "tau": 0.5, "omega": told[event.request_id][1], "at": line.t}
                words.append((line.t + late_s, json.dumps(said).encode()))
        for word in [word for word in words if word[0] <= line.t]:
            core.feed_nats(line.t, "poascope.dynamo.routed", word[1])
            words.remove(word)
    for _, data in words:
        core.feed_nats(line.t, "poascope.dynamo.routed", data)
    core.feed_nats(line.t, "poascope.dynamo.routed", b'{"request_id": "x", "tau": -1, "omega": 0}')
    assert any("poascope.*.routed" in key for key in core.counts())
    core.finish()
    requests = core.take()["requests"].to_pylist()
    assert {r["request_id"]: (r["tau"], r["omega"]) for r in requests} == told
    assert {row["omega"] for row in signals if row["tau"] == 0.5} >= {0.0, 1.0}


def test_decisions_become_rows() -> None:
    """Intents, targets, acks and what the controller says of them are rows, with who, why, from and to; a target sets the mode."""
    core = Core(Settings())
    core.feed_nats(
        1.0, "$KV.poascope.dynamo.target", b'{"tau":0.0,"omega":1.0,"regime":"below","mode":"auto","why":"quiet","decided_at":1.0}'
    )
    core.feed_nats(
        2.0, "$KV.poascope.dynamo.intent", b'{"mode":"manual","tau":0.7,"omega":1,"reason":"try","operator":"ann","expires_at":500.0}'
    )
    core.feed_nats(
        3.0, "$KV.poascope.dynamo.target", b'{"tau":0.7,"omega":1.0,"regime":"below","mode":"manual","why":"ann","intent_revision":4}'
    )
    core.feed_nats(4.0, "$KV.poascope.dynamo.ack.gateway", b'{"tau":0.7,"omega":1.0,"applied_at":4.0,"target_revision":5}')
    core.feed_nats(5.0, "poascope.dynamo.decision", b'{"kind":"expiry","at":5.0,"actor":"controller","why":"over"}')
    core.feed_nats(6.0, "$KV.poascope.dynamo.intent", b"")
    core.feed_nats(7.0, "$KV.poascope.dynamo.intent", b"{")
    rows = core.take()["decisions"].to_pylist()
    assert [(r["kind"], r["actor"], r["mode"], r["tau"], r["from_tau"], r["why"]) for r in rows] == [
        ("target", "controller", "auto", 0.0, None, "quiet"),
        ("intent", "ann", "manual", 0.7, 0.0, "try"),
        ("target", "controller", "manual", 0.7, 0.0, "ann"),
        ("ack", "gateway", None, 0.7, 0.7, None),
        ("expiry", "controller", None, None, 0.7, "over"),
        ("intent", None, None, None, 0.7, "key deleted"),
    ]
    assert rows[3]["revision"] == 5 and rows[1]["expires_at"].timestamp() is not None
    assert core.counts()["unreadable:$KV.poascope.*.intent:corrupt bytes"] == 1
    assert core.decisions.modes == {"dynamo": "manual"}


@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_damage_never_stops_the_core(data: st.DataObject) -> None:
    """Cut, flipped, doubled, dropped and swapped messages give counters and rows that the store takes, never an exception."""
    rng = random.Random(data.draw(st.integers(0, 10_000)))
    lines = recorded(data.draw(st.sampled_from(["aggregated-1.4.2", "decode-worker-killed-1.4.2"])))
    damaged = []
    for line in lines:
        roll = rng.random()
        if line.data and roll < 0.1:
            raw = bytearray(line.data)
            raw[rng.randrange(len(raw))] = rng.randrange(256)
            line = Line(line.t, line.src, subject=line.subject, data=bytes(raw[: rng.randint(1, len(raw))] if roll < 0.03 else raw))
        elif line.body and roll < 0.3:
            line = Line(line.t, line.src, target=line.target, body=line.body[: rng.randrange(len(line.body))])
        damaged += [line] * (0 if roll > 0.97 else 2 if roll > 0.94 else 1)
    for i in range(0, len(damaged) - 1, 7):
        damaged[i], damaged[i + 1] = damaged[i + 1], damaged[i]
    tables = play(Core(Settings()), damaged)
    assert tables["requests"].num_rows > 20
    with Store.open(":memory:") as store:
        store.append_all(tables)


def test_everything_kept_is_bounded() -> None:
    """A bus full of names and ids that never come back does not make the core grow without end."""
    import msgspec

    core = Core(Settings())
    for i in range(3000):
        payload = msgspec.msgpack.encode({"request_id": "r", "worker": {"worker_id": i, "dp_rank": 0}, "data": "Free", "router_id": 1})
        envelope = {"publisher_id": i, "sequence": i, "published_at": i, "payload": payload}
        core.feed_nats(float(i), f"namespace.d{i}.component.c.active_sequences_events", msgspec.msgpack.encode(envelope))
        core.feed_nats(float(i), f"subject{i}.x", b"?")
    assert len(core.deployments) <= 64 and len(core.counters) <= 1002


def test_workers_that_only_their_caches_speak_of_are_forgotten() -> None:
    """Pods that come and go without a request leave neither cache nor load behind, ten minutes after their last word."""
    import msgspec

    core = Core(Settings())
    for second in range(1500):
        core.advance(float(second))
        stored = {"stored": {"blocks": [{"block_hash": second}]}}
        change = [{"worker_id": second, "event": {"event_id": 1, "data": stored}}]
        core.feed_nats(float(second), "namespace-d-component-backend-kv-events.kv-events", json.dumps(change).encode())
        payload = msgspec.msgpack.encode({"worker_id": second, "active_decode_blocks": 1})
        envelope = {"publisher_id": second, "sequence": 1, "published_at": second * 1000, "payload": payload}
        core.feed_nats(float(second), "namespace.d.kv_metrics", msgspec.msgpack.encode(envelope))
    (deployment,) = core.deployments.values()
    kept = (deployment.heard_of, deployment.prefixes.caches, deployment.loads, deployment.reported)
    assert [600 <= len(one) <= 602 for one in kept] == [True] * 4, [len(one) for one in kept]


def routed(at: float, step: Any, request: str, published_at: float, sequence: int) -> tuple[float, str, bytes]:
    """One routing event of one aggregated worker, as 0.9 sends it."""
    import msgspec

    said = {"request_id": request, "worker": {"worker_id": 7, "dp_rank": 0}, "data": step, "router_id": 1}
    envelope = {
        "publisher_id": 1,
        "sequence": sequence,
        "published_at": round(published_at * 1000),
        "payload": msgspec.msgpack.encode(said),
    }
    return at, "namespace.d.component.c.active_sequences_events", msgspec.msgpack.encode(envelope)


def lives(step_at: float, by_s: float) -> list[tuple[float, str, bytes]]:
    """A request a second that takes 0.6 s, from a publisher whose clock is set by `by_s` at `step_at`."""
    steps = ({"AddRequest": {"isl": 16, "overlap": 0}}, "MarkPrefillCompleted", "Free")
    out = []
    for second in range(START, START + 90):
        for i, (after, step) in enumerate(zip((0.1, 0.4, 0.7), steps, strict=True)):
            at = second + after
            out.append(routed(at + 0.002, step, str(second), at + (by_s if at > step_at else 0.0), 3 * (second - START) + i))
    return out


@pytest.mark.parametrize("by_s", [-600.0, 600.0, -1e9, 1e9, 5.0, -7.0])
def test_a_clock_that_is_set_moves_no_request(by_s: float) -> None:
    """A publisher's clock jumps by minutes or years: requests keep the seconds in which they came."""
    core = Core(Settings())
    for message in lives(START + 40, by_s):
        core.advance(message[0])
        core.feed_nats(*message)
    core.advance(START + 95)
    core.finish()
    requests = core.take()["requests"]
    off = np.array(seconds(requests, "arrived_at")) - [int(i) + 0.1 for i in requests["request_id"].to_pylist()]
    assert requests.num_rows == 90 and np.abs(off).max() < 0.1


def test_one_absurd_publishing_time_spoils_none_after_it() -> None:
    """A message said to be from the year 287396, or from long ago: the others of its publisher keep their times."""
    for absurd in (2**53 / 1000 - 1, 0.0):
        core = Core(Settings())
        for i, message in enumerate(lives(START, 0)):
            core.advance(message[0])
            core.feed_nats(*(routed(message[0], "Free", "none", absurd, 500) if i == 100 else message))
        core.advance(START + 95)
        core.finish()
        tables = core.take()
        requests = tables["requests"]
        off = np.array(seconds(requests, "arrived_at")) - [int(i) + 0.1 for i in requests["request_id"].to_pylist()]
        assert requests.num_rows >= 89 and np.abs(off).max() < 0.1
        assert "refused" not in " ".join(core.counts())


def test_a_prefill_worker_that_was_killed_is_gone_and_leaves_no_ghosts() -> None:
    """On 0.9.0 decode workers take its requests over, which all end well; it is named once it was silent for 15 s. The frontends were
    started anew with it: what the dead ones had under way is lost when its workers say that they are idle, and nothing stays in flight."""
    path = CAPTURES / "prefill-worker-killed-0.9.0.jsonl.gz"
    core = Core(Settings())
    for line in (lines := list(Reader(path))):
        core.advance(line.t)
        feed(core, line)
    core.advance(lines[-1].t + 20)
    core.finish()
    tables, truth = core.take(), clients(path)
    requests = {r["request_id"]: r for r in tables["requests"].to_pylist()}
    whole = {i for i, c in truth.items() if c["chunks"] == 129}
    cut = {i for i, c in truth.items() if c["error"] == "cut"}
    assert {requests[i]["outcome"] for i in whole} == {"finished"} and {requests[i]["outcome"] for i in cut} == {"lost"}
    (gap,) = tables["gaps"].to_pylist()
    assert gap["kind"] == "worker gone" and gap["source"].startswith("worker:prefill:") and gap["count"] == 0
    bypassed = [r for r in requests.values() if r["prefill_worker"] and r["prefill_done_at"] is None]
    assert len(bypassed) == 36 and {f"worker:prefill:{r['prefill_worker']}:0" for r in bypassed} == {gap["source"]}
    (deployment,) = core.deployments.values()
    assert not deployment.assembler.open and not any(deployment.assembler.inflight.values())
    silent = [r["inflight"] for r in tables["signals"].to_pylist() if gap["from"] < r["ts"] < gap["to"]]
    assert len(silent) == 16 and max(silent) <= 12


def test_bogus_namespaces_do_not_lock_a_real_one_out() -> None:
    """Where the most are watched, one without requests gives way to a new one; those with requests stay."""
    import msgspec

    core = Core(Settings())
    core.feed_nats(*routed(1.0, {"AddRequest": {"isl": 16, "overlap": 0}}, "r", 1.0, 1))
    for i in range(200):
        payload = msgspec.msgpack.encode({"worker_id": i, "active_decode_blocks": 1})
        envelope = {"publisher_id": i, "sequence": i, "published_at": 1000, "payload": payload}
        core.feed_nats(2.0 + i / 1000, f"namespace.bogus{i}.kv_metrics", msgspec.msgpack.encode(envelope))
    assert len(core.deployments) == 64 and core.deployments["d"].assembler.open and "bogus199" in core.deployments


def test_targets_of_any_number_of_names_are_bounded() -> None:
    """What was in force is remembered for the newest thousand deployments."""
    core = Core(Settings())
    for i in range(1100):
        core.feed_nats(1.0, f"$KV.poascope.d{i}.target", b'{"tau":0.7,"omega":1.0,"mode":"manual"}')
    assert len(core.decisions.modes) == 1000 and core.decisions.modes["d1099"] == "manual" and "d0" not in core.decisions.modes
