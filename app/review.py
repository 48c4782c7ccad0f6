"""Below the replay: what else could have been done, any request's life, and what to hand on. Each part reruns alone."""

import html
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import streamlit as st

from app import here
from app.charts.waterfall import waterfall
from app.incidents import iso
from app.live import Span
from app.status import span as duration
from app.theme import THEMES
from poascope.errors import PoascopeError
from queries.life import NEIGHBOURS_S, Life, life
from queries.verbs import about
from queries.whatif import answer as whatif
from queries.whatif.classify import SOURCES, Played, Rule, Switch, play, recorded_switches
from queries.whatif.policy import parse_policy
from queries.whatif.trace import trace_of

POLICIES = ("round-robin", "least-loaded", "kv:0:0", "kv:0:1", "kv:0.7:1", "kv:0.8:0.1")
CACHE_S = 1800.0  # of cache events before a request: what its workers held
LONGEST_S = 3600.0
HANDED_S = 6 * 3600.0  # of rows that go through this process and the browser
TURN_S = 60.0
_turn = threading.Lock()


def render(deployment: str, span: Span) -> None:
    """The three parts, each with its own button: nothing is computed before somebody asks."""
    asked, drilled, handed = st.tabs(["What if", "Requests", "Hand on"])
    with asked:
        _what_if(deployment, span)
        _classifier(deployment, span)
    with drilled:
        _requests(deployment, span)
    with handed:
        _hand_on(deployment, span)


def html_table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table of text; None is a dash."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    cells = ("".join(f"<td>{html.escape('–' if cell is None else str(cell))}</td>" for cell in row) for row in rows)
    return f'<table class="po-table"><tr>{head}</tr>{"".join(f"<tr>{row}</tr>" for row in cells)}</table>'


def paragraph(text: str) -> str:
    return f'<p class="po-note">{html.escape(text)}</p>'


def _short_enough(span: Span) -> None:
    if span[1] - span[0] > LONGEST_S:
        raise PoascopeError(f"a span of {(span[1] - span[0]) / 3600:.1f} h - choose one of at most {LONGEST_S / 3600:g} h")


@contextmanager
def _in_turn() -> Iterator[None]:
    """What takes a core for seconds runs for one viewer at a time: the live page goes on for the others. Raises PoascopeError."""
    if not _turn.acquire(timeout=TURN_S):
        raise PoascopeError(f"turn: others have computed for {TURN_S:g} s - try again")
    try:
        yield
    finally:
        _turn.release()


def _table(name: str, deployment: str, span: Span) -> pa.Table:
    return here.get().feed.rows(name, **{"deployment": deployment, "from": span[0], "to": span[1]})


@st.fragment
def _what_if(deployment: str, span: Span) -> None:
    st.html('<h2 class="po-title">Other routing, other workers</h2>')
    with st.form("what-if", border=False):
        chosen = st.multiselect(
            "Routing", POLICIES, POLICIES, help="kv:τ:ω is Dynamo's own rule. More can be typed.", accept_new_options=True
        )
        left, right = st.columns(2)
        prefill = left.number_input("Prefill workers more", -8, 8, 0)
        decode = right.number_input("Decode workers more", -8, 8, 0)
        pressed = st.form_submit_button("Play it again so")
    if not pressed:
        return
    try:
        _short_enough(span)
        policies = [parse_policy(text) for text in chosen]
        with st.spinner("Playing what happened, and then what did not"), _in_turn():
            names = ("requests", "kv_events", "signals")
            requests, kv_events, signals = (_table(name, deployment, span) for name in names)
            gaps = here.get().feed.rows("gaps", **{"from": span[0], "to": span[1]})
            trace = trace_of(deployment, requests, kv_events, gaps, signals, None)
            checked = whatif.validate(trace)
            cluster = whatif.more(trace.cluster, int(prefill), int(decode))
            answers = [whatif.ask(trace, checked, cluster, policy) for policy in policies]
            if cluster == trace.cluster:
                answers.append(whatif.optimum(trace, checked))
    except (PoascopeError, TimeoutError) as error:
        st.html(paragraph(f"Refused: {error}"))
        return
    st.html(answered(checked, answers))


def signed(share: float) -> str:
    """A relative error in percent, with its sign unless it is none."""
    return f"{100 * share:+.1f} %".replace("-", "−").replace("+0.0", "0.0").replace("−0.0", "0.0")


