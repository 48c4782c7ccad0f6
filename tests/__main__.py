"""The whole suite on two processes: one has what needs a real cluster or a browser, which mostly waits, the other one all the rest.

Python's cyclic garbage collector is off but for a turn after each test module (conftest.py): CPython 3.11 fails with "AST constructor
recursion depth mismatch" when it runs in the middle of ast.parse (gh-106905), which pytest calls for every module that it rewrites. A run
in twenty or so would end before its first test.
"""

import gc
import sys

import pytest

if __name__ == "__main__":
    gc.disable()
    sys.exit(pytest.main(["-n", "2", "--dist", "loadgroup", *sys.argv[1:]]))
