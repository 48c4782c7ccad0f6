import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import nats
import pytest

from collectors.nats_source import NatsSource
from poascope import ending
from poascope.errors import Misconfigured
from poascope.nats import Nats
from tests.conftest import NatsServer, free_port


@dataclass
class Heard:
    messages: list[tuple[float, str, bytes]] = field(default_factory=list)
    recalled: list[str] = field(default_factory=list)
    gaps: list[tuple[str, str, float, float | None, int | None]] = field(default_factory=list)

    def subjects(self) -> list[str]:
        return [subject for _, subject, _ in self.messages]


async def until(true: Callable[[], Any], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def listening(url: str, heard: Heard, told_until: float = 0.0) -> AsyncIterator[NatsSource]:
    source = NatsSource(
        Nats(url),
        lambda at, subject, data: heard.messages.append((at, subject, data)),
        lambda at, subject, data: heard.recalled.append(subject),
        lambda *gap: heard.gaps.append(gap),
        told_until,
    )
    task = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        await ending.end([task])


async def say(url: str, *subjects: str) -> None:
    client = await nats.connect(url)
    for subject in subjects:
        await client.publish(subject, b"x")
    await client.flush()
    await client.close()


async def test_a_killed_server_is_a_gap_and_then_goes_on(nats_server: NatsServer) -> None:
    """After a kill -9 and a restart of NATS the subscriptions are back, and the time between is one gap."""
    heard = Heard()
    async with listening(nats_server.url, heard) as source:
        await until(lambda: source.connected and source.down_since is None)
        await say(nats_server.url, "namespace.d.component.c.x", "d.kv-events", "other.subject")
        await until(lambda: len(heard.messages) == 2)
        killed_at = time.time()
        nats_server.kill()
        await until(lambda: source.down_since is not None)
        await asyncio.sleep(0.3)
        nats_server.start()
        back_at = time.time()
        await until(lambda: source.down_since is None)
        await say(nats_server.url, "namespace.d.component.c.y")
        await until(lambda: len(heard.messages) == 3)
        ((name, kind, since, end, _),) = heard.gaps
        assert (name, kind) == ("nats", "disconnected")
        assert since <= killed_at
        assert end is not None
        assert end >= back_at - 0.5
    assert len(heard.gaps) == 1


async def test_a_server_that_is_not_there_yet_is_waited_for(nats_server: NatsServer) -> None:
    """Starting before NATS is no error: the source says what it waits for, hears as soon as NATS is there, and the wait is a gap."""
    nats_server.kill()
    heard = Heard()
    async with listening(nats_server.url, heard) as source:
        await until(lambda: "refused" in source.trouble.lower() or "connect" in source.trouble.lower())
        assert source.down_since is not None
        await asyncio.sleep(0.3)
        nats_server.start()
        await until(lambda: source.down_since is None)
        await say(nats_server.url, "namespace.d.component.c.x")
        await until(lambda: heard.messages)
    assert [gap[:2] for gap in heard.gaps] == [("nats", "disconnected")]


async def test_a_link_that_falls_silent_is_noticed(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that keeps the connection and says nothing more is given up after two unanswered pings; the gap began with the silence."""
    monkeypatch.setattr("collectors.nats_source.PING_S", 1)
    heard = Heard()
    assert nats_server.process
    async with listening(nats_server.url, heard) as source:
        await until(lambda: source.down_since is None)
        os.kill(nats_server.process.pid, signal.SIGSTOP)
        silent_at = time.time()
        try:
            await until(lambda: source.down_since is not None, 30)
        finally:
            os.kill(nats_server.process.pid, signal.SIGCONT)
        await until(lambda: source.down_since is None)
    assert heard.gaps[0][2] <= silent_at + 1


async def test_what_is_dropped_is_counted(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst beyond the bound on waiting messages loses the rest: each counted, the burst one gap, and hearing goes on."""
    monkeypatch.setattr("collectors.nats_source.PENDING_MESSAGES", 100)
    heard = Heard()
    async with listening(nats_server.url, heard) as source:
        await until(lambda: source.down_since is None)
        speaker = await nats.connect(nats_server.url)
        for _ in range(20_000):
            await speaker.publish("namespace.d.component.c.x", b"x")
        await speaker.flush()
        await until(lambda: len(heard.messages) + source.counters["dropped_total"] == 20_000)
        await until(lambda: sum(gap[4] or 0 for gap in heard.gaps) == source.counters["dropped_total"])
        before = len(heard.messages)
        await speaker.publish("namespace.d.component.c.y", b"x")
        await until(lambda: len(heard.messages) == before + 1)
        await speaker.close()
    assert source.counters["dropped_total"] > 0
    assert {gap[1] for gap in heard.gaps} == {"dropped"}


async def test_a_message_that_breaks_its_reader_stops_nothing(nats_server: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    """An exception over one message is logged and counted, and the next message is read."""
    caplog.set_level(logging.CRITICAL)
    read: list[str] = []

    def fragile(at: float, subject: str, data: bytes) -> None:
        if subject.endswith("bad"):
            raise ValueError("cannot read this")
        read.append(subject)

    source = NatsSource(Nats(nats_server.url), fragile, fragile, lambda *_: None, 0.0)
    task = asyncio.create_task(source.run())
    await until(lambda: source.down_since is None)
    await say(nats_server.url, "namespace.d.component.c.bad", "namespace.d.component.c.good")
    await until(lambda: read)
    assert source.counters["errors_total"] == 1
    await ending.end([task])


async def test_control_entries_are_those_the_bucket_has(nats_server: NatsServer) -> None:
    """Entries written before, live and while away are each told once, refused writes never, and those already stored only recalled."""
    client = await nats.connect(nats_server.url)
    bucket = await client.jetstream().create_key_value(bucket="poascope", history=8)
    await bucket.put("d.intent", b"1")
    await asyncio.sleep(0.05)
    told_until = time.time()
    await bucket.put("d.target", b"2")
    heard = Heard()
    async with listening(nats_server.url, heard, told_until) as source:
        await until(lambda: heard.messages)
        assert heard.recalled == ["$KV.poascope.d.intent"]
        with pytest.raises(nats.errors.Error):
            await bucket.update("d.intent", b"overtaken", last=77)
        await bucket.put("d.ack.gateway", b"3")
        await bucket.delete("d.intent")
        await until(lambda: len(heard.messages) == 3)
        nats_server.kill()
        await until(lambda: source.down_since is not None)
        nats_server.start()
        await until(lambda: client.is_connected)
        await bucket.put("d.target", b"4")
        await until(lambda: len(heard.messages) == 4)
        await until(lambda: not source._wakes)
    await client.close()
    said = [(subject.removeprefix("$KV.poascope."), data) for _, subject, data in heard.messages]
    assert said == [("d.target", b"2"), ("d.ack.gateway", b"3"), ("d.intent", b""), ("d.target", b"4")]
    assert heard.recalled == ["$KV.poascope.d.intent"]


async def test_dynamos_streams_and_consumers_stay_as_they_were(nats_server: NatsServer) -> None:
    """Watching leaves the server's streams, consumers and messages exactly as they were; what it publishes is on its own subject."""
    client = await nats.connect(nats_server.url)
    stream = client.jetstream()
    await stream.add_stream(name="namespace-d-component-c-kv-events", subjects=["namespace-d-component-c-kv-events.>"])
    await stream.create_key_value(bucket="poascope")
    await stream.pull_subscribe("namespace-d-component-c-kv-events.>", durable="router")

    async def everything() -> list[Any]:
        infos = await stream.streams_info()
        return [(i.config.name, i.state.messages, [c.name for c in await stream.consumers_info(i.config.name or "")]) for i in infos]

    before = await everything()
    heard = Heard()
    async with listening(nats_server.url, heard) as source:
        await until(lambda: source.down_since is None)
        await client.publish("namespace-d-component-c-kv-events.kv-events", b"{}")
        await until(lambda: heard.messages)
        await source.publish("poascope.d.signals", b"{}")
        during = await everything()
    assert [(name, consumers) for name, _, consumers in during] == [(name, consumers) for name, _, consumers in before]
    assert sum(messages for _, messages, _ in during) == 1
    assert [(name, consumers) for name, _, consumers in await everything()] == [(name, consumers) for name, _, consumers in before]
    await client.close()


async def test_signals_are_said_now_or_not_at_all(nats_server: NatsServer) -> None:
    """Nothing is kept to be published after a reconnect, and the source does not hear itself."""
    heard = Heard()
    async with listening(nats_server.url, heard) as source:
        await until(lambda: source.down_since is None)
        client = await nats.connect(nats_server.url)
        listener = await client.subscribe("poascope.>")
        await client.flush()
        nats_server.kill()
        await until(lambda: source.down_since is not None)
        await source.publish("poascope.d.signals", b"stale")
        nats_server.start()
        await until(lambda: source.down_since is None and client.is_connected)
        await asyncio.sleep(0.1)
        await source.publish("poascope.d.signals", b"fresh")
        assert (await listener.next_msg(5)).data == b"fresh"
        await client.close()
    assert heard.messages == []


def test_missing_credentials_are_named() -> None:
    """A credentials file that is not there is a usage error, not an endless reconnect."""
    with pytest.raises(Misconfigured, match="nats_credentials"):
        NatsSource(Nats(f"nats://127.0.0.1:{free_port()}", credentials="absent.creds"), print, print, print, 0.0)
