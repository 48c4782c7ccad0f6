from collections.abc import Callable

import numpy as np
import pyarrow as pa

from queries.whatif.paths import paths
from queries.window import from_table
from tests.queries.test_life import row, stored, table

Recorded = Callable[[str], dict[str, pa.Table]]


def test_a_path_is_what_was_stored_and_all_that_came_before_it() -> None:
    """A run that hangs on a stored parent has the parent's path; the blocks of the request less those are what it computed."""
    requests = from_table(table([row("a", (0.0, 1.0, 1.1, 1.2, 5.0), overlap_blocks=0), row("b", (0.5, 2.0, 2.1, 2.2, 6.0))]))
    found = paths(requests, table([stored(1.0, 1, 1, [11, 12, 13]), stored(2.0, 1, 2, [22, 23], 11)], "kv_events"))
    assert found.path == ((11, 12, 13), (11, 22, 23)) and found.computed.tolist() == [4.0, 3.0]
    assert not found.evicted and found.most == 5


def test_what_does_not_fit_is_not_given() -> None:
    """A run of another length, of another worker or far off in time belongs to nobody here; evictions are seen."""
    requests = from_table(table([row("a", (0.0, 1.0, 1.1, 1.2, 5.0), overlap_blocks=0)]))
    events = [stored(1.0, 1, 1, [1, 2]), stored(1.0, 2, 2, [1, 2, 3]), stored(9.0, 1, 3, [4, 5, 6]), stored(9.5, 1, 4, [4], kind="removed")]
    found = paths(requests, table(events, "kv_events"))
    assert found.path == (None,) and np.isnan(found.computed).all() and found.evicted


def test_every_recorded_prefill_is_told_with_what_it_really_computed(recorded: Recorded) -> None:
    """0.9.0: all 560 prompts; blocks computed are never more than the router thought, for more was held by then."""
    tables = recorded("cap-0.9.0-1p2d")
    requests = from_table(tables["requests"])
    found = paths(requests, tables["kv_events"])
    assert all(found.path) and (found.computed <= requests.input_blocks - requests.overlap_blocks).all()
    assert len({path[:4] for path in found.path if path}) <= 5 * 40  # the recording's templates and variants
