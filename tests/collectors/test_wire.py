"""The decoders, on what real clusters sent and on what nobody should send."""

import json
from collections import Counter
from functools import cache

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.capture import Reader
from collectors.wire import Added, Control, Deleted, Freed, KvChange, Load, Marked, Message, Step, Unreadable, decode, parse_subject
from tests.conftest import CAPTURES

U64 = 2**64 - 1


@cache
def recorded() -> list[tuple[str, bytes]]:
    """Two messages of each subject and kind, of each recording."""
    found: list[tuple[str, bytes]] = []
    seen: Counter[tuple[str, str, str]] = Counter()
    for path in sorted(CAPTURES.glob("*.jsonl.gz")):
        for line in Reader(path):
            if line.subject and line.data:
                message = decode(line.subject, line.data)
                kind = type(message.events[0]).__name__ if isinstance(message, Message) and message.events else "?"
                seen[path.name, line.subject, kind] += 1
                if seen[path.name, line.subject, kind] <= 2:
                    found.append((line.subject, line.data))
    return found


def envelope(payload: object, **given_: int) -> bytes:
    fields = {"publisher_id": 1, "sequence": 2, "published_at": 3000, "topic": "t"} | given_
    return msgspec.msgpack.encode(fields | {"payload": msgspec.msgpack.encode(payload)})


def test_every_recorded_message_is_understood() -> None:
    """Each kind of message of 0.9.0, 1.4.2 and 1.6.1 decodes to a typed event."""
    messages = [decode(subject, data) for subject, data in recorded()]
    assert not [m for m in messages if isinstance(m, Unreadable)]
    kinds = {type(event) for m in messages if isinstance(m, Message) for event in m.events}
    assert {Added, Marked, Freed, Load, Step, KvChange} <= kinds


def test_subjects_name_the_deployment_and_the_component() -> None:
    """Deployment and component come from the subject, in either format."""
    cases = {
        "namespace.a.component.b.active_sequences_events": ("a", "b", "active_sequences_events"),
        "namespace.a.component.b.endpoint.generate.active_sequences_events": ("a", "b", "active_sequences_events"),
        "namespace.team.prod.component.b.endpoint.g.kv-events": ("team.prod", "b", "kv-events"),
        "namespace.a.kv_metrics": ("a", None, "kv_metrics"),
        "namespace-a-b-component-c-d-kv-events.kv-events": ("a-b", "c-d", "kv-events"),
        "$KV.poascope.a=2eb.intent": ("a.b", None, "intent"),
        "poascope.a.decision": ("a", None, "decision"),
    }
    for subject, expected in cases.items():
        where = parse_subject(subject)
        assert (where.deployment, where.component, where.topic) == expected
    assert parse_subject("$KV.poascope.a.ack.gw=2e1").replica == "gw.1"


def test_ids_keep_all_their_bits() -> None:
    """Ids above 2^63 that differ in the last digit stay themselves, as numbers or as decimal text."""
    for worker in (16882743587675780000, 16882743587675780001, U64):
        payload = {"request_id": "r", "worker": {"worker_id": worker, "dp_rank": 0}, "data": "Free", "router_id": U64}
        message = decode("namespace.d.component.c.active_sequences_events", envelope(payload, publisher_id=U64))
        assert isinstance(message, Message)
        assert message.publisher == U64 and message.events == (Freed("r", (worker, 0)),)
        step = {"worker_id": str(worker), "dp_rank": 1, "wall_time": 0.02, "scheduled_requests": {}, "queued_requests": {}}
        message = decode("namespace.d.component.c.endpoint.e.forward-pass-metrics", envelope(step))
        assert isinstance(message, Message)
        assert message.events == (Step((worker, 1), 0.02, 0, 0, 0),)


def test_what_cannot_be_is_refused_with_a_reason() -> None:
    """Numbers that no u64 holds, unknown subjects, topics and shapes give a reason and a subject pattern without names."""
    many = {"num_prefill_requests": 2**32 - 1, "num_decode_requests": 1}
    step = {"worker_id": 1, "wall_time": 0.02, "scheduled_requests": many, "queued_requests": {}}
    kv = json.dumps({"worker_id": 2**64, "event": {"event_id": 1, "data": "cleared"}}).encode()
    cases = [
        ("namespace-secret-component-b-kv-events.kv-events", kv, "namespace-*-component-*-kv-events.kv-events", "worker id out of range"),
        ("namespace.d.component.c.endpoint.e.news", b"x", "namespace.*.component.*.endpoint.e.news", "unknown topic"),
        ("orders.new", b"", "orders.>", "unknown subject"),
        ("namespace.d.kv_metrics", envelope({"worker_id": "x"}), "namespace.*.kv_metrics", "other shape: Expected `int`, got `str`"),
        (
            "namespace.d.component.c.endpoint.e.forward-pass-metrics",
            envelope(step),
            "namespace.*.component.*.endpoint.e.forward-pass-metrics",
            "step out of range",
        ),
        ("namespace.d.kv_metrics", b"\xc1", "namespace.*.kv_metrics", "corrupt bytes"),
    ]
    for subject, data, pattern, reason in cases:
        assert decode(subject, data) == Unreadable(pattern, reason)


def test_control_messages_are_objects_and_deletes_are_told_apart() -> None:
    """An intent is its JSON object; an empty payload on a key of the bucket is a delete."""
    message = decode("$KV.poascope.d.intent", b'{"mode":"manual","tau":0.7}')
    assert isinstance(message, Message) and message.events == (Control("intent", None, {"mode": "manual", "tau": 0.7}),)
    message = decode("$KV.poascope.d.ack.gateway", b"")
    assert isinstance(message, Message) and message.events == (Deleted("ack", "gateway"),)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_messages_never_raise(data: st.DataObject) -> None:
    """Cut, flipped or replaced bytes of real messages decode or are refused; nothing escapes."""
    subject, original = data.draw(st.sampled_from(recorded()))
    damaged = bytearray(original[: data.draw(st.integers(0, len(original)))])
    for _ in range(data.draw(st.integers(0, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    assert isinstance(decode(subject, bytes(damaged)), Message | Unreadable)


@given(subject=st.text(max_size=80), data=st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_subject_and_bytes_are_survived(subject: str, data: bytes) -> None:
    """Whatever the bus carries, `decode` answers."""
    assert isinstance(decode(subject, data), Message | Unreadable)


def test_a_worker_id_of_thousands_of_digits_is_refused() -> None:
    """Python itself refuses to read such a number: it is no worker id, and no exception either."""
    step = {"worker_id": "9" * 5000, "wall_time": 0.02, "scheduled_requests": {}, "queued_requests": {}}
    assert isinstance(decode("namespace.d.component.c.endpoint.e.forward-pass-metrics", envelope(step)), Unreadable)
