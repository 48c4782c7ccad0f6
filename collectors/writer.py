"""Rows from memory to the file: on a thread, in one transaction a flush, and with patience for a full disk."""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

import duckdb
import pyarrow as pa

from poascope.errors import PoascopeError
from store import Store
from store.retention import Retention

log = logging.getLogger("poascope.collect")

FLUSH_S = 0.5
RETRY_S = 2.0
TURN_S = 30.0
# What no retry helps: the rows themselves do not fit the table. Everything else (disk, memory) may pass.
_ROWS_AT_FAULT = (duckdb.ProgrammingError, duckdb.DataError, duckdb.IntegrityError, duckdb.NotSupportedError)

Tables = dict[str, pa.Table]
OnGap = Callable[[str, str, float, float | None, int | None], None]


class Writer:
    """Takes rows when the last flush is done, so what waits is bounded by the buffer they come from. `trouble` is empty while it works."""

    def __init__(
        self,
        store: Store,
        take: Callable[[], Tables],
        dropped: Callable[[], int],
        on_gap: OnGap,
        retention: Retention | None = None,
    ) -> None:
        self._store, self._take, self._dropped, self._on_gap, self._retention = store, take, dropped, on_gap, retention
        self._turned_at = time.monotonic()
        self._waiting: Tables = {}
        self._writing: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._drops: tuple[float, int] | None = None
        self._dropped_before = 0
        self.trouble = ""
        self.written_at: float | None = None
        self.rows = self.refused = 0
        self.flush_s = self.flush_s_total = self.turn_s = 0.0
        self.deleted = self.used_bytes = 0

    def wake(self) -> None:
        """Flush now: rows that somebody waits for are there."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(RETRY_S if self.trouble else FLUSH_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await self.flush()
            if self._retention and not self.trouble and time.monotonic() - self._turned_at > TURN_S:
                await self._turn(self._retention)

    async def _turn(self, retention: Retention) -> None:
        """Retention's share of this thread; what it cannot do now it does the next time."""
        began = time.perf_counter()
        try:
            turn = await asyncio.to_thread(retention.turn, datetime.now(UTC).replace(tzinfo=None))
        except PoascopeError as error:
            log.warning("%s", error)
        else:
            self.deleted += turn.deleted
            self.used_bytes = turn.used_bytes
        self._turned_at, self.turn_s = time.monotonic(), time.perf_counter() - began

    async def flush(self) -> None:
        """Write everything there is; on failure it is kept, `trouble` says why, and the next flush tries it again.

        A thread cannot be cancelled: a write whose caller was goes on, and the next flush waits for it, or its rows would be there twice.
        """
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        await asyncio.shield(self._writing)

    async def _write(self) -> None:
        if not self._waiting:
            self._waiting = self._take()
        self._note_drops()
        if not self._waiting:
            return
        began = time.perf_counter()
        try:
            await asyncio.to_thread(self._store.append_all, self._waiting)
        except PoascopeError as error:
            await self._failed(error)
            return
        self.flush_s = time.perf_counter() - began
        self.flush_s_total += self.flush_s
        self.rows += sum(table.num_rows for table in self._waiting.values())
        self._waiting, self.written_at = {}, time.time()
        if self.trouble:
            log.info("store: writing again")
        self.trouble = ""

    async def _failed(self, error: PoascopeError) -> None:
        if not isinstance(error.__cause__, _ROWS_AT_FAULT):
            if not self.trouble:
                log.error("%s - rows wait in memory", error)
            self.trouble = str(error)
            return
        # One table's rows do not fit: the others are not held back by them.
        for name, table in list(self._waiting.items()):
            try:
                await asyncio.to_thread(self._store.append, name, table)
            except PoascopeError as single:
                if not isinstance(single.__cause__, _ROWS_AT_FAULT):
                    self.trouble = str(single)
                    return
                log.error("%s", single)
                self.refused += table.num_rows
                self._on_gap("store", "refused", time.time(), None, table.num_rows)
            else:
                self.rows += table.num_rows
            del self._waiting[name]

    def _note_drops(self) -> None:
        dropped, now = self._dropped(), time.time()
        if dropped > self._dropped_before:
            self._drops = (self._drops or (now, 0))[0], (self._drops or (now, 0))[1] + dropped - self._dropped_before
            self._dropped_before = dropped
        elif self._drops:
            self._on_gap("store", "dropped", self._drops[0], now, self._drops[1])
            self._drops = None
