"""Dynamo's own Python environment: it pins click, kubernetes and pydantic, so it never shares ours."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import uv

from poascope.errors import Misconfigured, PoascopeError

PINS = Path(__file__).parent / "pins"
DEFAULT_VERSION = "0.9.0"


def versions() -> list[str]:
    """The Dynamo versions a testbed can run: those whose pins are shipped."""
    return sorted(path.stem for path in PINS.glob("*.txt"))


def cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "poascope"


def ensure(version: str, tell: Callable[[str], None]) -> Path:
    """The python of that Dynamo's environment, made on first use (half a gigabyte). Raises Misconfigured, PoascopeError.

    Built aside and renamed, so that what stands under the final name is always whole.
    """
    if version not in versions():
        raise Misconfigured(f"dynamo: {version} - must be one of {', '.join(versions())}")
    home = cache_dir()
    home.mkdir(parents=True, exist_ok=True)
    final = home / f"dynamo-{version}"
    with (home / f"dynamo-{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pins = (PINS / f"{version}.txt").read_text()
        stamp = final / "pins.txt"
        if not (stamp.is_file() and stamp.read_text() == pins and (final / "bin" / "python").exists()):
            tell(f"making the environment of Dynamo {version} in {final} (first use only)")
            shutil.rmtree(final, ignore_errors=True)
            _build(version, home / f"dynamo-{version}.partial", pins)
            (home / f"dynamo-{version}.partial").rename(final)
    return final / "bin" / "python"


def _build(version: str, folder: Path, pins: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    program = uv.find_uv_bin()
    base = getattr(sys, "_base_executable", sys.executable)
    python = str(folder / "bin" / "python")
    # --no-deps: the pins are complete, and 1.5 and newer name a dependency that PyPI does not have.
    for command in (
        [program, "venv", "--quiet", "--relocatable", "--python", base, str(folder)],
        [program, "pip", "install", "--quiet", "--no-deps", "--python", python, "-r", str(PINS / f"{version}.txt")],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PoascopeError(f"dynamo {version}: {' '.join(command[:3])} failed - {done.stderr.strip()[-2000:]}")
    (folder / "pins.txt").write_text(pins)
