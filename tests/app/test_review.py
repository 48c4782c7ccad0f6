"""What the review below a replay refuses to do, and that it does one thing at a time."""

import pytest
from streamlit.testing.v1 import AppTest

from app import review
from poascope.errors import PoascopeError


def _page() -> None:
    from app import review

    review._classifier("d", (0.0, 2 * 3600.0))
    review._hand_on("d", (0.0, 7 * 3600.0))


def said(page: AppTest) -> str:
    return "".join(element.proto.body for element in page.get("html"))


def test_a_span_too_long_for_this_process_is_refused_with_what_does_it() -> None:
    """Hours of requests are neither played again nor handed to a browser; the command line writes them."""
    page = AppTest.from_function(_page, default_timeout=30).run()
    assert [button.label for button in page.button] == ["When would it have switched?"]
    assert "poascope export" in said(page)
    page.button[0].click().run()
    assert not page.exception
    assert "a span of 2.0 h" in said(page)


def test_one_viewer_computes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits too long for the others is told so, and the turn is given back whatever happens in it."""
    monkeypatch.setattr(review, "TURN_S", 0.01)
    with review._in_turn(), pytest.raises(PoascopeError, match="try again"), review._in_turn():
        pass
    with pytest.raises(ValueError), review._in_turn():
        raise ValueError
    with review._in_turn():
        pass
