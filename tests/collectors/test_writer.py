import asyncio
import logging
import resource
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from collectors.writer import Writer
from poascope.errors import PoascopeError
from queries import named
from store import Store

Gap = tuple[str, str, float, float | None, int | None]


def gap_rows(n: int) -> pa.Table:
    return pa.table({"source": ["x"] * n, "kind": ["lost"] * n, "from": pa.array(range(n), pa.timestamp("us"))})


class Source:
    """Rows that wait, as the core keeps them."""

    def __init__(self) -> None:
        self.waiting: dict[str, pa.Table] = {}
        self.dropped = 0
        self.gaps: list[Gap] = []

    def take(self) -> dict[str, pa.Table]:
        taken, self.waiting = self.waiting, {}
        return taken

    def writer(self, store: Store) -> Writer:
        return Writer(store, self.take, lambda: self.dropped, lambda *gap: self.gaps.append(gap))


async def test_a_full_disk_keeps_the_rows_and_says_so(tmp_path: Path) -> None:
    """Rows wait in memory while the disk is full, the trouble is readable, and when there is room they are written once, in order."""
    source = Source()
    with Store.open(tmp_path / "s.duckdb") as store:
        writer = source.writer(store)
        source.waiting = {"gaps": gap_rows(3)}
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
        try:
            for _ in range(2):
                await writer.flush()
                assert "3 rows of gaps not written" in writer.trouble
            source.waiting = {"gaps": gap_rows(5)}
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        await writer.flush()
        await writer.flush()
        assert (writer.trouble, writer.rows) == ("", 8)
        with store.cursor() as cursor:
            assert named.gaps(cursor).num_rows == 8
    assert source.gaps == []


async def test_rows_that_fit_no_table_do_not_hold_back_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rows that DuckDB refuses for what they are end as a gap with their count; the rest of the flush is written."""
    caplog.set_level(logging.CRITICAL)
    source = Source()
    with Store.open(tmp_path / "s.duckdb") as store:
        writer = source.writer(store)
        broken = pa.table({"ts": pa.array([None, 1], pa.timestamp("us")), "deployment": ["d", "d"]})
        source.waiting = {"signals": broken, "gaps": gap_rows(2)}
        await writer.flush()
        assert (writer.rows, writer.refused, writer.trouble) == (2, 2, "")
        assert [(gap[0], gap[1], gap[4]) for gap in source.gaps] == [("store", "refused", 2)]


async def test_a_stalled_write_stops_neither_the_loop_nor_the_count_of_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a write hangs the event loop runs on; rows the full buffer had to drop end as one gap."""
    source, release = Source(), threading.Event()
    with Store.open(":memory:") as store:
        append_all = store.append_all

        def slow(tables: dict[str, pa.Table]) -> None:
            release.wait()
            append_all(tables)

        monkeypatch.setattr(store, "append_all", slow)
        writer = source.writer(store)
        source.waiting = {"gaps": gap_rows(1)}
        flushing = asyncio.create_task(writer.flush())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not flushing.done()
        source.dropped = 7
        release.set()
        await flushing
        await writer.flush()
        source.dropped = 9
        await writer.flush()
        assert source.gaps == []
        await writer.flush()
        assert [(gap[0], gap[1], gap[4]) for gap in source.gaps] == [("store", "dropped", 9)]


async def test_it_flushes_when_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pulse's row is written at once, not at the next turn of a clock."""
    monkeypatch.setattr("collectors.writer.FLUSH_S", 3600.0)
    source = Source()
    with Store.open(":memory:") as store:
        writer, written, loop = source.writer(store), asyncio.Event(), asyncio.get_running_loop()
        monkeypatch.setattr(store, "append_all", lambda tables: loop.call_soon_threadsafe(written.set))
        task = asyncio.create_task(writer.run())
        await asyncio.sleep(0)
        source.waiting = {"gaps": gap_rows(1)}
        writer.wake()
        await written.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_only_the_rows_own_fault_is_final(tmp_path: Path) -> None:
    """The cause of a failed append says whose fault it was: DuckDB's own error is kept."""
    with Store.open(tmp_path / "s.duckdb") as store, pytest.raises(PoascopeError) as failed:
        store.append_all({"gaps": gap_rows(1), "nonsense": gap_rows(1)})
    assert type(failed.value.__cause__).__name__ == "CatalogException"


async def test_a_write_whose_task_is_cancelled_is_not_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end the writer is cancelled while a thread still writes; the last flush waits for it, and every row is there once."""
    source, begun, release = Source(), threading.Event(), threading.Event()
    with Store.open(":memory:") as store:
        append_all = store.append_all

        def slow(tables: dict[str, pa.Table]) -> None:
            begun.set()
            release.wait()
            append_all(tables)

        monkeypatch.setattr(store, "append_all", slow)
        writer = source.writer(store)
        source.waiting = {"gaps": gap_rows(3)}
        running = asyncio.create_task(writer.run())
        writer.wake()
        await asyncio.to_thread(begun.wait)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        source.waiting = {"gaps": gap_rows(2)}
        last = asyncio.create_task(writer.flush())
        await asyncio.sleep(0)
        release.set()
        await last
        await writer.flush()
        with store.cursor() as cursor:
            assert named.gaps(cursor).num_rows == writer.rows == 5
