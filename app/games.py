"""The Games page in words and numbers: which game costs most, what each rests on, and what is not known. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from app import status
from app.charts.frame import number
from app.page import Head, Rows
from app.status import Objectives, Row, Tile, Verdict

COSTS = {
    "routing": ("Routing game", "imbalance_s"),
    "cache": ("Cache game", "cache_miss_s"),
    "resources": ("Resource game", "prefill_queue_s"),
}
ASSUMED = "Assumes that as many requests stay in flight, that a worker does as well in either pool, and that moving it is free."


def _texts(row: Row, column: str) -> list[str]:
    said = row.get(column)
    return [text for text in (said if said is not None else ()) if isinstance(text, str)]


def _text(row: Row, column: str) -> str:
    value = row.get(column)
    return value if isinstance(value, str) else ""


def _doubted(row: Row) -> bool:
    """The window is too thin, has gaps or a bad fit: what it says is drawn hollow, as PoA-hat is."""
    return any(q.startswith("doubt: ") for q in _texts(row, "quality"))


def _percent(row: Row, column: str) -> str:
    value = number(row.get(column))
    return "unknown" if value is None else f"{100 * value:.0f} %"


def head(rows: Rows, age_s: float | None, objectives: Objectives) -> Head:
    """The sentence on top, six numbers, and the sentences in the panels."""
    games = rows["games"]
    row: Row = games[-1] if games else {}
    return Head(verdict(row, age_s), tiles(row), said(row))


def verdict(row: Row, age_s: float | None) -> Verdict:
    if age_s is not None and age_s > status.STALE_S:
        return Verdict("unknown", "Cannot tell.", f"The newest signals are {age_s:.0f} s old.", "The sources below say what is silent.")
    if not row:
        return Verdict("unknown", "Nothing to judge yet.", "", "The games are played out every 5 s from the requests of the last 30.")
    answer, _, text = _text(row, "sentence").partition(": ")
    level: Any = "unknown" if _doubted(row) else {"none": "calm", "": "unknown"}.get(_text(row, "costliest"), "watch")
    return Verdict(level, f"{answer}:" if text else answer, text, _text(row, "lever"))


def tiles(row: Row) -> list[Tile]:
    at, n = row.get("at"), number(row.get("finished"))
    costliest, doubted = _text(row, "costliest"), _doubted(row)
    found = []
    trusts = {
        "routing": f"factor {factor:.3f}" if (factor := number(row.get("routing_ratio"))) is not None else status.reason(row, "routing"),
        "cache": f"{_percent(row, 'hit_chosen_ratio')} chosen of {_percent(row, 'hit_possible_ratio')} possible"
        if number(row.get("hit_chosen_ratio")) is not None
        else status.reason(row, "cache", "hit_chosen"),
        "resources": "waiting for prefill" if row.get("prefill_workers") is not None else status.reason(row, "resources"),
    }
    for game, (label, column) in COSTS.items():
        cost = number(row.get(column))
        each = cost / n if cost is not None and n else None
        value, unit = ("–", "") if each is None else status.seconds(max(0.0, each))
        state: Any = "none" if each is None else "hollow" if doubted else "warn" if game == costliest else "sound"
        found.append(Tile(game, label, value, f"{unit} a request" if unit else "", "", trusts[game], state, at, each))
    realised = number(row.get("hit_realised_ratio"))
    lost = number(row.get("lost_blocks"))
    trust = status.reason(row, "cache", "hit_realised") if realised is None else "of prompt blocks realised"
    trust += "" if lost is None else f" · {lost:.0f} lost to routing"
    value = "–" if realised is None else f"{100 * realised:.1f}"
    state = "none" if realised is None else "sound"
    found.append(Tile("hits", "Cache hits", value, "%" if realised is not None else "", "", trust, state, at, realised))
    prefill = number(row.get("prefill_busy_ratio"))
    trust = (
        status.reason(row, "prefill_busy", "resources")
        if prefill is None
        else f"decode {_percent(row, 'decode_busy_ratio')}, of their most"
    )
    value, state = ("–", "none") if prefill is None else (f"{100 * prefill:.0f}", "warn" if prefill > 0.9 else "sound")
    found.append(Tile("busy", "Prefill busy", value, "%" if prefill is not None else "", "", trust, state, at, prefill))
    wait, predicted = number(row.get("wait_s")), number(row.get("wait_predicted_s"))
    value, unit = ("–", "") if wait is None else status.seconds(wait)
    trust = status.reason(row, "resources") if wait is None else f"M/G/k {status.span(predicted)}" if predicted is not None else ""
    trust = trust or status.reason(row, "wait_predicted")
    found.append(Tile("wait", "Wait for prefill", value, unit, "", trust, "none" if wait is None else "sound", at, wait))
    return found


def said(row: Row) -> Mapping[str, list[str]]:
    """Sentences by panel: what a number rests on, what is assumed, and what is not known."""
    if not row:
        return {}
    quality = _texts(row, "quality")

    def about(*words: str) -> list[str]:
        reasons = (q.partition(": ")[2] for q in quality if q.startswith(words))
        return list(dict.fromkeys(f"{reason[0].upper()}{reason[1:]}." for reason in reasons if reason))

    factor, imbalance = number(row.get("routing_ratio")), number(row.get("imbalance_s"))
    price = (
        []
        if factor is None or imbalance is None
        else [f"Routing factor {factor:.3f}; an even deal would have saved {imbalance:.1f} s in all."]
    )
    return {
        "loads": price,
        "hits": [*_cache(row), *about("cache", "hit_")],
        "wait": about("wait_predicted"),
        "busy": about("resources: one pool", "resources: prefill", "resources: decode", "prefill_busy", "decode_busy"),
        "gains": [*_split(row), *about("resources: fewer", "resources: ITL", "resources: what", "resources: nothing")],
        "coupling": _texts(row, "coupling")
        or ["The games are tied together by the split, what is cached and who waits; nothing of it is known yet."],
    }


def _cache(row: Row) -> Sequence[str]:
    found = []
    if (lost := number(row.get("lost_blocks"))) is not None:
        found.append(f"{lost:.0f} blocks lost to routing: another worker held them.")
    tiers = _texts(row, "tiers")
    blocks_held: Any = row.get("tier_blocks")
    counts = [] if blocks_held is None else [int(v) for v in blocks_held]
    if tiers:
        found.append("Held: " + ", ".join(f"{blocks} in {tier}" for tier, blocks in zip(tiers, counts, strict=False)) + ".")
    return found


def _split(row: Row) -> Sequence[str]:
    p, d, equal, best = (number(row.get(c)) for c in ("prefill_workers", "decode_workers", "equilibrium_prefill", "optimum_prefill"))
    if p is None or d is None or equal is None or best is None:
        return []
    now, then = number(row.get("e2e_s")), number(row.get("e2e_optimum_s"))
    seconds = "" if now is None or then is None or best == p else f", {status.span(now)} a request becoming {status.span(then)}"
    return [
        f"Of {p + d:.0f} workers {p:.0f} prefill. The variational equilibrium (the next worker helps either SLO equally) has {equal:.0f}, "
        f"the social optimum {best:.0f}{seconds}.",
        ASSUMED,
    ]
