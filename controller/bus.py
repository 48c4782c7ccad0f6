"""The NATS KV bucket `poascope`: who wants what, who decided what, who did what. Used by the controller, the page and the command line.

Nothing is cached: every answer is read from the bucket, so a restart, a reconnect or a second process changes nothing.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec
import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, RawStreamMsg, RePublish
from nats.js.errors import BucketNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KV_OP, KeyValue

from controller.protocol import (
    BUCKET,
    PING,
    STORED,
    Ack,
    Arming,
    Decision,
    Incident,
    Intent,
    Lease,
    Loop,
    Moment,
    Target,
    ack_key,
    armed_key,
    complaint,
    decision_subject,
    incident_subject,
    intent_key,
    lease_key,
    loop_subject,
    name,
    target_key,
    token,
)
from poascope.errors import PoascopeError, Unreachable
from poascope.nats import Nats

log = logging.getLogger("poascope.bus")

MAX_BYTES = 32_768  # many times what any of ours is: a page shows all that it reads
HISTORY = 64  # the most a KV bucket keeps of a key; an idempotency key is remembered that long
T = TypeVar("T")
Asked = TypeVar("Asked", Intent, Arming)


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """A key as the bucket has it. `value` is None when it was never written, was deleted, or cannot be read (`problem` says why).

    `revision` is what a writer must expect, 0 before the first write; `at` is when the bucket stored it (Unix s).
    """

    value: T | None = None
    revision: int = 0
    at: float | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Submitted(Generic[T]):
    """An intent or arming that is in the bucket. `first` is False when the same idempotency key had already put it there."""

    asked: T
    revision: int
    at: float
    first: bool


@dataclass(frozen=True, slots=True)
class State:
    """All that a page shows of one deployment's control: wanted (intent, target) and acknowledged (one for each replica).

    `controller_at`: when the controller last looked (Unix s); None when no controller answers, so nothing that is wanted will be done.
    """

    deployment: str
    intent: Stored[Intent]
    target: Stored[Target]
    acks: dict[str, Stored[Ack]]
    controller_at: float | None = None
    arming: Stored[Arming] = field(default_factory=Stored)
    lease: Stored[Lease] = field(default_factory=Stored)


class Refused(PoascopeError):
    """An intent that was not taken. `overtaken_by` and `overtaken_at` (Unix s) say whose intent came first, where that is why."""

    def __init__(self, why: str, overtaken_by: str | None = None, overtaken_at: float | None = None) -> None:
        super().__init__(why)
        self.overtaken_by, self.overtaken_at = overtaken_by, overtaken_at


class Denied(PoascopeError):
    """The NATS server does not let this user do that: trying again changes nothing."""


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    try:
        yield
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise Unreachable(f"NATS: {url} - {str(error) or type(error).__name__}") from error


def _decode(kind: type[T], message: RawStreamMsg) -> Stored[T]:
    revision, at = message.seq or 0, message.time.timestamp() if message.time else None
    if (message.headers or {}).get(KV_OP):
        return Stored(None, revision, at)
    data = message.data or b""
    if len(data) > MAX_BYTES:
        return Stored(None, revision, at, f"revision {revision} cannot be read: {len(data)} bytes, at most {MAX_BYTES}")
    try:
        return Stored(msgspec.json.decode(data, type=kind), revision, at)
    except msgspec.DecodeError as error:
        return Stored(None, revision, at, f"revision {revision} cannot be read: {error}")


def _noun(asked: Intent | Arming) -> str:
    return "intent" if isinstance(asked, Intent) else "arming"


def _told(asked: Intent | Arming) -> str:
    if isinstance(asked, Arming):
        return "armed" if asked.armed else "disarmed"
    return asked.mode


def _wish(asked: Intent | Arming) -> tuple[object, ...]:
    """What was asked for, and by whom: the same in two with one idempotency key. The times of a click and its repetition differ."""
    if isinstance(asked, Arming):
        return asked.operator, asked.armed
    return asked.operator, asked.mode, asked.tau, asked.omega


class Bus:
    def __init__(self, client: Client, url: str) -> None:
        self.client, self.url = client, url
        self._js: JetStreamContext = client.jetstream(timeout=3)
        self._kv: KeyValue | None = None
        self._listeners: list[Callable[[str | None], None]] = []
        self.denied: list[str] = []  # what the server said this user may not do

    async def _bucket(self) -> KeyValue:
        """The bucket, made when it is missing (first use, or a server that came back without its store)."""
        if self._kv is None:
            republish = RePublish(src=f"$KV.{BUCKET}.>", dest=f"{STORED}.>")
            try:
                kv = await self._js.key_value(BUCKET)
                config = (await kv.status()).stream_info.config
                if config.republish is None:
                    await self._js.update_stream(config, republish=republish.__dict__, max_msgs_per_subject=HISTORY)
            except BucketNotFoundError:
                kv = await self._js.create_key_value(KeyValueConfig(bucket=BUCKET, history=HISTORY, republish=republish))
            self._kv = kv
        return self._kv

    async def _get(self, kind: type[T], key: str) -> Stored[T]:
        await self._bucket()
        try:
            found = await self._js.get_msg(f"KV_{BUCKET}", subject=f"$KV.{BUCKET}.{key}")
        except NotFoundError as error:
            if error.err_code == 10059:  # the stream itself is gone
                self._kv = None
                raise
            return Stored()
        return _decode(kind, found)

    async def _history(self, kind: type[T], key: str) -> list[Stored[T]]:
        """All values the bucket still has of a key, oldest first."""
        found: list[Stored[T]] = []
        sequence = 1
        while True:
            try:
                entry = await self._js.get_msg(f"KV_{BUCKET}", seq=sequence, subject=f"$KV.{BUCKET}.{key}", next=True)
            except NotFoundError:
                return found
            found.append(_decode(kind, entry))
            sequence = (entry.seq or 0) + 1

    async def put_intent(self, deployment: str, intent: Intent, now: float) -> Submitted[Intent]:
        """Write an intent if it is admissible, and nothing came between it and what its operator saw.

        The same idempotency key again is the same intent: what the first one got is returned. Raises Refused (also published as
        a refusal, for the audit trail) or Unreachable: then it may or may not have been written, so repeat it with the same key.
        """
        return await self._submit(deployment, intent_key(deployment), intent, now)

    async def put_arming(self, deployment: str, arming: Arming, now: float) -> Submitted[Arming]:
        """Let the controller act by itself, or no longer; as `put_intent`."""
        return await self._submit(deployment, armed_key(deployment), arming, now)

    async def refuse(self, deployment: str, asked: Intent | Arming, why: str, now: float) -> None:
        """For the audit trail: this was asked for, and not taken."""
        what = msgspec.structs.asdict(asked)
        refusal = Decision(
            kind="refusal",
            at=now,
            actor=asked.operator,
            why=why,
            mode=what.get("mode"),
            tau=what.get("tau"),
            omega=what.get("omega"),
            revision=max(asked.expected_revision, 0),
        )
        log.info("refused: %s: %s", asked.operator, why)
        await self.publish(deployment, refusal)

    async def _submit(self, deployment: str, key: str, asked: Asked, now: float) -> Submitted[Asked]:
        with _reaching(self.url):
            try:
                return await self._put(key, asked, now)
            except Refused as refused:
                await self.refuse(deployment, asked, str(refused), now)
                raise
            except (nats.errors.Error, TimeoutError):
                if self.denied:
                    await self.refuse(deployment, asked, f"NATS: {self.denied[-1]}", now)
                raise

    async def _put(self, key: str, asked: Asked, now: float) -> Submitted[Asked]:
        kv = await self._bucket()
        earlier = await self._twin(key, asked)
        if earlier:
            return earlier
        if why := complaint(asked, now):
            raise Refused(why)
        try:
            revision = await kv.update(key, msgspec.json.encode(asked), last=asked.expected_revision)
        except KeyWrongLastSequenceError:
            # A double click: its twin may have won the race between the look and the write.
            earlier = await self._twin(key, asked)
            if earlier:
                return earlier
            other = await self._get(type(asked), key)
            if other.value is None:
                raise Refused(
                    f"expected_revision: {asked.expected_revision} - the {_noun(asked)} is at {other.revision} now, look again"
                ) from None
            raise Refused(
                f"expected_revision: {asked.expected_revision} - overtaken by {other.value.operator} ({_told(other.value)}, "
                f"revision {other.revision}), look again",
                other.value.operator,
                other.at,
            ) from None
        return Submitted(asked, revision, now, first=True)

    async def _twin(self, key: str, asked: Asked) -> Submitted[Asked] | None:
        for entry in await self._history(type(asked), key):
            first = entry.value
            if first and first.idempotency_key == asked.idempotency_key:
                if _wish(first) != _wish(asked):
                    raise Refused(
                        f"idempotency_key: {asked.idempotency_key} - was used for another {_noun(asked)} (revision {entry.revision})"
                    )
                return Submitted(first, entry.revision, entry.at or 0.0, first=False)
        return None

    async def intent(self, deployment: str) -> Stored[Intent]:
        with _reaching(self.url):
            return await self._get(Intent, intent_key(deployment))

    async def target(self, deployment: str) -> Stored[Target]:
        with _reaching(self.url):
            return await self._get(Target, target_key(deployment))

    async def ack(self, deployment: str, replica: str) -> Stored[Ack]:
        with _reaching(self.url):
            return await self._get(Ack, ack_key(deployment, replica))

    async def arming(self, deployment: str) -> Stored[Arming]:
        with _reaching(self.url):
            return await self._get(Arming, armed_key(deployment))

    async def lease(self, deployment: str) -> Stored[Lease]:
        with _reaching(self.url):
            return await self._get(Lease, lease_key(deployment))

    async def renew(self, deployment: str, target_revision: int, now: float) -> int:
        """Stand behind the target at this revision for another lease. Returns the revision of the lease."""
        with _reaching(self.url):
            kv = await self._bucket()
            lease = Lease(target_revision=target_revision, renewed_at=now)
            return await kv.put(lease_key(deployment), msgspec.json.encode(lease))

    async def intents(self, deployment: str) -> list[Stored[Intent]]:
        """All intents that the bucket still has, oldest first."""
        with _reaching(self.url):
            return await self._history(Intent, intent_key(deployment))

    async def armings(self, deployment: str) -> list[Stored[Arming]]:
        """All armings that the bucket still has, oldest first."""
        with _reaching(self.url):
            return await self._history(Arming, armed_key(deployment))

    async def put_target(self, deployment: str, target: Target, expected_revision: int) -> int | None:
        """The new revision, or None when another controller wrote in between."""
        with _reaching(self.url):
            kv = await self._bucket()
            try:
                return await kv.update(target_key(deployment), msgspec.json.encode(target), last=expected_revision)
            except KeyWrongLastSequenceError:
                return None

    async def put_ack(self, deployment: str, replica: str, ack: Ack) -> int:
        with _reaching(self.url):
            return await (await self._bucket()).put(ack_key(deployment, replica), msgspec.json.encode(ack))

    async def publish(self, deployment: str, decision: Decision) -> None:
        with _reaching(self.url):
            await self.client.publish(decision_subject(deployment), msgspec.json.encode(decision))

    async def mark(self, deployment: str, incident: Incident) -> None:
        """Say it, and be sure that the server heard."""
        with _reaching(self.url):
            await self.client.publish(incident_subject(deployment), msgspec.json.encode(incident))
            await self.client.flush(timeout=2)

    async def publish_loop(self, deployment: str, loop: Loop) -> None:
        with _reaching(self.url):
            await self.client.publish(loop_subject(deployment), msgspec.json.encode(loop))

    async def _keys(self, pattern: str) -> list[str]:
        await self._bucket()
        info = await self._js.stream_info(f"KV_{BUCKET}", subjects_filter=f"$KV.{BUCKET}.{pattern}")
        return sorted(subject.removeprefix(f"$KV.{BUCKET}.") for subject in (info.state.subjects or {}))

    async def deployments(self) -> tuple[str, ...]:
        """Deployments that have an intent, a target or an arming."""
        with _reaching(self.url):
            keys = await self._keys("*.*")
        return tuple(sorted({name(key.split(".")[0]) for key in keys}))

    async def state(self, deployment: str) -> State:
        with _reaching(self.url):
            replicas = [name(key.split(".")[2]) for key in await self._keys(f"{token(deployment)}.ack.*")]
        acks = {replica: await self.ack(deployment, replica) for replica in replicas}
        intent, target = await self.intent(deployment), await self.target(deployment)
        arming, lease = await self.arming(deployment), await self.lease(deployment)
        return State(deployment, intent, target, acks, await self.controller_at(), arming, lease)

    async def controller_at(self) -> float | None:
        """When a running controller last looked at the bucket (Unix s), None when none answers."""
        with _reaching(self.url):
            try:
                answer = await self.client.request(PING, timeout=1)
            except (NoRespondersError, TimeoutError):
                return None
        try:
            return msgspec.json.decode(answer.data, type=Moment | None)
        except msgspec.DecodeError:
            return None  # whoever answered is no controller

    async def answer_pings(self, turned_at: Callable[[], float | None]) -> None:
        """Be the controller that answers `controller_at`, until the bus is closed."""

        async def answer(message: Msg) -> None:
            await message.respond(msgspec.json.encode(turned_at()))

        with _reaching(self.url):
            await self.client.subscribe(PING, cb=answer)

    async def hear(self, subject: str, note: Callable[[Msg], None]) -> None:
        """Call `note` for each message on a core subject, until the bus is closed."""

        async def hear(message: Msg) -> None:
            note(message)

        with _reaching(self.url):
            await self.client.subscribe(subject, cb=hear)

    async def hear_loops(self, note: Callable[[str, Loop], None]) -> None:
        """Call `note` with the deployment and the state of its controller's loop, at each of its steps, until the bus is closed."""

        def heard(message: Msg) -> None:
            if len(message.data) > MAX_BYTES:
                log.warning("%s cannot be read: %d bytes", message.subject, len(message.data))
                return
            try:
                note(name(message.subject.split(".")[1]), msgspec.json.decode(message.data, type=Loop))
            except msgspec.DecodeError as error:
                log.warning("%s cannot be read: %s", message.subject, error)

        await self.hear("poascope.*.loop", heard)

    async def watch(self) -> AsyncIterator[frozenset[str] | None]:
        """The keys that changed since the last turn, or None when any may have: at the start and after each reconnect.

        Only a wake-up: read the bucket for what is there now. Raises Unreachable when the connection is closed for good, as a server
        does to a client whose rights have ended.
        """
        changed: set[str | None] = {None}
        woken = asyncio.Event()
        woken.set()

        def note(key: str | None) -> None:
            changed.add(key)
            woken.set()

        async def hear(message: Msg) -> None:
            note(message.subject.removeprefix(f"{STORED}."))

        with _reaching(self.url):
            heard = await self.client.subscribe(f"{STORED}.>", cb=hear)
        self._listeners.append(note)
        try:
            while not self.client.is_closed:
                await woken.wait()
                woken.clear()
                keys, everything = frozenset(key for key in changed if key), None in changed
                changed.clear()
                yield None if everything else keys
            raise Unreachable(f"NATS: {self.url} - the connection was closed for good")
        finally:
            self._listeners.remove(note)
            if not self.client.is_closed:
                await heard.unsubscribe()

    def _again(self) -> None:
        self._kv = None
        for note in self._listeners:
            note(None)


