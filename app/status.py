"""Am I in trouble? One sentence and six numbers from the newest signals. Pure: the clock is an argument."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.charts.frame import number
from app.charts.lost import PARTS

STALE_S = 10.0
TREND_S = 60.0
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`level` is how it looks, `answer` the short of it, `text` the evidence, `todo` what to do about it ("" for nothing)."""

    level: Literal["calm", "watch", "trouble", "unknown"]
    answer: str
    text: str
    todo: str = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """A number with its unit, the change in the last minute, what it rests on, and when it was true (`as_of`, Unix s)."""

    key: str
    label: str
    value: str
    unit: str
    delta: str
    trust: str
    state: Literal["sound", "hollow", "none", "alarm", "warn"]
    as_of: float | None
    point: float | None


@dataclass(frozen=True, slots=True)
class Objectives:
    """What is held against what: theta_s are the regime's thresholds, None where they are learnt."""

    slo_ttft_s: float
    slo_itl_s: float
    theta_s: tuple[float, float] | None = None


def seconds(value: float) -> tuple[str, str]:
    """A duration for reading: milliseconds below one second."""
    if value < 0.9995:
        return (f"{value * 1e3:.0f}" if value >= 0.01 else f"{value * 1e3:.1f}"), "ms"
    return (f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"), "s"


def span(value: float) -> str:
    return " ".join(seconds(value))


def objective(value: float) -> str:
    """A limit somebody typed: no more digits than they did."""
    return f"{value * 1e3:g} ms" if value < 1 else f"{value:g} s"


def ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def reason(row: Row, *words: str) -> str:
    """Why a column is NULL, in the words of `quality`; "no data" when nothing was said."""
    said = row.get("quality")
    quality = [q for q in (said if said is not None else ()) if isinstance(q, str)]
    found = next((q for word in words for q in quality if q.lower().startswith(word)), "no data")
    return found.partition(": ")[2] or found


def verdict(row: Row | None, age_s: float | None, objectives: Objectives) -> Verdict:
    """The sentence at the top. An old or unknown regime is never an answer."""
    if row is None or age_s is None:
        return Verdict("unknown", "Nothing to judge yet.", "", "The first signals come a second after a deployment is heard.")
    if age_s > STALE_S:
        silent = "Is the collector receiving events? The sources below say what is silent."
        return Verdict("unknown", "Cannot tell.", f"The newest signals are {age_s:.0f} s old.", silent)
    regime, itl = row.get("regime"), number(row.get("itl_p99_s"))
    inflight, knee = number(row.get("inflight")), number(row.get("knee_inflight"))
    answered, waiting = number(row.get("ttft_p99_s")), number(row.get("ttft_p99_censored_s"))
    worst, slo = max((v for v in (answered, waiting) if v is not None), default=None), objectives.slo_ttft_s
    latency = "" if worst is None else f"TTFT P99 {span(worst if answered is None else answered)}"
    if answered is not None and waiting is not None and waiting > 1.25 * answered:
        latency += f" ({span(waiting)} with those waiting)"
    if latency:
        latency += f" against an objective of {objective(slo)}"
    load = "" if inflight is None else f"{inflight:.0f} in flight" + (f" with the knee near {knee:.0f}" if knee else "")
    past = inflight is not None and knee is not None and inflight > knee
    evidence = ", ".join(part for part in (latency, load) if part) + "." if latency or load else ""
    if inflight is None:
        return Verdict("unknown", "Cannot tell: requests in flight unknown.", evidence, reason(row, "events"))
    known = isinstance(regime, str) and regime != "unknown"
    if _idle(row):
        over = f" It was {regime} when the last requests were served." if known and regime != "below" else ""
        return Verdict("calm", "No.", ("There is no traffic." if worst is None or not known else "Nothing is in flight.") + over)
    if not known:
        return Verdict("unknown", "Cannot tell: regime unknown.", evidence, reason(row, "regime", "ttft"))
    if regime == "saturated":
        return Verdict("trouble", "Yes: saturated.", evidence, lever(row))
    if worst is not None and worst > slo:
        where = "in transition" if regime == "transition" else "past the knee" if past else "though below the knee"
        return Verdict("trouble", f"Yes: TTFT is past its objective, {where}.", evidence, lever(row))
    if regime == "transition":
        return Verdict("watch", "Close: in transition.", evidence, lever(row))
    if itl is not None and itl > objectives.slo_itl_s:
        return Verdict(
            "watch", "Close: ITL is past its objective.", f"ITL P99 {span(itl)} against {objective(objectives.slo_itl_s)}. {evidence}"
        )
    if past:
        return Verdict("watch", "Close: past the knee.", evidence, lever(row))
    return Verdict("calm", "No: below the knee.", evidence)


def _idle(row: Row) -> bool:
    """Nothing is in flight and the regime was not judged anew: what it says is over."""
    return number(row.get("inflight")) == 0 and reason(row, "regime").startswith("no requests")


def _held(row: Row) -> bool:
    # NULL of a text column comes as None or, from a frame without any text, as NaN.
    return isinstance(row.get("poa_withheld"), str)


def lever(row: Row) -> str:
    """What most of the lost time is, and what helps: "" when PoA is withheld or little is lost (less than a tenth over the optimum)."""
    hat, parts = number(row.get("poa_hat")), [(number(row.get(part.column)) or 0.0, part) for part in PARTS]
    total = sum(max(0.0, seconds) for seconds, _ in parts)
    if hat is None or hat < 1.1 or _held(row) or total <= 0:
        return ""
    most, part = max(parts, key=lambda found: found[0])
    return f"{100 * most / total:.0f} % of the lost time is {part.name}: {part.lever}."


def before(rows: Sequence[Row], now: float) -> Row | None:
    """The row of a minute ago, if there was one near then."""
    near = [r for r in rows if abs(r["at"] - (now - TREND_S)) <= 5]
    return min(near, key=lambda r: abs(r["at"] - (now - TREND_S))) if near else None


def change(now: float | None, then: float | None, unit: str, scale: float = 1.0, digits: int = 0) -> str:
    if now is None or then is None:
        return ""
    moved = (now - then) * scale
    if abs(moved) < 0.5 * 10**-digits:
        return "steady"
    return f"{'+' if moved > 0 else '−'}{abs(moved):.{digits}f}{unit}"


def tiles(rows: Sequence[Row], objectives: Objectives) -> list[Tile]:
    """Regime, PoA-hat, TTFT P99, ITL P99, KV hits, in flight. `rows`: the last minutes, each with `at` (Unix s), oldest first."""
    row: Row = rows[-1] if rows else {}
    at = row.get("at")
    then: Row = (before(rows, at) if at is not None else None) or {}
    return [
        _regime(rows, row, at),
        _poa(row, then, at),
        _ttft(row, then, at, objectives),
        _itl(row, then, at, objectives),
        _kv(row, then, at),
        _load(row, then, at),
    ]


def _regime(rows: Sequence[Row], row: Row, at: float | None) -> Tile:
    regime, ewma, tau, omega = row.get("regime"), number(row.get("ttft_ewma_s")), number(row.get("tau")), number(row.get("omega"))
    known = isinstance(regime, str) and regime != "unknown"
    since = next((r["at"] for r in reversed(rows) if r.get("regime") != regime), None)
    steady = "" if since is None or at is None else f"for {at - since:.0f} s"
    over = known and _idle(row)
    said = f"EWMA {span(ewma)}" if ewma is not None and not over else reason(row, "regime", "ttft_ewma", "ttft")
    parts = [said, f"τ {tau:g} ω {omega:g}" if tau is not None and omega is not None else ""]
    level: Any = {"saturated": "alarm", "transition": "warn", "below": "sound"}.get(str(regime), "none")
    level = "hollow" if over else level
    return Tile("regime", "Regime", str(regime) if known else "unknown", "", steady, " · ".join(p for p in parts if p), level, at, ewma)


def _poa(row: Row, then: Row, at: float | None) -> Tile:
    hat, low, high, n = (number(row.get(c)) for c in ("poa_hat", "poa_low", "poa_high", "poa_n"))
    withheld, held = row.get("poa_withheld"), _held(row)
    count = f"n {n:.0f}" if n is not None else ""
    interval = f"{ratio(low)}–{ratio(high)}" if low is not None and high is not None else ""
    trust = f"withheld: {withheld}" if held else " · ".join(p for p in (interval, count) if p) or reason(row, "poa")
    state: Any = "none" if hat is None else "hollow" if held else "sound"
    return Tile(
        "poa",
        "PoA-hat",
        "–" if hat is None else ratio(hat),
        "" if hat is None else "×",
        change(hat, number(then.get("poa_hat")), "", 1, 2),
        trust,
        state,
        at,
        hat,
    )


def _ttft(row: Row, then: Row, at: float | None, objectives: Objectives) -> Tile:
    value, waiting = number(row.get("ttft_p99_s")), number(row.get("ttft_p99_censored_s"))
    shown, unit = ("–", "") if value is None else seconds(value)
    trust = (
        f"with waiting {span(waiting)}"
        if waiting is not None
        else reason(row, "ttft")
        if value is None
        else f"SLO {objective(objectives.slo_ttft_s)}"
    )
    state: Any = "none" if value is None else "alarm" if value > objectives.slo_ttft_s else "sound"
    return Tile("ttft", "TTFT P99", shown, unit, _moved(value, number(then.get("ttft_p99_s"))), trust, state, at, value)


def _moved(value: float | None, then: float | None) -> str:
    small = value is not None and then is not None and max(value, then) < 1
    return change(value, then, " ms", 1e3) if small else change(value, then, " s", 1, 2)


def _itl(row: Row, then: Row, at: float | None, objectives: Objectives) -> Tile:
    value, slo = number(row.get("itl_p99_s")), objectives.slo_itl_s
    shown, unit = ("–", "") if value is None else (f"{value * 1e3:.1f}", "ms")
    trust = (
        reason(row, "itl")
        if value is None
        else f"P50 {span(p50)} · SLO {objective(slo)}"
        if (p50 := number(row.get("itl_p50_s"))) is not None
        else f"SLO {objective(slo)}"
    )
    state: Any = "none" if value is None else "alarm" if value > slo else "sound"
    return Tile("itl", "ITL P99", shown, unit, change(value, number(then.get("itl_p99_s")), " ms", 1e3, 1), trust, state, at, value)


def _kv(row: Row, then: Row, at: float | None) -> Tile:
    value = number(row.get("kv_hit_ratio"))
    trust = reason(row, "kv") if value is None else "of prompt blocks"
    return Tile(
        "kv",
        "KV hit rate",
        "–" if value is None else f"{value * 100:.1f}",
        "" if value is None else "%",
        change(value, number(then.get("kv_hit_ratio")), " pt", 100, 1),
        trust,
        "none" if value is None else "sound",
        at,
        value,
    )


def _load(row: Row, then: Row, at: float | None) -> Tile:
    value, knee, headroom = number(row.get("inflight")), number(row.get("knee_inflight")), number(row.get("headroom_ratio"))
    unit = f"of {knee:.0f}" if knee else ""
    trust = (
        f"headroom {headroom * 100:.0f} %"
        if headroom is not None and headroom >= 0
        else f"{-headroom * 100:.0f} % past the knee"
        if headroom is not None
        else reason(row, "knee", "headroom")
    )
    state: Any = "none" if value is None else "alarm" if knee and value > knee else "warn" if knee and value > 0.8 * knee else "sound"
    return Tile(
        "inflight",
        "In flight / knee",
        "–" if value is None else f"{value:.0f}",
        unit,
        change(value, number(then.get("inflight")), ""),
        trust,
        state,
        at,
        value,
    )
