"""The whole suite as two runs at the same time: what needs a real cluster or a browser, which mostly waits, and all the rest.

Python's cyclic garbage collector is off but for a turn after each test module (conftest.py): CPython 3.11 fails with "AST constructor
recursion depth mismatch" when it runs in the middle of ast.parse (gh-106905), which pytest calls for every module that it rewrites. A run
in twenty or so would end before its first test.
"""

import subprocess
import sys
import tempfile

PYTEST = "import gc, sys, pytest; gc.disable(); sys.exit(pytest.main(sys.argv[1:]))"
NOTHING_CHOSEN = 5


def main(args: list[str]) -> int:
    """The worse exit code of the two; the real run is told of when both have ended, so that their words do not mix."""
    with tempfile.TemporaryFile("w+b") as said:
        command = [sys.executable, "-c", PYTEST, *args, "-m"]
        real = subprocess.Popen([*command, "real"], stdout=said, stderr=said)
        codes = [subprocess.run([*command, "not real"], check=False).returncode, real.wait()]
        said.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(said.read())
    ended = [code for code in codes if code != NOTHING_CHOSEN]
    return max(ended, key=abs) if ended else NOTHING_CHOSEN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
