"""The collecting process: sockets and threads round one pure core, in one asyncio loop."""

import asyncio
import logging
import re
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import uvicorn

from collectors.api import application, listen
from collectors.core import Core
from collectors.metrics_source import MetricsSource
from collectors.nats_source import NatsSource
from collectors.readiness import readiness
from collectors.supervisor import Supervisor
from collectors.wire import Message, decode
from collectors.writer import Writer
from poascope import ending
from poascope.settings import Settings
from queries import named
from queries.estimators.alarm import COLUMNS, MAX_QUIET, Alarm, watch
from store import Store
from store.retention import Limits, Retention

log = logging.getLogger("poascope.collect")

OUTBOX = 256
TOLD_S, TOLD_MOST = 60.0, 100  # of attempts to write, lest somebody fills the audit trail with them


class _Server(uvicorn.Server):
    """Signals belong to the process, which flushes before it ends."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


class Collector:
    """Everything `poascope collect` runs. Making one raises PoascopeError: the store or the port is taken, or a setting is wrong."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._told: dict[str, float] = {}
        self.listener = listen(settings.api_host, settings.api_port, settings.api_token)
        try:
            self.store = Store.open(settings.store)
        except Exception:
            self.listener.close()
            raise
        self.url = f"http://{settings.api_host}:{self.listener.getsockname()[1]}"
        self.core = Core(settings)
        with self.store.cursor() as cursor:
            (self._last,) = named.resume(cursor).to_pylist()
            if self._last["signals_at"]:
                self.core.alarms = remembered(cursor, _unix(self._last["signals_at"]), settings)
        told_until = _unix(self._last["control_at"]) if self._last["control_at"] else 0.0
        self.nats = NatsSource(settings.nats, self._feed, self._recall, self.core.gap, told_until)
        self.metrics = MetricsSource(settings, self.core.feed_samples, self.core.gap)
        self.writer = Writer(self.store, self.core.take, lambda: self.core.rows.dropped, self.core.gap, self._retention())
        self.supervisor = Supervisor()
        self.pulsed_at: float | None = None
        self.pulse_s = self.pulse_s_total = 0.0
        self._outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue(OUTBOX)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; then what is in memory is written and the store is closed."""
        # The first Arrow conversion imports pandas, a second or two during which nothing would be heard.
        await asyncio.to_thread(lambda: pa.table({"warm": [None, 1]}).to_pandas())
        if self._last["signals_at"]:
            self.core.gap("collector", "not running", _unix(self._last["signals_at"]), time.time(), None)
        api = application(self.store, self._readiness, self.counters, self.settings.api_token, self._refused)
        server = _Server(uvicorn.Config(api, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=2))
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "api": lambda: server.serve([self.listener]),
            "nats": self.nats.run,
            "metrics": self.metrics.run,
            "pulse": self._pulse,
            "publish": self._publish,
            "writer": self.writer.run,
        }
        tasks = [asyncio.create_task(self.supervisor.keep(name, run), name=name) for name, run in parts.items()]
        try:
            await stop.wait()
        finally:
            server.should_exit = True
            await asyncio.wait(tasks[:1], timeout=4)
            await ending.end(tasks)
            await self._end(time.time())

    async def _end(self, now: float) -> None:
        self.metrics.close(now)
        self.nats.close(now)
        self.core.finish()
        await self.writer.flush()
        await self.writer.flush()
        if self.writer.trouble:
            log.error("%s - the last rows are lost", self.writer.trouble)
        self.store.close()
        self.listener.close()

    def _feed(self, received_at: float, subject: str, data: bytes) -> None:
        self._advance(received_at)
        self.core.feed_nats(received_at, subject, data)

    def _refused(self, why: str) -> None:
        """An attempt to write at the read API: for the log, and, once a minute, for the audit trail. It is nobody's but ours to store."""
        now = time.time()
        log.warning("refused: %s", why)
        self._told = {told: at for told, at in self._told.items() if now - at < TOLD_S}
        known = [name for name in (*self.core.deployments, *self.settings.namespaces) if re.fullmatch(r"[A-Za-z0-9_-]+", name)]
        if why not in self._told and len(self._told) < TOLD_MOST:
            self._told[why] = now
            said = {"kind": "refusal", "at": now, "actor": "read API", "why": why}
            self._feed(now, f"poascope.{known[0] if known else '-'}.decision", msgspec.json.encode(said))

    def _recall(self, at: float, subject: str, data: bytes) -> None:
        """A control message whose row the store already has: only what is in force is learnt from it."""
        message = decode(subject, data)
        if isinstance(message, Message):
            for event in message.events:
                self.core.recall(at, message.deployment, event)

    def _advance(self, now: float) -> None:
        began = time.perf_counter()
        rows = self.core.advance(now)
        if not rows:
            return
        self.pulse_s = time.perf_counter() - began
        self.pulse_s_total += self.pulse_s
        self.writer.wake()
        for row in rows:
            if not self._outbox.full():
                self._outbox.put_nowait(row)

    async def _pulse(self) -> None:
        """Tick at each whole second, however quiet the bus is."""
        while True:
            self.pulsed_at = now = time.time()
            self._advance(now)
            await asyncio.sleep(1.002 - time.time() % 1)

    async def _publish(self) -> None:
        while True:
            row = await self._outbox.get()
            await self.nats.publish(signals_subject(row["deployment"]), msgspec.json.encode(row, enc_hook=_plain))

    def _retention(self) -> Retention:
        kept = self.settings
        return Retention(self.store, Limits(kept.retain_raw_days, kept.retain_raw_gb, kept.retain_rollup_days))

    def _readiness(self) -> dict[str, Any]:
        return readiness(self, time.time())

    def counters(self) -> dict[str, float]:
        """The process's own counters, as /metrics names them."""
        by_kind: dict[str, int] = {}
        for (what, _, _), n in self.core.counters.items():
            by_kind[what] = by_kind.get(what, 0) + n
        return {
            "messages_total": self.nats.counters["messages_total"],
            "unreadable_messages_total": by_kind.get("unreadable", 0),
            "lost_messages_total": by_kind.get("lost", 0),
            "dropped_messages_total": self.nats.counters["dropped_total"],
            "nats_connects_total": self.nats.counters["connects_total"],
            "callback_errors_total": self.nats.counters["errors_total"],
            "duplicate_kv_events_total": by_kind.get("copies", 0),
            "rows_written_total": self.writer.rows,
            "rows_refused_total": self.writer.refused,
            "rows_dropped_total": self.core.rows.dropped,
            "rows_waiting": len(self.core.rows),
            "rows_deleted_total": self.writer.deleted,
            "store_used_bytes": self.writer.used_bytes,
            "retention_seconds": self.writer.turn_s,
            "flush_seconds": self.writer.flush_s,
            "flush_seconds_total": self.writer.flush_s_total,
            "pulse_seconds": self.pulse_s,
            "pulse_seconds_total": self.pulse_s_total,
            "task_restarts_total": self.supervisor.restarts.total(),
            "deployments": len(self.core.deployments),
        }


