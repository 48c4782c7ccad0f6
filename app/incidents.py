"""Incidents: a span of time with a name. Marking one is an operator's word on NATS; the collector stores it."""

import uuid
from datetime import UTC, datetime
from urllib.parse import urlencode

import streamlit as st

from app import here, operators
from app.live import Span
from controller import bus
from controller.protocol import MAX_TEXT, Incident
from poascope.errors import PoascopeError

LATEST = 1e10  # Unix s: browsers, calendars and JSON go no further


def link(deployment: str, start: float, end: float, at: float | None = None, name: str = "") -> str:
    """The replay page on a span (Unix s); it is its own deep link. `name`: the id of the incident that it is about."""
    more = ({"at": f"{at:.0f}"} if at else {}) | ({"incident": name} if name else {})
    return "replay?" + urlencode({"deployment": deployment, "from": iso(start), "to": iso(end)} | more)


def iso(at: float) -> str:
    """UTC, to the second, of a moment that the page can open; one before 1970 or past 2286 is the nearest that it can."""
    at = min(max(at, 0.0), LATEST - 1)
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"


@st.dialog("Mark an incident")
def dialog(deployment: str, span: Span, name: str = "", title: str = "", notes: str = "") -> None:
    """Ask for a title and notes, and publish. `name`: the id of an incident that is there already, which is then renamed."""
    st.html(f'<p class="po-note">{iso(span[0])} to {iso(span[1])}, {span[1] - span[0]:.0f} s</p>')
    if here.get().file:
        st.html('<p class="po-note">A file is shown, and nothing can be written to it. Where it came from incidents can be marked.</p>')
        return
    if not operators.sign_in_form(deployment):
        return
    place = st.empty()
    with place.form("incident", border=False):
        called = st.text_input("Title", title, max_chars=MAX_TEXT)
        said = st.text_area("Notes", notes, max_chars=10_000)
        sent = st.form_submit_button("Mark", type="primary")
        gone = st.form_submit_button("Take off the list") if title else False
    if not (sent or gone):
        return
    if sent and not called.strip():
        st.error("Title: empty - say what it was")
        return
    problem = mark(deployment, span, name or uuid.uuid4().hex, called.strip() if sent else "", said.strip())
    if problem:
        st.error(problem)
        return
    place.empty()  # a second click would make another incident of it
    done = f"Marked. It is on the list of incidents. [Open the replay]({link(deployment, *span)})"
    st.markdown(done if sent else "Taken off the list.")


def mark(deployment: str, span: Span, name: str, title: str, notes: str) -> str:
    """Publish it under the operator's name; what went wrong, "" when nothing did."""
    try:
        operator = operators.require(deployment, f"incident: {title or 'taken off'}"[:200])
        incident = Incident(id=name, since=span[0], until=max(span[1], span[0] + 1), author=operator.name, title=title, notes=notes)
        bus.call(here.get().settings.nats, lambda b: b.mark(deployment, incident))
    except PoascopeError as error:
        return str(error)
    return ""
