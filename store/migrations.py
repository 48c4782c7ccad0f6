"""Numbered SQL files, applied once and in order, each recorded in the file it changed."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from poascope.errors import PoascopeError
from store import rollups

SCHEMA = Path(__file__).parent / "schema"
ROLLUPS = 7


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    sql: str


def migrations(folder: Path = SCHEMA) -> list[Migration]:
    """Every `NNNN_name.sql` of the folder, by number."""
    return [Migration(int(file.stem[:4]), file.stem, file.read_text()) for file in sorted(folder.glob("[0-9]*.sql"))]


def applied(connection: duckdb.DuckDBPyConnection) -> dict[int, str]:
    """Number and name of what the file already has; empty for a file that is new."""
    named = "SELECT 1 FROM duckdb_tables() WHERE table_name = 'schema_migrations' AND NOT internal"
    if not connection.execute(named).fetchone():
        return {}
    return dict(connection.execute("SELECT number, name FROM schema_migrations ORDER BY number").fetchall())


def check(connection: duckdb.DuckDBPyConnection, path: str, known: list[Migration]) -> list[Migration]:
    """The migrations that the file still lacks. Raises when the file is from a newer poascope, or is not a store at all."""
    have = applied(connection)
    newest = known[-1]
    for number, name in have.items():
        if number > newest.number:
            raise PoascopeError(
                f"store: {path} - written by a newer poascope (it has {name}, this one knows up to {newest.name}); upgrade poascope"
            )
    if not have and connection.execute("SELECT 1 FROM duckdb_tables() WHERE NOT internal").fetchone():
        raise PoascopeError(f"store: {path} - a DuckDB file, but not one of poascope's; name another file")
    return [migration for migration in known if migration.number not in have]


def migrate(connection: duckdb.DuckDBPyConnection, path: str, known: list[Migration] | None = None) -> None:
    """Bring the file to the newest schema; each step is one transaction with its record."""
    for migration in check(connection, path, known or migrations()):
        connection.execute("BEGIN")
        try:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS schema_migrations (number INTEGER PRIMARY KEY, name VARCHAR, applied_at TIMESTAMP)"
            )
            connection.execute(migration.sql)
            if migration.number == ROLLUPS:
                rollups.cover(connection)  # of the rows that are there already: from now on each append brings its own
            connection.execute(
                "INSERT INTO schema_migrations VALUES ($number, $name, $at)",
                {"number": migration.number, "name": migration.name, "at": datetime.now(UTC).replace(tzinfo=None)},
            )
            connection.execute("COMMIT")
        except duckdb.Error as error:
            connection.execute("ROLLBACK")
            why = str(error).splitlines()[0]
            raise PoascopeError(f"store: {path} - cannot be brought up to date by {migration.name}, and is as it was ({why})") from error
