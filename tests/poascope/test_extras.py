import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from poascope.verbs import TESTBED

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("verb", [["demo"], ["testbed", "up"], ["testbed", "load", "steady"]])
def test_without_the_testbed_extra_a_verb_says_what_brings_it(verb: list[str]) -> None:
    """A plain installation has no Dynamo to start: the error names the extra, not a module of ours that failed to import."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({TESTBED!r})); sys.argv[1:] = {verb!r}; from poascope.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "poascope[testbed]" in done.stderr and "Traceback" not in done.stderr


def test_the_extra_brings_what_it_is_said_to() -> None:
    """Each module that is looked for by name is a dependency of the extra."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["testbed"]
    assert set(TESTBED) <= {requirement.split(">=")[0] for requirement in extra}
