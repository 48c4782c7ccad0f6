"""The whole suite, with Python's cyclic garbage collector off but for a turn after each test module (see conftest.py).

CPython 3.11 fails with "AST constructor recursion depth mismatch" when the collector runs in the middle of ast.parse (gh-106905), which
pytest calls for every module that it rewrites: a run in twenty or so would end before its first test.
"""

import gc
import sys

import pytest

if __name__ == "__main__":
    gc.disable()
    sys.exit(pytest.main())
