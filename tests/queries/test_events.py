from datetime import UTC, datetime

import pyarrow as pa

from collectors.rows import SCHEMAS
from queries import named
from store import Store

T0 = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def at(offset_s: float) -> datetime:
    return datetime.fromtimestamp(T0 + offset_s, UTC).replace(tzinfo=None)


def test_everything_that_happened_stands_in_one_order() -> None:
    """Regimes when they change, overrides with who and why, switches only when parameters move, errors of acks, lost workers, gaps."""
    with Store.open(":memory:") as store, store.cursor() as cursor:
        regimes = ["below", "below", "transition", None, "transition", "saturated"]
        store.append("signals", pa.Table.from_pylist([{"ts": at(i), "deployment": "d", "regime": r} for i, r in enumerate(regimes)]))
        acts = [
            {
                "ts": at(2.1),
                "kind": "intent",
                "actor": "ann",
                "mode": "manual",
                "tau": 0.7,
                "omega": 1.0,
                "why": "spike",
                "expires_at": at(900),
            },
            {"ts": at(2.2), "kind": "target", "mode": "manual", "tau": 0.7, "omega": 1.0, "from_tau": 0.0, "from_omega": 1.0, "why": "ann"},
            {
                "ts": at(2.25),
                "kind": "target",
                "mode": "manual",
                "tau": 0.7,
                "omega": 1.0,
                "from_tau": 0.7,
                "from_omega": 1.0,
                "why": "again",
            },
            {"ts": at(2.3), "kind": "ack", "replica": "gateway", "error": "no such profile"},
            {"ts": at(2.4), "kind": "refusal", "actor": "controller", "why": "overtaken"},
        ]
        store.append("decisions", pa.Table.from_pylist([{"deployment": "d", **a} for a in acts], SCHEMAS["decisions"]))
        gaps = [
            {"source": "d/decode/17", "kind": "worker gone", "from": at(3), "to": at(18), "count": 4, "deployment": "d"},
            {"source": "nats", "kind": "disconnected", "from": at(3.5), "to": None, "count": None, "deployment": None},
            {"source": "nats", "kind": "lost", "from": at(3.6), "to": at(4), "count": 2, "deployment": "other"},
        ]
        store.append("gaps", pa.Table.from_pylist(gaps))
        rows = named.events(cursor, "d").to_pylist()
        assert [(r["kind"], r["what"], r["who"], r["why"]) for r in rows] == [
            ("regime", "below → transition", None, None),
            ("override", "manual τ 0.7 ω 1", "ann", "spike"),
            ("switch", "τ 0.7 ω 1", "manual", "ann"),
            ("ack", "nothing in force", "gateway", "no such profile"),
            ("refusal", "refusal", "controller", "overtaken"),
            ("worker gone", "d/decode/17", None, "4 requests lost with it"),
            ("gap", "nats: disconnected", None, None),
            ("regime", "transition → saturated", None, None),
        ]
        assert rows[1]["until"] == at(900)
        assert [r["kind"] for r in named.events(cursor, "d", T0 + 2.35, T0 + 3.2).to_pylist()] == ["refusal", "worker gone"]
