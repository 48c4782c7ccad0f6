from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from queries import named
from store import Store

T0 = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def at(offset_s: float) -> datetime:
    return datetime.fromtimestamp(T0 + offset_s, UTC).replace(tzinfo=None)


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open(":memory:") as store:
        yield store


def seconds(store: Store, regimes: dict[int, str], deployment: str = "d", **columns: Any) -> None:
    stamps = pa.array([at(s) for s in regimes], pa.timestamp("us"))
    store.append(
        "signals", pa.table({"ts": stamps, "deployment": [deployment] * len(regimes), "regime": list(regimes.values()), **columns})
    )


def mark(store: Store, when: float, name: str, since: float, until: float, title: str | None) -> None:
    row = {"marked_at": at(when), "deployment": "d", "id": name, "from": at(since), "to": at(until), "title": title, "author": "ann"}
    store.append("incidents", pa.Table.from_pylist([row]))


def found(store: Store, **span: Any) -> list[dict[str, Any]]:
    with store.cursor() as cursor:
        return named.incidents(cursor, **span).to_pylist()


def test_excursions_are_found_and_near_ones_are_one(store: Store) -> None:
    """Every stretch of saturated is an incident; stretches less than a minute apart are the same one, of another deployment never."""
    seconds(store, {s: "saturated" if s in (10, 11, 40, 200) else "below" for s in range(260)})
    seconds(store, {30: "saturated"}, deployment="other")
    assert [(i["id"], i["from"], i["to"]) for i in found(store, deployment="d")] == [
        (f"saturated-{T0 + 200:.0f}", at(200), at(201)),
        (f"saturated-{T0 + 10:.0f}", at(10), at(41)),
    ]
    assert [i["from"] for i in found(store, deployment="d", from_=T0 + 100)] == [at(200)]
    assert [i["deployment"] for i in found(store, to=T0 + 35)] == ["other", "d"]


def test_an_incident_says_its_worst_and_who_acted(store: Store) -> None:
    """Worst TTFT P99, peak of the PoA-hat that was not withheld, intents and gaps are those of its own span and deployment."""
    seconds(
        store,
        dict.fromkeys(range(4), "saturated") | {9: "below"},
        ttft_p99_s=[1.0, 7.0, 2.0, None, 99.0],
        poa_hat=[2.0, 50.0, 3.0, None, 99.0],
        poa_withheld=[None, "n=2 < 8", None, None, None],
    )
    acts = [(2, "d", "intent"), (3, "d", "target"), (3, "other", "intent"), (9, "d", "intent")]
    store.append("decisions", pa.Table.from_pylist([{"ts": at(s), "deployment": d, "kind": k} for s, d, k in acts]))
    gaps = [(1, 2, None), (1, 2, "other"), (20, 21, None)]
    store.append(
        "gaps", pa.Table.from_pylist([{"source": "x", "kind": "k", "from": at(a), "to": at(b), "deployment": d} for a, b, d in gaps])
    )
    (one,) = found(store, deployment="d")
    assert (one["ttft_p99_s"], one["poa_hat"], one["overrides"], one["gaps"]) == (7.0, 3.0, 1, 1)


def test_the_latest_word_about_an_incident_holds(store: Store) -> None:
    """A mark replaces the excursion it names, a later one replaces the earlier, and one without a title takes an incident off the list."""
    seconds(store, dict.fromkeys(range(5), "saturated"))
    name = f"saturated-{T0:.0f}"
    mark(store, 50, name, 0, 5, "spike")
    mark(store, 60, name, -10, 20, "spike of tenant 4")
    mark(store, 55, "by-hand", 100, 200, "odd")
    assert [(i["id"], i["title"], i["author"]) for i in found(store)] == [("by-hand", "odd", "ann"), (name, "spike of tenant 4", "ann")]
    mark(store, 70, "by-hand", 100, 200, None)
    mark(store, 71, name, 0, 5, None)
    assert found(store) == []
