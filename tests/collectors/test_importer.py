"""`import`: once, whole, the same each time, and honest about what it could not read."""

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collectors.capture import Reader
from collectors.importer import import_capture
from poascope.cli import cli
from poascope.errors import Misconfigured, PoascopeError
from poascope.settings import Settings
from store import Store
from tests.conftest import CAPTURES

NAMES = ("requests", "signals", "workers", "kv_events", "decisions", "gaps")
SMALL = CAPTURES / "aggregated-1.4.2.jsonl.gz"
NOW = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [str(a) for a in arguments])
    return result.exit_code, result.output


def printed(store: Path) -> dict[str, str]:
    out = {}
    for name in NAMES:
        code, text = run("query", name, "--store", store)
        assert code == 0, text
        out[name] = text
    return out


def test_importing_again_changes_nothing_and_elsewhere_gives_the_same(capture: Path, tmp_path: Path) -> None:
    """A second import of a recording leaves every query byte-identical, and so does an import into a fresh store."""
    first, second = tmp_path / "a.duckdb", tmp_path / "b.duckdb"
    assert run("import", capture, "--store", first)[0] == 0
    before = printed(first)
    code, said = run("import", capture, "--store", first)
    assert code == 0 and "already in the store" in said
    assert run("import", capture, "--store", second)[0] == 0
    assert printed(first) == before == printed(second)
    assert len(before["requests"].splitlines()) == {"cap-0.9.0-1p2d.jsonl.gz": 561, "cap-1.6.1-1p2d.jsonl.gz": 614}[capture.name]


def test_the_summary_says_what_came_of_it(tmp_path: Path) -> None:
    """`--json` counts rows a table, lines, and what was skipped."""
    code, said = run("import", SMALL, "--store", tmp_path / "a.duckdb", "--json")
    done = json.loads(said)
    assert code == 0 and done["rows"]["requests"] == 54 and done["notable"] == {"skipped client": 54}
    assert done["lines"] == 2066 and done["open_requests"] == 0 and done["truncated"] is None


def test_an_import_that_fails_leaves_no_new_store(tmp_path: Path) -> None:
    """What brought nothing makes no file, and a folder is called one; a store that was there before stays."""
    store, junk = tmp_path / "a.duckdb", tmp_path / "junk.jsonl"
    junk.write_text("{}")
    for capture, says in (
        (tmp_path, "a folder; name the recordings in it"),
        (tmp_path / "absent", "no such file"),
        (junk, "is it a recording?"),
    ):
        code, said = run("import", capture, "--store", store)
        assert code != 0 and says in said
        assert sorted(tmp_path.iterdir()) == [junk]
    Store.open(store).close()
    assert run("import", junk, "--store", store)[0] == 1
    assert store.exists()


