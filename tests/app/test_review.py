from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from app.pages.replay import moment, table
from app.review import answered, html_table, signed
from queries.whatif.answer import Answer, Summary, Validation
from tests.app.conftest import HOSTILE

BEGAN = datetime(2026, 1, 1, 2, 10)  # noqa: DTZ001 - as the store gives it
ROW = {
    "id": "saturated-1",
    "deployment": "d&1",
    "from": BEGAN,
    "to": BEGAN + timedelta(minutes=30),
    "title": None,
    "notes": None,
    "author": None,
    "ttft_p99_s": 16.2,
    "poa_hat": None,
    "overrides": 1,
    "gaps": 0,
}
WAS = Summary(100, 9.4, 3.0, 3.44, 5.0, 6.01, 8.0, None)


@pytest.mark.parametrize(
    ("share", "said"), [(0.061, "+6.1 %"), (-0.061, "−6.1 %"), (0.0001, "0.0 %"), (-0.0001, "0.0 %"), (10.05, "+1005.0 %")]
)
def test_an_error_has_a_sign_unless_it_is_none(share: float, said: str) -> None:
    """A minus is a minus, and nought has neither."""
    assert signed(share) == said


def test_a_refused_answer_says_why_and_the_error_stands_first() -> None:
    """Recorded, played, its error; then what was answered, and in words what was not; everything as text."""
    checked = Validation(WAS, replace(WAS, ttft_p50_s=4.3), {"per_s": 0.0, "ttft_p50_s": 0.25, "ttft_p99_s": 0.0}, "kv", "off by +25 %")
    said = answered(checked, [Answer(HOSTILE[:40], ("it assumes <b>much</b>",), refused="off by +25 %")])
    assert said.index("as it was") < said.index("the model, kv") < said.index("+25.0 %")
    assert "refused, off by +25 %" in said and "&lt;b&gt;much" in said and "<img" not in said


def test_the_list_of_incidents_is_text_and_leads_no_further_than_now() -> None:
    """Unknown numbers are dashes, names are escaped, and an incident that has just ended does not open on the future."""
    ended = (BEGAN - datetime(1970, 1, 1)).total_seconds() + 1800  # noqa: DTZ001
    said = table([ROW, ROW | {"title": HOSTILE, "notes": "<script>", "author": "ann"}], ended + 5)
    assert "<script>" not in said and "<img" not in said
    assert "to=2026-01-01T02%3A40%3A05Z" in said and "deployment=d%261" in said and "incident=saturated-1" in said
    assert "<td>16.2 s</td><td>–</td><td>1</td><td>0</td>" in said
    assert "in what is kept" in table([], ended)


@pytest.mark.parametrize("text", ["", "nan", "inf", "1e308", "-1", "yesterday", "2026-13-01", "9999-01-01"])
def test_what_is_no_moment_is_none(text: str) -> None:
    """Whatever stands in a link, the page has a time or none."""
    assert moment(text) is None
    assert moment("2026-01-01T02:10:00+01:00") == moment("2026-01-01T01:10:00Z") == moment("1767229800")


def test_a_table_of_text() -> None:
    """None is a dash, markup is text."""
    assert html_table(["<i>"], [[None], ["<b>"]]).count("&lt;") == 2
    assert "<td>–</td>" in html_table(["a"], [[None]])
