from pathlib import Path

import pytest

from poascope.errors import Misconfigured, PoascopeError
from testbed import environment


def test_every_version_has_complete_pins() -> None:
    """Three versions, each with its own runtime and every line an exact pin."""
    assert environment.versions() == ["0.9.0", "1.4.2", "1.6.1"]
    for version in environment.versions():
        lines = (environment.PINS / f"{version}.txt").read_text().split()
        assert {f"ai-dynamo=={version}", f"ai-dynamo-runtime=={version}"} <= set(lines)
        assert all("==" in line for line in lines)


def test_an_unknown_version_lists_the_known() -> None:
    """It is a usage error, and nothing is made."""
    with pytest.raises(Misconfigured, match=r"0\.9\.0, 1\.4\.2, 1\.6\.1"):
        environment.ensure("2.0", lambda line: None)


def test_a_failed_build_leaves_nothing_under_the_final_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment appears by a rename at the end, so a build that fails cannot be mistaken for one that worked."""
    pins = tmp_path / "pins"
    pins.mkdir()
    (pins / "0.0.1.txt").write_text("/nonexistent/package.whl\n")
    monkeypatch.setattr(environment, "PINS", pins)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(PoascopeError, match=r"dynamo 0\.0\.1: "):
        environment.ensure("0.0.1", lambda line: None)
    assert not (tmp_path / "poascope" / "dynamo-0.0.1").exists()
