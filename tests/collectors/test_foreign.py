"""Traces of other tools, as these wrote them beside a recording of the same cluster: what they tell is read, what they do not is NULL."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from collectors import foreign
from poascope.cli import cli
from poascope.errors import PoascopeError
from tests.conftest import CAPTURES

TRACE, AIPERF = CAPTURES / "traces/dynamo-request-trace-1.6.1.jsonl.gz", CAPTURES / "traces/aiperf-0.13.jsonl.gz"
MOONCAKE = CAPTURES / "traces/mooncake-toolagent.jsonl"


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [str(a) for a in arguments])
    return result.exit_code, result.output


def records(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        return [json.loads(line) for line in file]


def requests(store: Path, **given: str) -> list[dict[str, Any]]:
    code, text = run("query", "requests", "--store", store, "--format", "json", *(f"--param={k}={v}" for k, v in given.items()))
    assert code == 0, text
    answer = json.loads(text)
    return [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]


def test_dynamos_request_trace_is_read_in_full(tmp_path: Path) -> None:
    """Every request_end is a row: workers to the last digit, blocks, stages; what the trace does not tell is NULL and said."""
    code, said = run("import", TRACE, "--store", tmp_path / "s.duckdb", "--deployment", "prod")
    assert code == 0 and "it does not tell when decoding began" in said
    rows, given = requests(tmp_path / "s.duckdb"), [r["event"]["request"] for r in records(TRACE)]
    assert len(rows) == len(given) > 50 and {row["deployment"] for row in rows} == {"prod"}
    by_id = {row["request_id"]: row for row in rows}
    for request in given:
        row, worker = by_id[request["request_id"]], request["worker"]
        assert (row["prefill_worker"], row["decode_worker"]) == (str(worker["prefill_worker_id"]), str(worker["decode_worker_id"]))
        assert row["input_blocks"] == len(request["replay"]["input_sequence_hashes"])
        assert row["overlap_blocks"] == request["cached_tokens"] // 16 and row["outcome"] == "finished"
        assert row["arrived_at"] <= row["prefill_done_at"] <= row["first_token_at"] <= row["finished_at"]
        assert row["decode_started_at"] is row["prefill_inflight"] is row["tau"] is row["regime"] is row["model"] is None
    assert run("import", TRACE, "--store", tmp_path / "s.duckdb")[1].endswith("nothing changed\n")


def test_aiperfs_records_are_the_clients_view(tmp_path: Path) -> None:
    """Each record is a request with the client's times; failed ones are lost, those never sent are none, workers are unknown."""
    given = records(AIPERF)
    failed = json.loads(json.dumps(given[0])) | {"error": {"type": "TimeoutError", "message": "late"}}
    failed["metadata"]["x_request_id"] = "failed"
    del failed["metrics"]["time_to_first_token"]
    skipped = json.loads(json.dumps(given[0]))
    skipped["metadata"]["context_overflow_skip"] = True
    file = tmp_path / "profile_export.jsonl"
    file.write_text("\n".join(json.dumps(r) for r in [*given, failed, skipped]) + "\nnonsense\n")
    code, said = run("import", file, "--store", tmp_path / "s.duckdb", "--json")
    done = json.loads(said)
    assert code == 0 and done["format"] == "aiperf" and done["rows"] == {"requests": len(given) + 1}
    assert done["notable"] == {"damaged": 1, "not a request": 1} and "workers" in done["lacks"]
    by_id = {row["request_id"]: row for row in requests(tmp_path / "s.duckdb", deployment="profile_export")}
    assert by_id["failed"]["outcome"] == "lost" and by_id["failed"]["first_token_at"] is None
    for record in given:
        row = by_id[record["metadata"]["x_request_id"]]
        assert row["outcome"] == "finished" and row["prefill_worker"] is row["input_blocks"] is row["prefill_done_at"] is None
        assert row["arrived_at"] < row["first_token_at"] < row["finished_at"]
    code, text = run("query", "latency_binned", "--store", tmp_path / "s.duckdb", "--param", "step_s=86400")
    assert code == 0 and ",ttft,40," in text


@pytest.mark.parametrize(
    ("first", "says"),
    [
        ({"event": {"schema": "dynamo.request.trace.v2", "event_type": "request_end"}}, "schema dynamo.request.trace.v2 is not known"),
        ({"schema": "dynamo.agent.trace.v1", "event_type": "request_end"}, "schema dynamo.agent.trace.v1 is not known"),
        ({"metadata": {"x_request_id": "a", "timestamp_ns": 1}, "metrics": {}}, "AIPerf records without request_start_ns"),
    ],
)
def test_a_schema_that_is_not_known_is_refused_by_its_name(tmp_path: Path, first: dict[str, Any], says: str) -> None:
    """Nothing is guessed: an unknown version names itself and leaves no store behind."""
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps(first) + "\n")
    code, said = run("import", file, "--store", tmp_path / "s.duckdb")
    assert code == 1 and says in " ".join(said.split())
    assert not (tmp_path / "s.duckdb").exists()


def test_a_version_that_changes_in_the_middle_imports_nothing(tmp_path: Path) -> None:
    """A file whose later records are of another version is refused whole."""
    lines = records(TRACE)[:3]
    lines[2]["event"]["schema"] = "dynamo.request.trace.v9"
    file = tmp_path / "t.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines))
    code, said = run("import", file, "--store", tmp_path / "s.duckdb")
    assert code == 1 and "v9" in said and not (tmp_path / "s.duckdb").exists()


def test_a_mooncake_trace_is_for_the_load_generator(tmp_path: Path) -> None:
    """It holds no outcomes: the refusal says what to do with it."""
    code, said = run("import", MOONCAKE, "--store", tmp_path / "s.duckdb")
    assert code == 1 and "poascope testbed load" in said


def test_recordings_are_none_of_these(capture: Path) -> None:
    """A recording is recognised as no foreign format, nor is what is no JSON; tool events of a trace are no requests."""
    assert foreign.recognise(capture, foreign.first_line(capture)) is None
    assert foreign.recognise(capture, b"\xff\x00") is None
    assert foreign.dynamo({"event": {"schema": foreign.DYNAMO_SCHEMA, "event_type": "tool"}}) is None
    with pytest.raises(PoascopeError, match="is not known"):
        foreign.recognise(capture, b'{"event": {"schema": "dynamo.x.v3"}}')