def serve(settings: Settings, started: Callable[[Collector], None]) -> None:
    """Collect until SIGTERM or SIGINT."""

    async def main() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        collector = Collector(settings)
        started(collector)
        await collector.run(stop)

    ending.run(main())


def remembered(cursor: duckdb.DuckDBPyConnection, until: float, settings: Settings) -> dict[str, Alarm]:
    """The early warning of each deployment as the last hour of stored signals leaves it: what it learnt survives a restart."""
    rows = named.signals(cursor, from_=until - MAX_QUIET).select([*COLUMNS, "deployment"]).to_pylist()
    found: dict[str, Alarm] = {}
    for row in rows:
        row["ts"] = _unix(row["ts"])
        found[row["deployment"]] = watch(found.get(row["deployment"], Alarm()), row, settings.alarm_signal, settings.slo_ttft_s)
    return found


def signals_subject(deployment: str) -> str:
    """Where a deployment's pulse is published; the spelling is that of the control protocol."""
    token = "".join(chr(b) if b < 128 and (chr(b).isalnum() or chr(b) in "-_") else f"={b:02x}" for b in deployment.encode())
    return f"poascope.{token}.signals"


def _unix(moment: datetime) -> float:
    return moment.replace(tzinfo=UTC).timestamp()


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} in a row of signals")
