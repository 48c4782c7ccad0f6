"""Dynamo's event plane and poascope's own subjects, by core subscriptions alone. Nothing of it makes a consumer or a stream."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import SlowConsumerError
from nats.js.errors import NotFoundError
from nats.js.kv import KV_OP

from poascope.nats import Nats

log = logging.getLogger("poascope.collect")

EVENTS = ("namespace.>", "*.kv-events", "poascope.>")
BUCKET = "poascope"
PENDING_MESSAGES, PENDING_BYTES = 65_536, 64 * 2**20
PING_S, PINGS = 3, 2
WAKES = 10
AT_ONCE_S = 0.2  # what connecting takes is no gap
TIME_STEP_S = 1e-6  # the store's

OnMessage = Callable[[float, str, bytes], None]
OnGap = Callable[[str, str, float, float | None, int | None], None]


class NatsSource:
    """Connects for ever. `on_message(received_at, subject, data)`; `on_recall`: the same for a control message already stored as a row;
    `on_gap(source, kind, since, until, count)`."""

    def __init__(self, nats: Nats, on_message: OnMessage, on_recall: OnMessage, on_gap: OnGap, told_until: float) -> None:
        self._options, self.shown = nats.options(), nats.shown
        self._on_message, self._on_recall, self._on_gap = on_message, on_recall, on_gap
        self._told_until = told_until
        self._client = Client()
        self._last_stored = self._wakes = 0
        self._dropping: tuple[float, int] | None = None
        self.heard_at: float | None = None
        self.down_since: float | None = time.time()
        self._lost_at: float | None = None
        self._left_at: float | None = None
        self._closing = False
        self.trouble = "not connected yet"
        self.counters: Counter[str] = Counter()

    @property
    def connected(self) -> bool:
        return self._client.is_connected

    async def run(self) -> None:
        """Until cancelled. A server that is not there yet, or goes away, is waited for."""
        self._client, self._closing = Client(), False
        if not self.counters["connects_total"]:
            self._lost_at = self._lost_at or time.time()  # waiting for a server that is not there yet is a gap as well
        try:
            await self._client.connect(
                **self._options,
                name="poascope collect",
                no_echo=True,
                connect_timeout=2,
                reconnect_time_wait=1,
                max_reconnect_attempts=-1,
                ping_interval=PING_S,
                max_outstanding_pings=PINGS,
                pending_size=2**20,
                error_cb=self._error,
                disconnected_cb=self._disconnected,
                reconnected_cb=self._reconnected,
            )
            for subject in EVENTS:
                await self._subscribe(subject, self._heard)
            await self._subscribe(f"$KV.{BUCKET}.>", self._written)
            self._up()
            await self._catch_up()
            while True:
                await asyncio.sleep(0.1)
                self._settle_drops()
                if self._wakes:
                    self._wakes -= 1
                    await self._catch_up()
        finally:
            self._closing, self._left_at = True, time.time()
            await self._client.close()

    def close(self, now: float) -> None:
        """Record what is still missing at the end."""
        self._settle_drops()
        if self._lost_at is not None:
            self._on_gap("nats", "disconnected", self._lost_at, now, None)

    async def publish(self, subject: str, data: bytes) -> None:
        """Say it now or not at all: a stale row that arrives after a reconnect would be taken for a fresh one."""
        if self._client.is_connected:
            await self._client.publish(subject, data)

    async def _subscribe(self, subject: str, heard: Callable[[Msg], object]) -> None:
        await self._client.subscribe(
            subject,
            cb=heard,  # type: ignore[arg-type]
            pending_msgs_limit=PENDING_MESSAGES,
            pending_bytes_limit=PENDING_BYTES,
        )

    async def _heard(self, message: Msg) -> None:
        self.heard_at = now = time.time()
        self.counters["messages_total"] += 1
        self._on_message(now, message.subject, message.data)

    async def _written(self, message: Msg) -> None:
        # Only a wake-up: a write that the bucket refuses is heard here too. Looked for more than once, since hearing may overtake storing.
        self._wakes = WAKES

    async def _catch_up(self) -> None:
        """What the bucket has stored since the last look, this one included; reads single messages, so that no consumer is made."""
        stream = self._client.jetstream(timeout=3)
        while True:
            try:
                entry = await stream.get_msg(f"KV_{BUCKET}", seq=self._last_stored + 1, subject=f"$KV.{BUCKET}.>", next=True)
            except (NotFoundError, NatsError, TimeoutError) as error:
                # No bucket, no JetStream, or nothing further: control is optional, and doctor says which of these it is.
                log.debug("bucket %s: read up to %d (%s)", BUCKET, self._last_stored, error)
                return
            if entry.seq is None or entry.time is None:
                return
            at, data = entry.time.timestamp(), b"" if (entry.headers or {}).get(KV_OP) else entry.data or b""
            told = at <= self._told_until + TIME_STEP_S
            (self._on_recall if told else self._on_message)(at, entry.subject or "", data)
            self._last_stored, self._told_until = entry.seq, max(self._told_until, at)

    def _up(self) -> None:
        since = self._lost_at if self._lost_at is not None else self._left_at
        if since is not None and time.time() - since > AT_ONCE_S:
            self._on_gap("nats", "disconnected", since, time.time(), None)
        self.counters["connects_total"] += 1
        self.down_since = self._lost_at = self._left_at = None
        self.trouble = ""
        log.info("NATS: %s - connected", self.shown)

    async def _reconnected(self) -> None:
        self._up()
        with contextlib.suppress(NatsError, TimeoutError):
            info = await self._client.jetstream(timeout=3).stream_info(f"KV_{BUCKET}")
            if info.state.last_seq < self._last_stored:  # the server lost its store, and counts from one again
                self._last_stored = 0
        await self._catch_up()

    async def _disconnected(self) -> None:
        if self._closing:
            return
        if self.down_since is None:
            self.down_since = now = time.time()
            # A link that went silent is noticed only when its pings stay unanswered: what was missed began with the silence.
            self._lost_at = max(self.heard_at or 0.0, now - PING_S * PINGS)
            log.warning("NATS: %s - disconnected, trying again", self.shown)

    async def _error(self, error: Exception) -> None:
        if isinstance(error, SlowConsumerError):
            since, count = self._dropping or (time.time(), 0)
            self._dropping = since, count + 1
            self.counters["dropped_total"] += 1
            return
        if isinstance(error, NatsError | OSError) or not self._client.is_connected:
            said = str(error) or type(error).__name__
            if said != self.trouble:
                log.warning("NATS: %s - %s", self.shown, said)
            self.trouble = said
            return
        self.counters["errors_total"] += 1
        log.error("NATS: %s", error, exc_info=error)

    def _settle_drops(self) -> None:
        if self._dropping:
            since, count = self._dropping
            self._dropping = None
            self._on_gap("nats", "dropped", since, time.time(), count)
            log.warning("NATS: %d messages dropped - more arrived than could be read", count)
