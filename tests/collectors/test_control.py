from typing import Any

import msgspec
import pytest

from collectors.core import Core
from controller.protocol import Incident, incident_subject
from poascope.settings import Settings

T0 = 1_767_225_600.0


def fed(*payloads: bytes) -> tuple[Core, list[dict[str, Any]]]:
    core = Core(Settings())
    for payload in payloads:
        core.feed_nats(T0, incident_subject("d.1"), payload)
    table = core.rows.take().get("incidents")
    return core, table.to_pylist() if table else []


def test_what_a_person_marked_is_a_row_of_incidents() -> None:
    """The message of the protocol is stored as it was said; an empty title is NULL, which takes the mark back."""
    said = Incident(id="x", since=T0 - 60, until=T0, author="ann", title="<b>spike</b>", notes="n")
    _, rows = fed(msgspec.json.encode(said), msgspec.json.encode(msgspec.structs.replace(said, title="")))
    assert [(r["deployment"], r["id"], r["title"], r["author"]) for r in rows] == [
        ("d.1", "x", "<b>spike</b>", "ann"),
        ("d.1", "x", None, "ann"),
    ]
    assert (rows[0]["from"].timestamp(), rows[0]["to"].timestamp()) == pytest.approx(
        (rows[0]["marked_at"].timestamp() - 60, rows[0]["marked_at"].timestamp())
    )


@pytest.mark.parametrize(
    "bad",
    [
        b"{}",
        b"[1]",
        b'{"id":"x","since":2,"until":1}',
        b'{"id":"x","since":"a","until":1e400}',
        b'{"id":"x","since":0,"until":253402300790}',
        b"\xff",
        b"",
    ],
)
def test_a_mark_that_says_no_span_is_counted(bad: bytes) -> None:
    """It is never a row, and never lost silently."""
    core, rows = fed(bad)
    assert rows == []
    assert [key for key in core.counters if key[0] == "unreadable"]
