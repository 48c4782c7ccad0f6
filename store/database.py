"""One process owns the file: one writer, and a cursor for each reader in that same process."""

import contextlib
import fcntl
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import duckdb
import pyarrow as pa

from poascope.errors import PoascopeError
from store import rollups
from store.migrations import check, migrate, migrations

T = TypeVar("T")
MEMORY_LIMIT = "512MB"
_OWNER = re.compile(r"\(PID (\d+)\)")
# No extension is ever fetched: a query must not wait for, or depend on, the network. A table that is not there is missing, whatever Python
# calls by its name.
_CONFIG: dict[str, str | bool | int | float | list[str]] = {"autoinstall_known_extensions": False, "python_enable_replacements": False}
# A file that somebody sent may bring views of its own: they read and write no other file.
_CLOSED = {"enable_external_access": False}


class Store:
    """Rows in by `append`, rows out by `cursor`; both may be called from any thread.

    A SIGKILL or a full disk costs at most the append under way: DuckDB replays its log on the next open.
    """

    def __init__(self, path: str, read_only: bool, connection: duckdb.DuckDBPyConnection, memory_limit: str) -> None:
        self.path, self.read_only = path, read_only
        self._connection, self._memory_limit = connection, memory_limit
        self._writing = threading.Lock()

    @classmethod
    def open(cls, path: str | Path, read_only: bool = False, memory_limit: str = MEMORY_LIMIT) -> "Store":
        """Open the file, and bring its schema up to date unless read-only. `:memory:` is a store that nobody keeps.

        Raises PoascopeError: another process owns it (named by its pid), it is from a newer version, or is no store.
        """
        name = str(path)
        if read_only and name != ":memory:" and not Path(name).is_file():
            raise PoascopeError(f"store: {name} - no such file; `poascope collect` or `poascope import` makes one")
        connection = _connect(name, read_only, memory_limit)
        try:
            if read_only:
                missing = check(connection, name, migrations())
                if missing:
                    raise PoascopeError(
                        f"store: {name} - lacks {missing[0].name}; open it once with `poascope collect` to bring it up to date"
                    )
            else:
                migrate(connection, name)
        except Exception:
            connection.close()
            raise
        return cls(name, read_only, connection, memory_limit)

    def append(self, table: str, rows: pa.Table) -> None:
        """Add the rows in one transaction; columns go by name, those left out are NULL. Raises PoascopeError, then none were added."""
        self.append_all({table: rows})

    def append_all(self, tables: Mapping[str, pa.Table]) -> None:
        """Add rows to several tables, and to the rollups what these rows are in short: all or none of it.

        Raises PoascopeError; its cause is DuckDB's own error.
        """
        given = {name: rows for name, rows in tables.items() if rows.num_rows}
        if not given:
            return
        with self._writing:
            cursor = self._connection.cursor()
            try:
                cursor.execute("BEGIN")
                for name, rows in given.items():
                    cursor.register("incoming", rows)
                    columns = ", ".join(f'"{column}"' for column in rows.column_names)
                    cursor.execute(f'INSERT INTO "{name}" ({columns}) SELECT {columns} FROM incoming')
                    rollups.add(cursor, name, f'(SELECT * FROM "{name}" WHERE false UNION ALL BY NAME SELECT * FROM incoming)')
                    cursor.unregister("incoming")
                cursor.execute("COMMIT")
            except duckdb.Error as error:
                if isinstance(error, duckdb.FatalException):
                    self._reopen()
                what = ", ".join(f"{rows.num_rows} rows of {name}" for name, rows in given.items())
                raise PoascopeError(f"store: {self.path} - {what} not written ({_first_line(error)})") from error
            finally:
                cursor.close()

    def change(self, what: str, within: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        """Run `within` as one transaction between two appends. Raises PoascopeError naming `what` was not done; then nothing changed."""
        with self._writing:
            cursor = self._connection.cursor()
            try:
                cursor.execute("BEGIN")
                done = within(cursor)
                cursor.execute("COMMIT")
                return done
            except duckdb.Error as error:
                if isinstance(error, duckdb.FatalException):
                    self._reopen()
                raise PoascopeError(f"store: {self.path} - {what} not done ({_first_line(error)})") from error
            finally:
                cursor.close()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A reader of its own; close it after use."""
        return self._connection.cursor()

    def close(self) -> None:
        with self._writing:
            self._connection.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _reopen(self) -> None:
        # After a fatal error (a checkpoint on a full disk) DuckDB refuses everything until the file is opened again.
        self._connection.close()
        self._connection = _connect(self.path, self.read_only, self._memory_limit)


def _connect(path: str, read_only: bool, memory_limit: str) -> duckdb.DuckDBPyConnection:
    if not read_only:
        _drop_empty(path)
    try:
        return duckdb.connect(path, read_only=read_only, config={**_CONFIG, **(_CLOSED if read_only else {}), "memory_limit": memory_limit})
    except duckdb.Error as error:
        owner = _OWNER.search(str(error))
        if owner and int(owner[1]) != os.getpid():
            raise PoascopeError(
                f"store: {path} - in use by pid {owner[1]}, and only one process can open it; "
                "ask that one over HTTP (--url with the address of the read API that it printed), stop it, or name another file (--store)"
            ) from error
        raise PoascopeError(f"store: {path} - cannot be opened ({_first_line(error)})") from error


def _drop_empty(path: str) -> None:
    """Remove a file without a byte in it, as a crash or a full disk at the very first start leaves it: DuckDB would refuse it for ever."""
    with contextlib.suppress(OSError):  # DuckDB says what is wrong with it
        if Path(path).is_file() and Path(path).stat().st_size == 0:
            with Path(path).open("r+b") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # DuckDB's own lock: not one that is being made just now
                Path(path).unlink()


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
