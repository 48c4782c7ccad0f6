from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest

from poascope.errors import PoascopeError
from store import Store
from store.migrations import Migration, applied, migrate, migrations


def test_each_number_is_taken_once() -> None:
    """Files are 0001, 0002, ...: two of one number, and one of them would never be applied."""
    numbers = [m.number for m in migrations()]
    assert numbers == sorted(set(numbers))


def test_each_is_applied_once_and_recorded(tmp_path: Path) -> None:
    """Opening twice changes nothing; a step added later is applied to an existing file."""
    path = str(tmp_path / "s.duckdb")
    for _ in range(2):
        Store.open(path).close()
    with duckdb.connect(path) as connection:
        assert applied(connection) == {m.number: m.name for m in migrations()}
        later = Migration(migrations()[-1].number + 1, "9999_later", "ALTER TABLE gaps ADD COLUMN note VARCHAR")
        migrate(connection, path, [*migrations(), later])
        assert applied(connection)[later.number] == "9999_later"
        connection.execute("SELECT note FROM gaps")


def test_the_time_of_a_step_is_utc() -> None:
    """Whatever the machine's time zone is, as every other time in the file."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'Asia/Tokyo'")
        migrate(connection, ":memory:")
        (at,) = connection.execute("SELECT max(applied_at) FROM schema_migrations").fetchone() or ()
    assert abs((datetime.now(UTC).replace(tzinfo=None) - at).total_seconds()) < 60


def test_a_store_from_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    """An old poascope neither reads nor changes a file whose schema it does not know."""
    path = str(tmp_path / "s.duckdb")
    Store.open(path).close()
    with duckdb.connect(path) as connection:
        connection.execute("INSERT INTO schema_migrations VALUES (999, '0999_future', now()::TIMESTAMP)")
    for read_only in (False, True):
        with pytest.raises(PoascopeError, match="0999_future"):
            Store.open(path, read_only=read_only)


def test_a_failed_step_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """A migration that fails half way is rolled back whole, and the error says which it was."""
    with duckdb.connect(str(tmp_path / "s.duckdb")) as connection:
        broken = Migration(1, "0001_broken", "CREATE TABLE a (x INTEGER); CREATE TABLE a (x INTEGER);")
        with pytest.raises(PoascopeError, match="cannot be brought up to date by 0001_broken, and is as it was"):
            migrate(connection, "s.duckdb", [broken])
        assert applied(connection) == {}
        assert connection.execute("SELECT count(*) FROM duckdb_tables()").fetchone() == (0,)
