"""The early warning in words: its state, and the record without which it is decoration. Pure."""

from typing import Any

import pandas as pd

from app.charts.frame import number
from app.page import Rows
from app.status import Row, Verdict, ratio, span

NAMES = {"headroom": "headroom", "poa_ttft": "PoA of TTFT", "poa_hat": "PoA-hat", "ttft_ewma": "TTFT EWMA"}


def newest(rows: Rows) -> Row | None:
    """The record of the signal that spoke last."""
    found = rows["alarm_record"]
    return found[-1] if found else None


def _reading(signal: str, value: float) -> str:
    return f"{100 * value:.0f} %" if signal == "headroom" else span(value) if signal == "ttft_ewma" else ratio(value)


def _clock(value: Any) -> str:
    return pd.Timestamp(value).strftime("%H:%M:%S UTC") if value is not None else "?"


def state(row: Row) -> str:
    """What it does now, and by which signal."""
    signal, now = str(row["signal"]), str(row["state"])
    name, reference = NAMES.get(signal, signal), number(row.get("reference"))
    if now == "learning":
        why = row.get("why")
        return f"Learning what is usual of {name}: {why if isinstance(why, str) else 'no quiet time yet'}. It does not ring before."
    below = "below" if signal == "headroom" else "above"
    limit = "" if reference is None else f", which counts {below} {_reading(signal, reference)}"
    if now == "alarm":
        value = number(row.get("value"))
        shown = "" if value is None else f" at {_reading(signal, value)}"
        return f"Ringing since {_clock(row['since'])}: {name}{shown}{limit}."
    return f"Quiet since {_clock(row['since'])}. It listens to {name}{limit}."


def record(row: Row) -> str:
    """What it was worth so far."""
    breaches, warned, untested, false = (int(number(row.get(c)) or 0) for c in ("breaches", "warned", "untested", "false_alarms"))
    hours = (number(row.get("watched_s")) or 0.0) / 3600
    before = f" {untested} came before it had learnt." if untested else ""
    if hours == 0:
        return f"No record yet: untested.{before}"
    over = f"{false / hours:.1f} false alarms/h over {hours:.1f} h" if hours >= 1 else f"{false} false alarms in {60 * hours:.0f} min"
    if not breaches:
        return f"No breach yet: untested. {over[0].upper() + over[1:]}.{before}"
    lead, low, high = (number(row.get(c)) for c in ("lead_s", "lead_low_s", "lead_high_s"))
    ahead = "" if lead is None or low is None or high is None else f", lead {lead:.0f} s median ({low:.0f} to {high:.0f})"
    return f"Warned of {warned} of {breaches} breaches{ahead}; {over}.{before}"


def said(rows: Rows) -> dict[str, list[str]]:
    """The sentences of the panel."""
    row = newest(rows)
    if row is None:
        return {"alarm": ["Nothing heard of it in the last two minutes: it speaks once a deployment's requests are heard."]}
    return {"alarm": [state(row), record(row)]}


def warned(verdict: Verdict, rows: Rows) -> Verdict:
    """A calm verdict while the alarm rings is none."""
    row = newest(rows)
    if verdict.level != "calm" or row is None or row["state"] != "alarm":
        return verdict
    return Verdict("watch", "Close: the early warning rings.", f"{state(row)} {record(row)}", verdict.todo)
