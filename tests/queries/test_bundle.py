"""Bundles: whole and as written, or refused by a sentence that names what is not; without names of their origin where that is asked."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner

from poascope.cli import cli
from poascope.errors import PoascopeError
from queries import named
from queries.bundle import _own, open_bundle
from queries.pseudonyms import Pseudonyms
from store import Store
from tests.conftest import CAPTURES


def run(*arguments: object) -> str:
    result = CliRunner().invoke(cli, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of a real recording, its bundle, and its bundle under pseudonyms."""
    folder = tmp_path_factory.mktemp("bundles")
    run("import", CAPTURES / "aggregated-1.4.2.jsonl.gz", "--store", folder / "s.duckdb")
    with Store.open(folder / "s.duckdb") as store:
        store.change(
            "marking",
            lambda c: c.execute(
                "INSERT INTO incidents SELECT max(ts), 'dynamo', 'i1', min(ts), max(ts), 'Bob''s spike', 'call Bob', 'bob' FROM signals"
            ).fetchall(),
        )
    run("export", "--store", folder / "s.duckdb", "--out", folder / "b.duckdb")
    run("export", "--store", folder / "s.duckdb", "--out", folder / "p.duckdb", "--pseudonymise")
    return folder


def test_a_bundle_opens_elsewhere_and_says_what_it_is(made: Path, tmp_path: Path) -> None:
    """In another folder and process, without configuration, the bundle is checked and answers; plain DuckDB reads it as well."""
    moved = tmp_path / "elsewhere" / "night.duckdb"
    moved.parent.mkdir()
    shutil.copyfile(made / "b.duckdb", moved)
    code = (
        "from pathlib import Path\nfrom queries.bundle import _own, open_bundle\nfrom queries import named\n"
        "store, manifest = open_bundle(Path('night.duckdb'))\n"
        "print(sorted(manifest), named.requests(store.cursor()).num_rows, named.signals_binned(store.cursor(), 60).num_rows > 0)"
    )
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", code], cwd=moved.parent, env=env, capture_output=True, text=True, check=True)
    assert "'settings'" in told.stdout and told.stdout.endswith(" 54 True\n")
    with duckdb.connect(str(moved), read_only=True) as plain:
        assert plain.execute("SELECT count(*) FROM requests").fetchall() == [(54,)]
        assert plain.execute("SELECT title FROM incidents").fetchall() == [("Bob's spike",)]


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("UPDATE signals SET ttft_p99_s = 0.01 WHERE ttft_p99_s IS NOT NULL", "signals is not what was exported"),
        ("DELETE FROM requests WHERE request_id = (SELECT min(request_id) FROM requests)", "requests is not what was exported"),
        ("UPDATE signals_rollups SET inflight = 0", "signals_rollups is not what was exported"),
        ("UPDATE manifest SET value = replace(value, '\"rows\": 54', '\"rows\": 53') WHERE key = 'tables'", "its manifest was changed"),
    ],
)
def test_an_edited_bundle_is_refused(made: Path, tmp_path: Path, sql: str, says: str) -> None:
    """Whatever was changed after the export is named."""
    edited = tmp_path / "b.duckdb"
    shutil.copyfile(made / "b.duckdb", edited)
    with duckdb.connect(str(edited)) as editor:
        editor.execute(sql)
    with pytest.raises(PoascopeError, match=says):
        open_bundle(edited)


def test_a_hostile_bundle_touches_no_other_file(made: Path, tmp_path: Path) -> None:
    """A manifest that is right by its own checksum, with SQL for the name of a table, runs none of it; nor does a view read other files."""
    hostile, loot = tmp_path / "h.duckdb", tmp_path / "loot"
    shutil.copyfile(made / "b.duckdb", hostile)
    with duckdb.connect(str(hostile)) as editor:
        manifest = dict(editor.execute("SELECT key, value FROM manifest").fetchall())
        tables = json.loads(manifest["tables"])
        tables[f"gaps; COPY (SELECT 1) TO '{loot}'; SELECT * FROM gaps"] = tables["gaps"]
        manifest["tables"] = json.dumps(tables, sort_keys=True)
        manifest["sha256"] = json.dumps(_own(manifest))
        editor.executemany("UPDATE manifest SET value = $2 WHERE key = $1", list(manifest.items()))
        editor.execute(f"CREATE VIEW looks AS SELECT * FROM read_text('{__file__}')")
    with pytest.raises(PoascopeError, match="no table of ours"):
        open_bundle(hostile)
    assert not loot.exists()
    with Store.open(hostile, read_only=True) as store, store.cursor() as cursor:
        for sql in ("SELECT * FROM looks", f"COPY (SELECT 1) TO '{loot}'"):
            with pytest.raises(duckdb.PermissionException):
                cursor.execute(sql)


