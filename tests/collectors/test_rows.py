"""Rows on their way to the store."""

import math

import pytest

from collectors.core import Core
from collectors.rows import Rows
from poascope.settings import Settings


def test_a_row_that_no_table_holds_is_left_out_alone() -> None:
    """One impossible number costs its own row: the others of its table and the other tables are handed out, and it is counted."""
    rows = Rows()
    for i in range(100):
        rows.put("workers", ts=1.0, worker_id=i, waiting=2**32 if i == 42 else i)
    rows.put("gaps", source="s", kind="k")
    tables = rows.take()
    assert tables["workers"]["worker_id"].to_pylist() == [i for i in range(100) if i != 42]
    assert tables["gaps"].num_rows == 1 and rows.refused == {"workers": 1}


@pytest.mark.parametrize("time", [math.nan, math.inf, -1.0, 1e12])
def test_a_time_that_nobody_can_read_back_is_refused(time: float) -> None:
    """A row with such a time would break every query over its table."""
    rows = Rows()
    rows.put("requests", deployment="d", arrived_at=time)
    assert rows.refused == {"requests": 1} and rows.take() == {}


def test_refused_rows_are_a_gap() -> None:
    """What could not be stored is told in the next rows, with its table and how many there were."""
    core = Core(Settings())
    core.advance(10.0)
    core.rows.put("kv_events", ts=10.0, event_id=2**64)
    assert core.take() == {}
    (gap,) = core.take()["gaps"].to_pylist()
    assert (gap["source"], gap["kind"], gap["count"]) == ("store:kv_events", "refused", 1)
