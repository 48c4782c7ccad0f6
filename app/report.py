"""A report of a span of time: one HTML file that opens offline, with the charts of the Live page and what they are about. Pure.

Text from outside is escaped, data are JSON that no browser runs, and the page's policy lets only the two scripts run whose hashes it names.
"""

import base64
import hashlib
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import plotly

from app import payload
from app.charts.frame import number, with_gaps
from app.charts.load import choose
from app.page import Given
from app.panels import LIVE
from app.status import Objectives, ratio, span
from app.theme import THEMES, variables

PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
SCRIPT = Path(__file__).with_name("report.js")
STYLE = Path(__file__).with_name("report.css")
SLOWEST = 20
MAX_ROWS = 500
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Told:
    """What a report is made of. frames: signals (in bins of step_s), worker_inflight, decisions, gaps, requests."""

    deployment: str
    begin: datetime
    end: datetime
    step_s: int
    frames: Mapping[str, pd.DataFrame]
    objectives: Objectives
    about: Mapping[str, str] = field(default_factory=dict)


def sentence(told: Told) -> str:
    """The span in short: requests, the worst, the time in each regime, and who intervened."""
    signals, requests, decisions = told.frames["signals"], told.frames["requests"], told.frames["decisions"]
    lost = int((requests["outcome"] == "lost").sum()) if len(requests) else 0
    parts = [f"{len(requests)} requests arrived" + (f", {lost} of them lost" if lost else "")]
    for column, name, shown in (("ttft_p99_s", "TTFT P99", span), ("poa_hat", "PoA-hat", lambda v: f"{ratio(v)} ×")):
        values = pd.to_numeric(signals[column]) if column in signals else pd.Series(dtype=float)
        if column == "poa_hat" and len(values):
            values = values.where(signals["poa_withheld"].isna())
        if values.notna().any():
            worst = int(values.argmax())
            parts.append(f"{name} peaked at {shown(float(values.iloc[worst]))} at {signals['ts'].iloc[worst]:%H:%M:%S}")
    shares = signals["regime"].value_counts() if len(signals) else pd.Series(dtype=int)
    known = [regime for regime in ("transition", "saturated") if shares.get(regime, 0)]
    parts += [f"{regime} for {span(float(shares[regime] * told.step_s))}" for regime in known]
    intents = int((decisions["kind"] == "intent").sum()) if len(decisions) else 0
    parts.append(f"{intents} overrides by people" if intents != 1 else "one override by a person")
    missing = len(told.frames["gaps"])
    return "; ".join(parts) + (f". In {missing} gaps something was not seen." if missing else ".")


def render(told: Told) -> bytes:
    """The whole file."""
    scripts = [PLOTLY.read_text(), SCRIPT.read_text()]
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts)
    policy = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    title = f"{told.deployment[:120]}, {told.begin:%Y-%m-%d %H:%M:%S} to {told.end:%Y-%m-%d %H:%M:%S} UTC"
    style = f":root {{{variables(THEMES['light'])}}} @media (prefers-color-scheme: dark) {{ :root {{{variables(THEMES['dark'])}}} }}"
    panels = "".join(
        f"<section><h2>{html.escape(panel.title)}</h2><p>{html.escape(panel.hint)}</p>"
        f'<div class="plot" data-panel="{panel.key}"></div></section>'
        for panel in LIVE.panels
        if panel.draw
    )
    data = msgspec.json.encode(_charts(told)).decode().replace("<", "\\u003c")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy, quote=True)}">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>{html.escape(title)}</title><style>{style}\n{STYLE.read_text()}</style></head><body>"
        f"<h1>{html.escape(title)}</h1><p class=lead>{html.escape(sentence(told))}</p><main>{panels}</main>"
        f"{_tables(told)}<script type='application/json' id='data'>{data}</script>"
        f"<script>{scripts[0]}</script><script>{scripts[1]}</script></body></html>"
    ).encode()


def _charts(told: Told) -> dict[str, Any]:
    """Points once, and the figures around them for each theme."""
    signals, inflight, decisions = (told.frames[name] for name in ("signals", "worker_inflight", "decisions"))
    gapped, lines = with_gaps(signals, told.step_s), choose(inflight)
    found: dict[str, Any] = {"themes": {}}
    for name, theme in THEMES.items():
        frames = {query: pd.DataFrame() for query in LIVE.queries} | dict(told.frames) | {"signals": gapped}
        parts = payload.parts(payload.figures(LIVE, Given(frames, told.objectives, theme, lines)), whole=True)
        found["themes"][name] = {"figures": parts.pop("figures"), "shapes": payload.common(gapped, decisions, theme)}
        found |= parts
    found["named"] = [panel.key for panel in LIVE.panels if panel.named]
    found["range"] = [told.begin.timestamp() * 1e3, told.end.timestamp() * 1e3]
    return found


def _tables(told: Told) -> str:
    slow = told.frames["requests"]
    if len(slow):
        slow = slow.assign(ttft_s=(slow["first_token_at"] - slow["arrived_at"]).dt.total_seconds())
        slow = slow.assign(e2e_s=(slow["finished_at"] - slow["arrived_at"]).dt.total_seconds())
        slow = slow.sort_values("ttft_s", ascending=False, kind="stable").head(SLOWEST)
    return "".join(
        (
            _table("Decisions", told.frames["decisions"], ("ts", "kind", "actor", "mode", "regime", "tau", "omega", "why", "error")),
            _table("What was not seen", told.frames["gaps"], ("source", "kind", "from", "to", "count")),
            _table(
                f"The {SLOWEST} slowest first tokens",
                slow,
                (
                    "arrived_at",
                    "request_id",
                    "ttft_s",
                    "e2e_s",
                    "prefill_worker",
                    "decode_worker",
                    "prefill_inflight",
                    "tau",
                    "omega",
                    "outcome",
                ),
            ),
            _table("About", pd.DataFrame({"what": list(told.about), "value": list(told.about.values())}), ("what", "value")),
        )
    )


def _table(title: str, frame: pd.DataFrame, columns: Sequence[str]) -> str:
    shown = [column for column in columns if column in frame]
    head = f"<h2>{html.escape(title)}</h2>"
    if not len(frame):
        return f"{head}<p>None.</p>"
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(value))}</td>" for value in row) + "</tr>"
        for row in frame[shown].head(MAX_ROWS).itertuples(index=False)
    )
    more = f"<p>{len(frame) - MAX_ROWS} more are left out.</p>" if len(frame) > MAX_ROWS else ""
    return f"{head}<div class=wide><table><tr>{''.join(f'<th>{column}</th>' for column in shown)}</tr>{rows}</table></div>{more}"


def _cell(value: object) -> str:
    """Unknown is a dash, never a zero."""
    if value is None or value is pd.NaT or (isinstance(value, float) and value != value) or value is pd.NA:
        return "–"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S.%f}"[:-3]
    return f"{number(value):g}" if isinstance(value, float) else str(value)[:300]