def test_a_span_without_anything_is_no_bundle(made: Path) -> None:
    """Nothing in the span asked for: said at once, instead of in a file that nobody can open."""
    told = CliRunner().invoke(
        cli, ["export", "--store", str(made / "s.duckdb"), "--from", "2031-01-01", "--out", str(made / "empty.duckdb")]
    )
    assert told.exit_code == 1 and "nothing to show" in told.output
    assert not list(made.glob("empty*"))


def test_a_missing_table_is_missing(made: Path, tmp_path: Path) -> None:
    """A table that was dropped is said to be missing, whatever the program itself calls by that name."""
    less = tmp_path / "l.duckdb"
    shutil.copyfile(made / "b.duckdb", less)
    with duckdb.connect(str(less)) as editor:
        editor.execute("DROP TABLE decisions")
    with pytest.raises(PoascopeError, match="Table with name decisions does not exist"):
        open_bundle(less)


def test_a_truncated_or_foreign_file_is_refused(made: Path, tmp_path: Path) -> None:
    """Cut anywhere, or no bundle at all: one clear line, from `dash` as from the function, and no traceback."""
    data = (made / "b.duckdb").read_bytes()
    for size in (100, len(data) // 2, len(data) - 4096):
        (tmp_path / "cut.duckdb").write_bytes(data[:size])
        with pytest.raises(PoascopeError, match=r"cut\.duckdb"):
            open_bundle(tmp_path / "cut.duckdb")
    told = CliRunner().invoke(cli, ["dash", str(tmp_path / "cut.duckdb")])
    assert told.exit_code == 1 and "cut.duckdb" in told.output and "Traceback" not in told.output
    with pytest.raises(PoascopeError, match="no such file"):
        open_bundle(tmp_path / "absent.duckdb")


def test_an_older_bundle_is_brought_up_to_date_in_a_copy(made: Path, tmp_path: Path) -> None:
    """A bundle that lacks a migration opens, and its file is not touched."""
    old = tmp_path / "old.duckdb"
    with Store.open(old) as store:
        store.change("ageing", lambda c: [c.execute("DROP TABLE incidents"), c.execute("DELETE FROM schema_migrations WHERE number = 8")])
    before = old.read_bytes()
    store, manifest = open_bundle(old)
    with store, store.cursor() as cursor:
        assert manifest == {} and named.incidents(cursor).num_rows == 0
    assert old.read_bytes() == before


def test_pseudonyms_hide_who_and_keep_what_belongs_together(made: Path) -> None:
    """No id or name of the origin is left anywhere in the file; a worker has one pseudonym in every table; times and counts stay."""
    whole, _ = open_bundle(made / "b.duckdb")
    hidden, manifest = open_bundle(made / "p.duckdb")
    with whole, hidden, whole.cursor() as theirs, hidden.cursor() as ours:
        assert manifest["pseudonymised"] is True and "source" not in manifest
        requests = named.requests(theirs).to_pylist()
        secret = {str(row[key]) for row in requests for key in ("request_id", "decode_worker", "model", "deployment")} | {"Bob", "bob"}
        text = "".join(
            str(ours.execute(f"SELECT * FROM {name}").fetchall())
            for (name,) in ours.execute(
                "SELECT table_name FROM duckdb_tables() WHERE NOT internal AND table_name <> 'schema_migrations'"
            ).fetchall()
        )
        assert not [name for name in secret - {"None"} if re.search(rf"\b{re.escape(name)}\b", text)]
        workers = {row["worker_id"] for row in named.workers(ours).to_pylist()}
        assert {row["decode_worker"] for row in named.requests(ours).to_pylist()} - {None} <= workers
        assert len(workers) == len({row["worker_id"] for row in named.workers(theirs).to_pylist()})
        assert max(workers) > 2**53
        labelled = {json.loads(row["labels"]).get("worker_id") for row in named.metric_samples(ours).to_pylist()} - {None}
        assert {
            int(one, 16) if len(one) == 16 and not one.isdigit() else int(one) for one in labelled if one.isalnum()
        } & workers or not labelled
        told = ["arrived_at", "first_token_at", "finished_at", "input_blocks", "overlap_blocks"]
        one, other = (sorted(map(str, named.requests(cursor).select(told).to_pylist())) for cursor in (ours, theirs))
        assert one == other
        (incident,) = ours.execute("SELECT title, notes, author FROM incidents").fetchall()
        assert incident[:2] == ("incident", None) and incident[2].startswith("x")


def test_a_pseudonym_depends_on_its_key_alone() -> None:
    """The same id under one key is the same, under another it is not; the three spellings of a worker agree."""
    one, other = Pseudonyms(b"a" * 32), Pseudonyms(b"b" * 32)
    worker = 11690860297328112195
    assert one.id(worker) == one.id(worker) != other.id(worker)
    assert one._label("worker_id", str(worker)) == str(one.id(worker))
    assert one._label("worker_id", f"{worker:016x}") == f"{one.id(worker):016x}"
    assert one._label("le", "0.5") == "0.5"
