import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.poascope.test_docs import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = sorted(name for name, service in SERVICES.items() if service["command"][0] == "poascope")


def test_schema() -> None:
    """The file is a Compose file, by the schema of the Compose specification."""
    check = Path(sys.executable).parent / "check-jsonschema"
    done = subprocess.run([check, "--builtin-schema", "vendor.compose-spec", ROOT / "docker-compose.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_profiles() -> None:
    """core is the watcher, observability adds Prometheus, demo adds the cluster and its load."""
    by_profile = {p: {name for name, s in SERVICES.items() if p in s["profiles"]} for p in ("core", "observability", "demo")}
    core = {"nats", "collect", "control", "dash"}
    assert by_profile == {"core": core, "observability": core | {"prometheus"}, "demo": core | {"testbed", "load"}}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_service(name: str) -> None:
    """No service runs as root or on an unpinned image, each that serves has a healthcheck, and state is in volumes."""
    service = SERVICES[name]
    assert re.fullmatch(r"\d+:\d+", service["user"]) and not service["user"].startswith("0:")
    assert re.search(r":v?\d+\.\d+\.\d+$", service["image"])
    assert service["read_only"] is True and service["volumes"]
    assert name == "load" or "healthcheck" in service
    for volume in service["volumes"]:
        source = volume.split(":")[0]
        assert source in COMPOSE["volumes"] or (ROOT / source).exists(), source


@pytest.mark.parametrize("name", OURS)
def test_command_parses(name: str) -> None:
    """Each command of ours is one the command line takes: its verb and every option of it are in its help."""
    words = SERVICES[name]["command"][1:]
    verb = words[: 2 if words[0] == "testbed" else 1]
    done = subprocess.run(
        [sys.executable, "-m", "poascope", *verb, "--help"], capture_output=True, text=True, env={"COLUMNS": "200", "PATH": ""}
    )
    assert done.returncode == 0, done.stderr
    for option in [word for word in words if word.startswith("--")]:
        assert option in done.stdout


def test_variables_are_settings() -> None:
    """Each variable that a service of ours gets is one that the settings read (or where its home is)."""
    known = (ROOT / "docs" / "configuration.md").read_text()
    for name in OURS:
        for variable in SERVICES[name].get("environment", {}):
            assert variable == "HOME" or f"`{variable}`" in known, f"{name}: {variable}"


def test_prometheus_config() -> None:
    """Prometheus itself accepts the configuration that the compose file mounts."""
    done = subprocess.run(["promtool", "check", "config", ROOT / "deploy" / "prometheus.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
