"""The audit log: who wanted, decided and did what, why, and what it brought. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from app.chain import parameters
from app.charts.frame import number
from app.status import span
from queries.effects import Expected
from queries.estimators.effect import Effect

NAMES = {"ttft_p50_s": "TTFT P50", "ttft_p99_s": "TTFT P99", "poa_hat": "PoA-hat", "finished_per_s": "throughput"}
Row = Mapping[Any, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log, all text. `at`: Unix s. `effect`: what the change did, a line a quantity; `doubt`: why that is no claim."""

    at: float
    kind: str
    actor: str
    what: str
    why: str
    good: bool = True
    effect: list[str] = field(default_factory=list)
    doubt: str = ""


def entries(decisions: Sequence[Row], effects: Sequence[Row]) -> list[Entry]:
    """The newest first. The effect of a change stands with the operator's intent behind it, or else with the controller's own target."""
    by_time: dict[datetime, list[Row]] = {}
    for row in effects:
        by_time.setdefault(row["intent_at"] or row["ts"], []).append(row)
    found = []
    for row in reversed(decisions):
        lines, doubt = told(by_time.get(row["ts"], [])) if row["kind"] in ("intent", "target") else ([], "")
        found.append(
            Entry(
                at=row["ts"].replace(tzinfo=UTC).timestamp(),
                kind=str(row["kind"]),
                actor=next((v for v in (row["actor"], row["replica"]) if isinstance(v, str)), "unknown"),
                what=_what(row),
                why=next((v for v in (row["error"], row["why"]) if isinstance(v, str)), ""),
                good=not isinstance(row["error"], str) and row["kind"] != "refusal",
                effect=lines,
                doubt=doubt,
            )
        )
    return found


def _what(row: Row) -> str:
    tau, omega = number(row["tau"]), number(row["omega"])
    parts = [row["mode"] if isinstance(row["mode"], str) else "", parameters(tau, omega) if tau is not None and omega is not None else ""]
    before = number(row["from_tau"]), number(row["from_omega"])
    if row["kind"] == "target" and None not in before and before != (tau, omega):
        parts.append(f"from {parameters(*before)}")
    if row["kind"] in ("intent", "target") and isinstance(row["expires_at"], datetime):
        parts.append(f"until {row['expires_at']:%H:%M:%S}")
    return " ".join(part for part in parts if part)


def value(measure: str, seen: float | None) -> str:
    if seen is None:
        return "–"
    return (
        span(seen)
        if measure.endswith("_s") and measure != "finished_per_s"
        else f"{seen:.3g}" + (" req/s" if measure == "finished_per_s" else "")
    )


def told(rows: Sequence[Row]) -> tuple[list[str], str]:
    """The effect of one change: a line for each quantity that could be measured, and the doubt about all of it."""
    lines, doubts = [], []
    for row in rows:
        name, doubt = NAMES.get(row["measure"], row["measure"]), row["withheld"] or row["confounded"]
        if doubt:
            doubts.append(f"{doubt}")
        if row["ratio"] is None:
            continue
        low, high = row["low"], row["high"]
        claim = "" if row["confounded"] else ": no change seen" if low <= 1 <= high else ": fell" if high < 1 else ": rose"
        change = f"{value(row['measure'], row['before'])} → {value(row['measure'], row['after'])}"
        lines.append(f"{name} {change}, ×{row['ratio']:.2f} ({low:.2f}–{high:.2f}), n {row['n_before']} / {row['n_after']}{claim}")
    so_far = "" if not rows or rows[0]["complete"] else "so far: "
    reasons = list(dict.fromkeys(doubts))
    if lines and not so_far:
        return lines, "; ".join(reasons)
    return lines, f"{so_far}{'; '.join(reasons)}" if reasons else so_far.rstrip(": ")


def _pooled(effect: Effect) -> str:
    low, high = effect.low or 0.0, effect.high or 0.0
    claim = "no clear change" if low <= 1 <= high else "fell" if high < 1 else "rose"
    return f"{NAMES[effect.measure]} {claim}, ×{effect.ratio:.2f} ({low:.2f}–{high:.2f}), n {effect.n_before} / {effect.n_after}"


def expectation(known: Expected) -> list[str]:
    """What to expect of these parameters, from what happened the last times."""
    if not known.times:
        return ["Never done here: nothing is known about what it will do."]
    at = f"{known.last_at:%Y-%m-%d %H:%M} UTC" if known.last_at else ""
    count = "once" if known.times == 1 else f"{known.times} times"
    lines = [f"Done here {count}, last at {at} by {known.last_by}; {known.measured} of {known.times} could be measured."]
    if not known.effects:
        return [*lines, f"No effect can be claimed: {known.doubt}."]
    return [*lines, *(_pooled(effect) for effect in known.effects), "Ratios after/before with 90 % intervals; n: requests before / after."]