def answered(checked: whatif.Validation, answers: Sequence[whatif.Answer]) -> str:
    """The model's error first, then every answer or why there is none, then what all of them assume."""

    def row(what: str, s: whatif.Summary, low: whatif.Summary | None = None, high: whatif.Summary | None = None) -> list[object]:
        def told(field: str) -> str:
            value = duration(getattr(s, field))
            if low is None or high is None or getattr(high, field) - getattr(low, field) < 0.0005:
                return value
            return f"{value} ({duration(getattr(low, field))} to {duration(getattr(high, field))})"

        hits = None if s.hit_ratio is None else f"{100 * s.hit_ratio:.0f} %"
        return [what, f"{s.requests:.0f}", f"{s.per_s:.2f}", told("ttft_p50_s"), told("ttft_p99_s"), hits]

    error = checked.error
    rows: list[Sequence[object]] = [
        row("as it was", checked.recorded),
        row(f"the model, {checked.policy}", checked.played),
        ["its error", "", *(signed(error[name]) for name in ("per_s", "ttft_p50_s", "ttft_p99_s")), ""],
        *(row(a.question, a.value, a.low, a.high) for a in answers if a.value),
        *([a.question, None, None, f"mean ≥ {duration(a.bound_s)}", None, None] for a in answers if a.bound_s is not None),
    ]
    refused = dict.fromkeys(f"{a.question}: refused, {a.refused}." for a in answers if a.refused)
    said = dict.fromkeys(text for a in answers for text in a.assumptions)
    notes = "".join(f"<li>{html.escape(text)}</li>" for text in said)
    names = ("", "Requests", "Finished a second", "TTFT P50", "TTFT P99", "KV hits")
    return (
        html_table(names, rows) + "".join(map(paragraph, refused)) + f'<p class="po-note">It assumes:</p><ul class="po-list">{notes}</ul>'
    )


@st.fragment
def _classifier(deployment: str, span: Span) -> None:
    st.html('<h2 class="po-title">Other thresholds</h2>')
    with st.form("classifier", border=False):
        columns = st.columns(5)
        low = columns[0].number_input("θ₁ (s)", 0.001, 600.0, 0.3, format="%.3f")
        high = columns[1].number_input("θ₂ (s)", 0.002, 600.0, 2.0, format="%.3f")
        alpha = columns[2].number_input("α", 0.01, 1.0, 0.3)
        dwell_s = columns[3].number_input("Dwell (s)", 0.0, 600.0, 10.0)
        source = columns[4].selectbox("P99", SOURCES)
        pressed = st.form_submit_button("When would it have switched?")
    if not pressed:
        return
    try:
        _short_enough(span)
        with st.spinner("Playing the regime again"), _in_turn():
            signals = _table("signals", deployment, span)
            played = play(_table("requests", deployment, span), signals, Rule((low, high), alpha, dwell_s, source or SOURCES[0]))
    except (PoascopeError, TimeoutError) as error:
        st.html(paragraph(f"Refused: {error}"))
        return
    st.html(switched(played, recorded_switches(signals)))


def switched(played: Played, was: Sequence[Switch]) -> str:
    """Switches as they were and as they would have been, by time."""
    if played.refused:
        return paragraph(f"Refused: {played.refused}.")
    every = sorted([(s.at, "as it was", s) for s in was] + [(s.at, "as asked", s) for s in played.switches], key=lambda found: found[:2])
    rows = [
        [f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}", which, f"{s.before} → {s.after}", None if s.ewma_s is None else duration(s.ewma_s)]
        for at, which, s in every
    ]
    count = f"{len(was)} switches as it was, {len(played.switches)} as asked, {played.away} of these taken back within 30 s."
    notes = "".join(f"<li>{html.escape(text)}</li>" for text in played.assumptions)
    table = html_table(("UTC", "", "Regime", "Smoothed P99"), rows) if rows else ""
    return paragraph(count) + table + f'<p class="po-note">It assumes:</p><ul class="po-list">{notes}</ul>'


@st.fragment
def _requests(deployment: str, span: Span) -> None:
    feed = here.get().feed
    begins = st.text_input("Request id, or how it begins", key="request_like", placeholder="empty: the 50 slowest of this span")
    try:
        if begins.strip():
            found = feed.rows("requests_like", deployment=deployment, prefix=begins.strip()).to_pylist()
        else:
            found = _table("slowest", deployment, span).to_pylist()
    except (PoascopeError, TimeoutError) as error:
        st.html(paragraph(f"Cannot tell: {error}"))
        return
    if not found:
        st.html(paragraph("No such request." if begins.strip() else "No request got a first token in this span."))
        return
    names = {row["request_id"]: labelled(row) for row in found}
    chosen = st.selectbox("Request", list(names), format_func=lambda name: names.get(name, name), key="request")
    if chosen is None:
        return
    try:
        told = _life(deployment, chosen)
    except (PoascopeError, TimeoutError) as error:
        st.html(paragraph(f"Cannot tell: {error}"))
        return
    theme = THEMES["dark" if st.context.theme.type == "dark" else "light"]
    figure = waterfall(told, slo_s=feed.objectives.slo_ttft_s, theme=theme)
    st.plotly_chart(figure, width="stretch", config={"displayModeBar": False}, theme=None, key="waterfall")
    st.html(facts(told))


def labelled(row: Mapping[str, Any]) -> str:
    """TTFT, arrival and id of a request in one line."""
    ttft = "no first token" if row["ttft_s"] is None else f"TTFT {duration(row['ttft_s'])}"
    return f"{ttft} · {row['arrived_at']:%H:%M:%S} · {str(row['request_id'])[:80]}"