def test_a_recording_that_breaks_off_is_kept_up_to_there(tmp_path: Path) -> None:
    """Of a file cut in the middle everything before the cut is imported, and the end is named."""
    cut = tmp_path / "cut.jsonl.gz"
    data = SMALL.read_bytes()
    cut.write_bytes(data[: len(data) * 2 // 3])
    with Store.open(":memory:") as store:
        done = import_capture(cut, store, Settings(), NOW)
        assert done.truncated and 20 < done.rows["requests"] < 54 and done.open_requests > 0
        assert import_capture(cut, store, Settings(), NOW).already


def test_damaged_lines_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    """Lines that are no JSON, or whose payload is no base64, are counted; unknown sources are skipped by name."""
    with gzip.open(SMALL, "rt") as file:
        lines = file.read().splitlines()
    lines[100:100] = ["{", '{"t":1,"src":"nats","subject":"x","data":"*"}', '{"t":1,"src":"weather"}', '"text"', '{"src":"nats","t":"now"}']
    plain = tmp_path / "damaged.jsonl"
    plain.write_text("\n".join(lines))
    with Store.open(":memory:") as store:
        done = import_capture(plain, store, Settings(), NOW)
    assert done.rows["requests"] == 54
    assert done.counts["damaged"] == 4 and done.counts["skipped weather"] == 1


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    """Nothing in it can be read, or it is not there: an error that says so, and nothing is remembered."""
    text = tmp_path / "notes.txt"
    text.write_text("hello\nworld\n")
    with Store.open(":memory:") as store:
        with pytest.raises(PoascopeError, match="no line of it is a recorded message"):
            import_capture(text, store, Settings(), NOW)
        with store.cursor() as cursor:
            assert cursor.execute("SELECT count(*) FROM imports").fetchone() == (0,)
        with pytest.raises(Misconfigured, match="no such file"):
            import_capture(tmp_path / "none", store, Settings(), NOW)


def test_ids_survive_to_the_last_digit(tmp_path: Path) -> None:
    """Worker ids in the printed rows are, digit by digit, those the client was told."""
    run("import", CAPTURES / "cap-1.6.1-1p2d.jsonl.gz", "--store", tmp_path / "a.duckdb")
    text = printed(tmp_path / "a.duckdb")["requests"]
    with gzip.open(CAPTURES / "cap-1.6.1-1p2d.jsonl.gz", "rt") as file:
        told = [json.loads(line)["nvext"]["worker_id"] for line in file if '"src":"client"' in line]
    for worker in {str(w[f"{role}_worker_id"]) for w in told for role in ("prefill", "decode")}:
        assert f",{worker}," in text


def test_a_recording_of_metrics_alone_is_read_whole(tmp_path: Path) -> None:
    """Lines that bring many rows each fill no buffer: every sample of a long recording of an idle cluster is in the store."""
    lines, series = 1100, 200
    body = "".join(f'dynamo_frontend_queued_requests{{model="{i}"}} 0\n' for i in range(series))
    path, store = tmp_path / "idle.jsonl.gz", tmp_path / "a.duckdb"
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.writelines(
            json.dumps({"t": 1e9 + 5 * i, "src": "metrics", "target": "http://f:8000", "body": body}) + "\n" for i in range(lines)
        )
    code, said = run("import", path, "--store", store, "--json")
    done = json.loads(said)
    assert code == 0 and done["rows"]["metric_samples"] == lines * series
    assert done["counts"]["rows:dropped"] == 0


def test_a_gap_that_no_table_can_hold_is_damage(tmp_path: Path) -> None:
    """Times and counts out of any range are counted as damaged, and stop nothing."""
    path = tmp_path / "odd.jsonl"
    gap = {"t": 1e9, "src": "gap", "target": "nats", "kind": "disconnected", "since": 1e9, "until": 1e9}
    odd = [gap, gap | {"since": 1e300}, gap | {"until": -1e300}, gap | {"count": -1}, gap | {"count": 2**63}]
    path.write_text("\n".join(json.dumps(line) for line in odd))
    code, said = run("import", path, "--store", tmp_path / "a.duckdb", "--json")
    done = json.loads(said)
    assert code == 0 and done["rows"] == {"gaps": 1} and done["notable"] == {"damaged": 4}


@pytest.mark.parametrize("place", [0, 700, -1])
def test_a_line_of_another_century_is_left_out(place: int, tmp_path: Path) -> None:
    """A single line with an absurd time is counted and skipped, wherever it is: it ends no request."""
    with gzip.open(SMALL, "rt") as file:
        lines = file.read().splitlines()
    nats = next(json.loads(line) for line in lines if '"src":"nats"' in line)
    plain = tmp_path / "late.jsonl"
    plain.write_text("\n".join([*lines[:place], json.dumps(nats | {"t": 8e9}), *lines[place:]]))
    with Store.open(":memory:") as store:
        done = import_capture(plain, store, Settings(), NOW)
        assert store.cursor().execute("SELECT outcome, count(*) FROM requests GROUP BY 1").fetchall() == [("finished", 54)]
    assert done.counts["absurd time"] == 1


def test_a_recording_may_span_days(tmp_path: Path) -> None:
    """Where the lines after a jump agree with it, nothing is left out; neither is the only line of a recording."""
    line = {"src": "nats", "subject": "x.y", "data": ""}
    for times, kept in (([5.0, 6.0, 2e5, 2e5 + 1, 4e5, 4e5], 6), ([5.0], 1)):
        plain = tmp_path / f"{len(times)}.jsonl"
        plain.write_text("\n".join(json.dumps(line | {"t": t}) for t in times))
        assert len(list(Reader(plain))) == kept
