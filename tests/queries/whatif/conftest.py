"""Recordings of real clusters, imported once a session."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest

from collectors.importer import import_capture
from poascope.settings import Settings
from queries import named
from store import Store

CAPTURES = Path(__file__).parents[2] / "captures"
TABLES = ("requests", "kv_events", "gaps", "signals")
Tables = dict[str, pa.Table]


@cache
def _imported(name: str) -> Tables:
    with Store.open(":memory:") as store:
        import_capture(CAPTURES / f"{name}.jsonl.gz", store, Settings(), datetime(2026, 12, 1, tzinfo=UTC))
        with store.cursor() as cursor:
            return {table: named.read(cursor, table, {}).read_all() for table in TABLES}


@pytest.fixture(scope="session")
def recorded() -> Iterator[Callable[[str], Tables]]:
    yield _imported