def _life(deployment: str, request_id: str) -> Life:
    feed = here.get().feed
    rows = feed.rows("request", deployment=deployment, request_id=request_id).to_pylist()
    if not rows:
        raise PoascopeError(f"request: {request_id[:80]} - is not there any more")
    (row, *_) = rows
    arrived = row["arrived_at"].replace(tzinfo=UTC).timestamp()
    until = max(t.replace(tzinfo=UTC).timestamp() for c in ("arrived_at", "prefill_done_at", "finished_at") if (t := row[c]) is not None)
    around = _table("requests", deployment, (arrived - NEIGHBOURS_S, until + 0.001))
    return life(row, around, _table("kv_events", deployment, (arrived - CACHE_S, until)))


def facts(told: Life) -> str:
    """What was known when it was routed: parameters, the workers it could have gone to, and what is not known."""
    row = told.row
    tau, omega = row["tau"], row["omega"]
    lines = [
        ["Id", row["request_id"]],
        ["Arrived (UTC)", f"{row['arrived_at']:%Y-%m-%d %H:%M:%S.%f}"[:-3]],
        ["TTFT, whole", f"{_seconds(told.ttft_s)}, {_seconds(told.e2e_s)}"],
        ["Prompt", "unknown" if row["input_blocks"] is None else f"{row['input_blocks']} blocks"],
        ["Overlap there", "unknown" if row["overlap_blocks"] is None else f"{row['overlap_blocks']} blocks"],
        ["Best overlap elsewhere", "unknown" if told.best_overlap_blocks is None else f"{told.best_overlap_blocks} blocks"],
        ["In force", "unknown" if tau is None or omega is None else f"τ {tau:g} ω {omega:g}"],
        ["Regime then", row["regime"]],
        ["Ended", row["outcome"]],
    ]
    workers = [
        [
            f"{c.worker[0]}, rank {c.worker[1]}",
            "chosen" if c.chosen else "",
            c.inflight,
            c.overlap_blocks,
            None if c.cost is None else f"{c.cost:g}",
        ]
        for c in told.candidates
    ]
    names = ("Worker", "", "In flight", "Overlap (blocks)", "Cost (blocks)")
    return html_table(("", ""), lines) + html_table(names, workers) + "".join(map(paragraph, told.notes))


def _seconds(value: float | None) -> str:
    return "none" if value is None else duration(value)


@contextmanager
def _reader(name: str, given: Mapping[str, Any]) -> Iterator[pa.RecordBatchReader]:
    yield here.get().feed.rows(name, **given).to_reader()


@st.fragment
def _hand_on(deployment: str, span: Span) -> None:
    """A report for whoever reads, a bundle for whoever looks further. Made when asked for."""
    if span[1] - span[0] > HANDED_S:
        many = f"A span of {(span[1] - span[0]) / 3600:.1f} h is too much for a browser, which takes up to {HANDED_S / 3600:g} h."
        st.html(paragraph(f"{many} The commands poascope report and poascope export write it to a file."))
        return
    since, until = iso(span[0]), iso(span[1])
    name = f"{deployment[:40]}-{since}".replace(":", "").replace("/", "-")
    one, two = st.columns(2)
    with one:
        st.html(paragraph("A report: one page that opens offline, with the charts, decisions, gaps and slowest requests."))
        if st.button("Make the report"):
            _offer(lambda path: path.write_bytes(_report(deployment, since, until)), f"{name}.html", "text/html")
    with two:
        st.html(paragraph("A bundle: every row of the span, of all deployments, with checksums. poascope dash FILE opens it anywhere."))
        hidden = st.checkbox("Pseudonymise ids and leave out free text")
        if st.button("Make the bundle"):
            _offer(lambda path: _bundle(path, since, until, hidden), f"{name}.duckdb", "application/octet-stream")


def _offer(make: Any, name: str, kind: str) -> None:
    try:
        with st.spinner("Writing"), _in_turn(), tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            make(path)
            made = path.read_bytes()
    except (PoascopeError, TimeoutError, OSError) as error:
        st.html(paragraph(f"Not made: {error}"))
        return
    st.download_button(f"Download {name} ({len(made) / 1e6:.1f} MB)", made, name, kind, on_click="ignore")


def _report(deployment: str, since: str, until: str) -> bytes:
    from app.report import render as written
    from app.reporting import tell

    known = here.get()
    return written(tell(_reader, known.settings, deployment, since, until, known.feed.collector.url))


def _bundle(path: Path, since: str, until: str, hidden: bool) -> None:
    import secrets

    from queries.bundle import GIVEN, write_bundle
    from queries.pseudonyms import Pseudonyms

    known, bounds = here.get(), {"from": since, "to": until}
    change = Pseudonyms(secrets.token_bytes(32)).rows if hidden else None
    said = about(known.settings, bounds, known.feed.collector.url, hidden)
    write_bundle(path, lambda name: _reader(name, {**bounds, **GIVEN.get(name, {})}), said, change)
