"""Marking an incident: what the dialog says and does."""

from types import SimpleNamespace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app import here, incidents, operators


def _page() -> None:
    from app import incidents

    incidents.dialog("d", (0.0, 60.0))


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was published. An operator is signed in."""
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(here, "_here", [SimpleNamespace(file="")])
    monkeypatch.setattr(operators, "sign_in_form", lambda deployment: operators.Operator("ada", "token"))

    def mark(*given: Any) -> str:
        found.append(given)
        return ""

    monkeypatch.setattr(incidents, "mark", mark)
    return found


def test_a_mark_is_made_once_and_leads_to_its_replay(marks: list[tuple[Any, ...]]) -> None:
    """After the click the form is gone, so nothing can be pressed twice, and the link opens the span."""
    page = AppTest.from_function(_page, default_timeout=30).run()
    page.text_input[0].input("decode stalled")
    page.button[0].click().run()
    assert not page.exception
    assert [(deployment, span, title) for deployment, span, _, title, _ in marks] == [("d", (0.0, 60.0), "decode stalled")]
    assert not page.button
    assert "replay?deployment=d&from=1970-01-01T00%3A00%3A00Z&to=1970-01-01T00%3A01%3A00Z" in page.markdown[0].value


def test_a_mark_without_a_title_is_not_made(marks: list[tuple[Any, ...]]) -> None:
    """It says what is missing, and what was typed stays."""
    page = AppTest.from_function(_page, default_timeout=30).run()
    page.text_area[0].input("notes alone")
    page.button[0].click().run()
    assert not marks
    assert page.error[0].value.startswith("Title: empty")
    assert page.text_area[0].value == "notes alone"
