"""The Replay page: which incidents there were, and each of them again, as it was on screen and as it looks today."""

import html
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import streamlit as st

from app import here, incidents, live, review
from app.charts.frame import number
from app.incidents import LATEST, iso, link
from app.live import Span
from app.panels import PAGES
from app.status import ratio
from app.status import span as duration
from poascope.errors import PoascopeError

AGO_S = 30 * 86400.0
AROUND_S = 120.0  # an incident is opened with what came before and after it
LISTED = 200
REPLAYED = ("live", "games")  # pages whose panels speak of the past


def moment(text: str | None) -> float | None:
    """Unix s of what stands in a link or was typed: ISO-8601 (UTC where it names no zone) or Unix seconds; None when it is neither.

    None also before 1970 and past 2286 (`LATEST`).
    """
    if not text:
        return None
    try:
        at = float(text)
    except ValueError:
        try:
            then = datetime.fromisoformat(text.strip())
        except ValueError:
            return None
        at = (then if then.tzinfo else then.replace(tzinfo=UTC)).timestamp()
    return at if 0 <= at < LATEST else None


def render() -> None:
    """With a span in the link that span, else the list."""
    known, asked = here.get(), st.query_params
    deployment = known.feed.choose(asked.get("deployment"))
    start, end = moment(asked.get("from")), moment(asked.get("to"))
    if deployment is None:
        st.html('<h2 class="po-title">Replay</h2><p class="po-note">No deployment heard yet: there is nothing to replay.</p>')
    elif start is None or end is None or not 0 < end - start <= 366 * 86400:
        if asked.get("from") or asked.get("to"):
            st.error("from, to: not a span - give two times (ISO-8601 in UTC, or Unix seconds), the first before the second")
        _list(deployment)
    else:
        _span(deployment, (start, end), moment(asked.get("at")))


def _list(deployment: str) -> None:
    known = here.get()
    with st.container(horizontal=True, vertical_alignment="bottom", key="toolbar"):
        if len(known.feed.deployments) > 1:
            chosen = st.selectbox("Deployment", known.feed.deployments, index=known.feed.deployments.index(deployment), width=220)
            deployment = chosen or deployment
        now = known.feed.clock()
        since = st.text_input("From (UTC)", iso(now - 1800), width=210, key="span_from")
        until = st.text_input("To (UTC)", iso(now), width=210, key="span_to")
        if st.button("Open this span"):
            st.query_params.from_dict({"deployment": deployment, "from": since, "to": until})
            st.rerun()
    try:
        found = known.feed.rows("incidents", **{"deployment": deployment, "from": known.feed.clock() - AGO_S})
    except (PoascopeError, TimeoutError) as error:
        st.html(f'<h2 class="po-title">Incidents</h2><p class="po-note">Cannot tell: {html.escape(str(error))}</p>')
        return
    st.html(table(found.to_pylist(), known.feed.clock()))


def table(rows: Sequence[Mapping[Any, Any]], now: float) -> str:
    """The incidents as an HTML table; whatever people wrote is text. No link leads past `now` (Unix s)."""
    head = '<h2 class="po-title">Incidents of the last 30 days</h2>'
    if not rows:
        none = "None: in what is kept the regime was never saturated, and nobody marked one. Zoom into any chart to mark a span."
        return f'{head}<p class="po-note">{none}</p>'
    lines = []
    for row in rows[:LISTED]:
        start, end = (row[c].replace(tzinfo=UTC).timestamp() for c in ("from", "to"))
        p99, hat = number(row["ttft_p99_s"]), number(row["poa_hat"])
        name = row["title"] if isinstance(row["title"], str) else "saturated"
        notes = row["notes"] if isinstance(row["notes"], str) else "" if isinstance(row["title"], str) else "found by the regime"
        who = row["author"] if isinstance(row["author"], str) else ""
        href = html.escape(link(row["deployment"], start - AROUND_S, max(end, min(end + AROUND_S, now)), start, row["id"]))
        cells = [
            f'<a href="{href}" target="_self">{html.escape(name[:200])}</a><small>{html.escape(notes[:300])}</small>',
            f"{datetime.fromtimestamp(start, UTC):%b %-d %H:%M:%S}",
            duration(end - start) if end - start < 120 else f"{(end - start) / 60:.1f} min",
            "–" if p99 is None else duration(p99),
            "–" if hat is None else f"{ratio(hat)} ×",
            str(int(row["overrides"])),
            str(int(row["gaps"])),
            html.escape(who[:60]),
        ]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    names = ("Incident", "Began (UTC)", "Lasted", "Worst TTFT P99", "Peak PoA-hat", "Overrides", "Gaps", "Marked by")
    more = f'<p class="po-note">and {len(rows) - LISTED} older ones</p>' if len(rows) > LISTED else ""
    return f'{head}<table class="po-table"><tr>{"".join(f"<th>{n}</th>" for n in names)}</tr>{"".join(lines)}</table>{more}'


def _span(deployment: str, span: Span, at: float | None) -> None:
    known = here.get()
    with st.container(horizontal=True, vertical_alignment="center", key="toolbar"):
        back = urlencode({"deployment": deployment})
        st.html(f'<a class="po-back" href="replay?{html.escape(back)}" target="_self">All incidents</a>')
        about = _named(deployment, span, st.query_params.get("incident", ""))
        if about and st.button("Name this incident" if about["title"] is None else "Rename, or take off the list"):
            begin, end = (about[c].replace(tzinfo=UTC).timestamp() for c in ("from", "to"))
            incidents.dialog(deployment, (begin, end), about["id"], about["title"] or "", about["notes"] or "")
        name = st.segmented_control("Panels", list(REPLAYED), default="live", required=True, key="panels", label_visibility="collapsed")
        anew = st.toggle("Recompute with today's estimators", key="anew")
    marked = live.past(PAGES[name or "live"], deployment=deployment, span=span, at=at if at else span[0], anew=anew, plotly=known.plotly)
    if marked:
        incidents.dialog(deployment, marked)
    review.render(deployment, span)


def _named(deployment: str, span: Span, incident: str) -> dict[str, Any] | None:
    """The incident that the link names, as far as it is still on the list."""
    if not incident:
        return None
    try:
        found = here.get().feed.rows("incidents", **{"deployment": deployment, "from": span[0], "to": span[1]}).to_pylist()
    except (PoascopeError, TimeoutError):
        return None  # the page below says that the source is away
    return next((row for row in found if row["id"] == incident), None)
