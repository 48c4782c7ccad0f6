from dataclasses import fields
from pathlib import Path

import pytest

from poascope.errors import Misconfigured
from poascope.settings import Profile, Settings, load, to_env


def test_defaults() -> None:
    """Without a file, a variable or a flag the table's defaults hold."""
    assert load(env={}) == Settings()


def test_order(tmp_path: Path) -> None:
    """The file, then the environment, then flags: later ones win."""
    file = tmp_path / "p.toml"
    file.write_text('window_s = 10\nslo_ttft_s = 2\nstore = "f.duckdb"\n')
    got = load(file, env={"POASCOPE_WINDOW_S": "20", "POASCOPE_SLO_TTFT_S": "3"}, flags={"slo_ttft_s": 4.0, "store": None})
    assert (got.window_s, got.slo_ttft_s, got.store) == (20.0, 4.0, "f.duckdb")


def test_dynamo_names() -> None:
    """Dynamo's own variables are honoured, and a list is split at commas."""
    got = load(env={"NATS_SERVER": "nats://n:1", "DYN_NAMESPACE": "a, b"})
    assert (got.nats_url, got.namespaces) == ("nats://n:1", ("a", "b"))


def test_profiles(tmp_path: Path) -> None:
    """Profiles are tables of the file."""
    file = tmp_path / "p.toml"
    file.write_text('[[profiles]]\nname = "below"\ntau = 0\nomega = 1\nurl = "http://127.0.0.1:8000/"\n')
    assert load(file, env={}).profiles == (Profile("below", 0.0, 1.0, "http://127.0.0.1:8000"),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("windows_s = 3", "windows_s - no such setting"),
        ("window_s = 1", "window_s: 1.0 - must be within 5 and 600"),
        ('window_s = "x"', "window_s: 'x' - not a valid value"),
        ('preset = "9b"', "preset: 9b - must be one of 70b, 340b, learn"),
        ("window_s = nan", "window_s: nan - must be within"),
        ("window_s = ", "config:"),
        ('[[profiles]]\nname = "x"', "profiles:"),
    ],
)
def test_wrong(tmp_path: Path, text: str, says: str) -> None:
    """A wrong setting is refused by its name, value and what would do."""
    file = tmp_path / "p.toml"
    file.write_text(text)
    with pytest.raises(Misconfigured, match=says.replace("[", r"\[")):
        load(file, env={})


def test_missing_file(tmp_path: Path) -> None:
    """A file that was named and is not there is an error, not a default."""
    with pytest.raises(Misconfigured, match="no such file"):
        load(tmp_path / "none.toml", env={})
    with pytest.raises(Misconfigured, match="no such file"):
        load(env={"POASCOPE_CONFIG": str(tmp_path / "none.toml")})


def test_to_env_round_trip() -> None:
    """A child process that loads the environment made of settings has the same settings."""
    given = Settings(nats_url="nats://h:4", scrape=("http://a", "http://b"), window_s=12.5, api_port=0, preset="340b")
    assert load(env=to_env(given)) == given


def test_every_setting_is_described() -> None:
    """Each setting has a help text, and each but the profiles a variable of its own."""
    variables = [f.metadata["env"] for f in fields(Settings) if f.name != "profiles"]
    assert all(f.metadata["help"] for f in fields(Settings))
    assert all(variables) and len(set(variables)) == len(variables)
