import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collectors.importer import import_capture
from poascope.cli import cli
from poascope.settings import Settings
from store import Store

CAPTURES = Path(__file__).parents[2] / "captures"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whatif") / "cap.duckdb"
    with Store.open(str(path)) as store:
        import_capture(CAPTURES / "cap-0.9.0-1p2d.jsonl.gz", store, Settings(), datetime(2026, 12, 1, tzinfo=UTC))
    return path


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["experiment", *args])
    return result.exit_code, result.output


def test_what_if_prints_its_error_first_and_its_assumptions_last(file: Path) -> None:
    """One table: recorded, the model, its error, then the answers; below it every assumption."""
    code, out = run("what-if", "--store", str(file), "--policy", "round-robin", "--policy", "kv:0.7:1")
    assert code == 0
    assert out.index("recorded") < out.index("its error") < out.index("round-robin") < out.index("Assumptions:") < out.index("closed loop")


def test_what_if_as_json_has_all_of_it(file: Path) -> None:
    """Validation with its error, and each answer with value, bounds and assumptions."""
    code, out = run("what-if", "--store", str(file), "--prefill", "1", "--policy", "kv", "--json")
    told = json.loads(out)
    assert code == 0 and told["deployment"] == "dynamo" and max(map(abs, told["validation"]["error"].values())) < 0.15
    (answer,) = told["answers"]
    assert answer["question"].startswith("2P/") and answer["value"]["ttft_p99_s"] < told["validation"]["recorded"]["ttft_p99_s"]
    assert answer["low"]["ttft_p99_s"] <= answer["value"]["ttft_p99_s"] <= answer["high"]["ttft_p99_s"] and answer["assumptions"]


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--loop", "ring"], 2, "must be open or closed"),
        (["--policy", "fastest"], 2, "policy: fastest"),
        (["--deployment", "nobody"], 2, "must be one of dynamo"),
        (["--to", "2000-01-01"], 1, "need 100"),
    ],
)
def test_wrong_questions_are_refused_by_their_code(file: Path, args: list[str], code: int, says: str) -> None:
    """2 for what is wrong in the question, 1 for what the trace cannot answer."""
    got, out = run("what-if", "--store", str(file), *args)
    assert got == code and says in out


def test_the_classifier_is_asked_beside_what_it_did(file: Path) -> None:
    """Both lists of switches, as text and as JSON."""
    code, out = run("classifier", "--store", str(file), "--theta", "1,10")
    assert code == 0 and out.index("as it was") < out.index("as asked") and "below → transition" in out
    code, out = run("classifier", "--store", str(file), "--json")
    assert code == 0 and [s["after"] for s in json.loads(out)["recorded"]] == ["transition", "saturated", "below"]
    assert run("classifier", "--store", str(file), "--theta", "high")[0] == 2
    assert run("classifier", "--store", str(file), "--theta", "2,1")[0] == 1
