import math
from datetime import UTC, datetime
from typing import Any

import pytest

from collectors.importer import import_capture
from poascope.settings import Settings
from queries import named
from queries.recompute import LEAD_S, RECOMPUTED, recompute
from store import Store
from tests.conftest import CAPTURES

NOW = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)


@pytest.fixture(scope="module")
def stored() -> tuple[list[dict[str, Any]], Any]:
    """Signals (with `at`) and requests of the 0.9.0 recording."""
    with Store.open(":memory:") as store:
        import_capture(CAPTURES / "cap-0.9.0-1p2d.jsonl.gz", store, Settings(), NOW)
        with store.cursor() as cursor:
            rows = [row | {"at": row["ts"].replace(tzinfo=UTC).timestamp()} for row in named.signals(cursor).to_pylist()]
            return rows, named.requests(cursor)


def test_the_rows_tell_again_what_the_messages_told(stored: tuple[list[dict[str, Any]], Any]) -> None:
    """Recomputed second by second, PoA-hat and the TTFT quantiles are those that were stored, but where a message came after its second."""
    signals, requests = stored
    again = recompute(requests, [row["at"] for row in signals], "dynamo", Settings())
    assert [row["ts"] for row in again] == [row["at"] for row in signals]
    for column in ("poa_hat", "ttft_p50_s", "ttft_p99_s", "e2e_p99_s", "poa_routing", "knee_inflight"):
        pairs = [(a[column], b[column]) for a, b in zip(signals, again, strict=True)]
        equal = [a is b if a is None or b is None else math.isclose(a, b, rel_tol=2e-3, abs_tol=1e-5) for a, b in pairs]
        assert sum(equal) >= 0.9 * len(pairs), column
        assert sum(a is not None for a, _ in pairs) > 20, column
    regimes = [(a["regime"], b["regime"]) for a, b in zip(signals, again, strict=True)]
    assert sum(a == b for a, b in regimes) >= 0.8 * len(regimes)
    assert {b for _, b in regimes} >= {"below", "saturated"}


def test_a_moment_in_the_middle_is_as_the_whole_says(stored: tuple[list[dict[str, Any]], Any]) -> None:
    """Starting late with the lead that LEAD_S asks for gives the same PoA-hat as starting at the beginning."""
    signals, requests = stored
    instants = [row["at"] for row in signals]
    whole, late = (recompute(requests, part, "dynamo", Settings()) for part in (instants, instants[45:]))
    assert LEAD_S > 1800
    for a, b in zip(whole[45:], late, strict=True):
        assert b["poa_hat"] == pytest.approx(a["poa_hat"], rel=0.02)
        assert set(b) == {"ts", *RECOMPUTED}


def test_nothing_is_recomputed_from_nothing(stored: tuple[list[dict[str, Any]], Any]) -> None:
    """No instants: no rows. No requests: rows that say nothing, never zero."""
    _, requests = stored
    assert recompute(requests, [], "dynamo", Settings()) == []
    (row,) = recompute(requests.slice(0, 0), [1_700_000_000.0], "dynamo", Settings())
    assert (row["poa_hat"], row["ttft_p99_s"], row["knee_inflight"]) == (None, None, None)