@asynccontextmanager
async def connect(where: Nats | str, *, patient: bool = False) -> AsyncIterator[Bus]:
    """A connection to the bucket. Patient: waits for the server for ever and reconnects; else Unreachable at once.

    While the server is away writes fail instead of waiting in a buffer: an intent that comes through minutes later is a surprise.
    """
    client = Client()
    server = Nats(where) if isinstance(where, str) else where
    shown, options = server.shown, server.options()
    bus: Bus | None = None
    last = ""
    denied: list[str] = []

    async def again() -> None:
        if bus:
            bus._again()

    async def note(error: Exception) -> None:
        nonlocal last
        told = str(error) or type(error).__name__
        if "permissions violation" in told.lower():
            denied.append(told.removeprefix("nats: "))
        if patient and told != last:
            log.warning("NATS: %s - %s", shown, told)
        last = told

    try:
        await client.connect(
            **options,
            name="poascope",
            allow_reconnect=patient,
            # 1 is the least that ends: 0 and less try for ever.
            max_reconnect_attempts=-1 if patient else 1,
            reconnect_time_wait=1 if patient else 0,
            connect_timeout=3,
            pending_size=0,
            reconnected_cb=again,
            closed_cb=again,
            error_cb=note,
        )
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise Unreachable(f"NATS: {shown} - {last or error}") from error
    bus = Bus(client, shown)
    bus.denied = denied
    try:
        yield bus
    except Unreachable as error:
        if denied:  # the server says so aside, and lets the question go unanswered
            raise Denied(f"NATS: {shown} - {denied[-1]}: this user has not the right; deploy/nats/nats.conf is an example") from error
        raise
    finally:
        with _reaching(shown):
            await client.close()


def call(where: Nats | str, ask: Callable[[Bus], Awaitable[T]]) -> T:
    """Ask the bucket one thing from code that is not async: connects, asks, closes (some 10 ms). Raises what `ask` does, or Unreachable."""

    async def once() -> T:
        async with connect(where) as bus:
            return await ask(bus)

    return asyncio.run(once())
