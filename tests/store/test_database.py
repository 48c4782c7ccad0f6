import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from poascope.errors import PoascopeError
from store import Store

BIG = [2**64 - 1, 16882743587675780000, 16882743587675780001, 2**53 + 1, 0]


def worker_rows(ids: list[int]) -> pa.Table:
    n = len(ids)
    return pa.table(
        {
            "worker_id": pa.array(ids, pa.uint64()),
            "ts": pa.array([0] * n, pa.timestamp("us")),
            "deployment": ["d"] * n,
            "component": ["backend"] * n,
            "source": ["events"] * n,
        }
    )


def count(path: Path) -> int:
    with Store.open(path, read_only=True) as store, store.cursor() as cursor:
        (n,) = cursor.execute("SELECT count(*) FROM workers").fetchone() or (0,)
        return int(n)


def test_u64_ids_survive_exactly(tmp_path: Path) -> None:
    """Ids beyond 2^63 that differ in the last digit come back as they went in, whatever the order of the columns."""
    with Store.open(tmp_path / "s.duckdb") as store:
        store.append("workers", worker_rows(BIG))
        with store.cursor() as cursor:
            assert [row[0] for row in cursor.execute("SELECT worker_id FROM workers").fetchall()] == BIG


def test_an_append_is_all_or_nothing(tmp_path: Path) -> None:
    """Rows with a column that the table does not have are refused whole, and the store goes on."""
    with Store.open(tmp_path / "s.duckdb") as store:
        with pytest.raises(PoascopeError, match="3 rows of workers not written"):
            store.append("workers", worker_rows([1, 2, 3]).append_column("nonsense", pa.array([1, 2, 3])))
        store.append("workers", worker_rows([4]))
    assert count(tmp_path / "s.duckdb") == 1


def test_a_second_process_is_told_the_owner(tmp_path: Path) -> None:
    """Whoever opens a file in use, even to read, learns the pid of its owner and what to do."""
    path = tmp_path / "s.duckdb"
    with Store.open(path):
        for read_only in (False, True):
            code = f"from store import Store\nStore.open({str(path)!r}, read_only={read_only})"
            other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            assert f"in use by pid {os.getpid()}" in other.stderr
            assert "--url" in other.stderr


def test_a_missing_or_foreign_file_is_named(tmp_path: Path) -> None:
    """A file that is absent, no database, or another program's database is refused with its name."""
    with pytest.raises(PoascopeError, match="no such file"):
        Store.open(tmp_path / "absent.duckdb", read_only=True)
    with pytest.raises(PoascopeError, match="cannot be opened"):
        Store.open(tmp_path / "no-folder" / "s.duckdb")
    (tmp_path / "junk.duckdb").write_text("junk" * 1000)
    with pytest.raises(PoascopeError, match=r"junk\.duckdb"):
        Store.open(tmp_path / "junk.duckdb")
    with duckdb.connect(str(tmp_path / "foreign.duckdb")) as foreign:
        foreign.execute("CREATE TABLE t (a INTEGER)")
    with pytest.raises(PoascopeError, match="not one of poascope's"):
        Store.open(tmp_path / "foreign.duckdb")


def test_an_empty_file_is_made_a_store(tmp_path: Path) -> None:
    """A file without a byte, as a crash at the first start leaves it, does not block its name; a reader does not touch it."""
    path = tmp_path / "s.duckdb"
    path.touch()
    with pytest.raises(PoascopeError, match="cannot be opened"):
        Store.open(path, read_only=True)
    with Store.open(path) as store:
        store.append("workers", worker_rows([1]))
    assert count(path) == 1


def test_a_read_only_store_takes_no_rows(tmp_path: Path) -> None:
    """A replay can read a closed file and cannot change it."""
    Store.open(tmp_path / "s.duckdb").close()
    with Store.open(tmp_path / "s.duckdb", read_only=True) as store, pytest.raises(PoascopeError, match="not written"):
        store.append("workers", worker_rows([1]))


def test_sigkill_while_appending_loses_at_most_the_last_flush(tmp_path: Path) -> None:
    """Every append that returned before a SIGKILL is there afterwards, for a reader and for the next writer."""
    path = tmp_path / "s.duckdb"
    code = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_database import worker_rows
        from store import Store
        store = Store.open({str(path)!r})
        while True:
            store.append("workers", worker_rows(list(range(1000))))
            print("flushed", flush=True)
    """)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout
    for _ in range(20):
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    flushed = 20 + child.stdout.read().count("flushed")
    child.wait()
    assert count(path) // 1000 in (flushed, flushed + 1)
    with Store.open(path) as store:
        store.append("workers", worker_rows([1]))
    assert count(path) // 1000 in (flushed, flushed + 1)


def test_a_full_disk_costs_the_append_and_not_the_store(tmp_path: Path) -> None:
    """While no byte can be written each append fails and says so; when there is room again appends work, and nothing kept is lost."""
    path = tmp_path / "s.duckdb"
    rows = worker_rows(list(range(20_000)))
    with Store.open(path) as store:
        store.append("workers", rows)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
        try:
            for _ in range(3):
                with pytest.raises(PoascopeError, match="20000 rows of workers not written"):
                    store.append("workers", rows)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        store.append("workers", rows)
    assert count(path) == 40_000
