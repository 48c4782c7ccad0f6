"""The measured effect of each change of τ and ω, from stored requests and decisions: the rows of `effects`, live and of a closed store."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from queries.estimators.anarchy import share
from queries.estimators.effect import SETTLE_S, WINDOW_S, Effect, Served, Sides, estimate_effect, pooled, sides
from queries.memory import Memory, dead_workers, learn, past_prefill, stay
from queries.window import Floats, Requests, from_table

_TS, _STR, _F64, _U32 = pa.timestamp("us"), pa.string(), pa.float64(), pa.uint32()
SCHEMA = pa.schema(
    {"ts": _TS, "deployment": _STR, "applied_at": _TS, "mode": _STR, "regime": _STR, "actor": _STR, "why": _STR, "intent_at": _TS}
    | dict.fromkeys(("from_tau", "from_omega", "tau", "omega"), _F64)
    | dict.fromkeys(("before_from", "before_to", "after_from", "after_to"), _TS)
    | {"complete": pa.bool_(), "measure": _STR}
    | dict.fromkeys(("before", "after", "ratio", "low", "high"), _F64)
    | {"n_before": _U32, "n_after": _U32, "withheld": _STR, "confounded": _STR}
)
MEASURES = ("ttft_p50_s", "ttft_p99_s", "poa_hat", "finished_per_s")


def effects(rows: pa.Table) -> pa.Table:
    """From the rows of sql/effects.sql (changes with the requests round each) to one row a change and measure."""
    found = [row for change in _changes(rows) for row in _rows(change)]
    return pa.Table.from_pylist(found, schema=SCHEMA)


def _changes(rows: pa.Table) -> Iterator[pa.Table]:
    """One slice of the table for each change."""
    if not rows.num_rows:
        return
    at, name = rows["changed_at"].combine_chunks(), rows["changed"].combine_chunks()
    new = pc.or_(pc.not_equal(at[1:], at[:-1]), pc.not_equal(name[1:], name[:-1]))
    edges = [0, *(int(i) + 1 for i in np.flatnonzero(new.to_numpy(zero_copy_only=False))), rows.num_rows]
    for start, end in pairwise(edges):
        yield rows.slice(start, end - start)


def _rows(change: pa.Table) -> list[dict[str, Any]]:
    told = change.slice(0, 1).to_pylist()[0]
    requests = from_table(change.filter(pc.is_valid(change["request_id"])))
    changed_at = told["applied_at"] or told["changed_at"]
    around = sides(_seconds(changed_at), _maybe(told["previous_move_at"]), _maybe(told["next_move_at"]), _known_until(told, requests))
    head = {
        "ts": told["changed_at"],
        "deployment": told["changed"],
        "applied_at": told["applied_at"],
        "mode": told["mode"],
        "regime": told["decided_regime"],
        "actor": (told["actor"] or "unknown") if told["intent_at"] else "controller",
        "why": told["why"],
        "intent_at": told["intent_at"],
        "from_tau": told["from_tau"],
        "from_omega": told["from_omega"],
        "tau": told["to_tau"],
        "omega": told["to_omega"],
        "before_from": _moment(around.before[0]),
        "before_to": _moment(around.before[1]),
        "after_from": _moment(around.after[0]),
        "after_to": _moment(around.after[1]),
        "complete": around.complete,
    }
    if told["applied_at"] is None:
        why = f"not applied: {told['error']}" if told["error"] else "not applied: no actuator acknowledged it"
        measured: tuple[Effect, ...] = tuple(Effect(name, withheld=why) for name in MEASURES)
    else:
        measured = _measured(requests, around)
    names = [f.name for f in fields(Effect)]
    return [head | dict(zip(names, astuple(effect), strict=True)) for effect in measured]


def _known_until(told: dict[str, Any], requests: Requests) -> float:
    """Whoever arrived before this has ended, and so is stored: the store's newest second less the longest stay seen."""
    seen = requests.finished_at[~np.isnan(requests.finished_at)]
    newest = max([_seconds(t) for t in (told["known_until"], told["applied_at"]) if t] + ([float(seen.max())] if len(seen) else [0.0]))
    stays = (requests.finished_at - requests.arrived_at)[~np.isnan(requests.finished_at)]
    return newest - (float(stays.max()) if len(stays) else 0.0)


def _measured(requests: Requests, around: Sides) -> tuple[Effect, ...]:
    """The effects; PoA's curve is fitted on the requests of both sides together, so that both are held against the same optimum."""
    nothing = np.full(len(requests), np.nan)
    actual, unqueued, why = _poa(requests, around) if around.long_enough else (nothing, nothing, None)
    answered = ~np.isnan(requests.first_token_at)
    served = Served(
        arrived_at=requests.arrived_at,
        ttft_s=np.where(answered, requests.first_token_at - requests.arrived_at, np.inf),
        finished_at=np.where(requests.lost, np.nan, requests.finished_at),
        actual_s=actual,
        unqueued_s=unqueued,
    )
    return estimate_effect(served, around, why)


def _poa(requests: Requests, around: Sides) -> tuple[Floats, Floats, str | None]:
    """Seconds taken and seconds without queueing of each request, NaN where it has none; and why there are none at all."""
    actual = np.full(len(requests), np.nan)
    if not len(requests):
        return actual, actual, "no requests"
    alive = np.flatnonzero(~requests.lost)
    r = requests.take(~requests.lost)
    end = around.after[1] + WINDOW_S + SETTLE_S
    memory = learn(Memory(), r, end)
    pools = ["prefill", "decode"] if (r.prefill >= 0).any() else ["decode"]
    for pool in pools:
        if pool not in memory.curves:
            return actual, actual, f"{pool} {memory.reasons.get(pool, 'fit declined (no requests)')}"
    done = np.flatnonzero(~np.isnan(r.arrived_at + r.decode_started_at + r.finished_at) & ~past_prefill(r))
    dead = dead_workers(requests)
    shares = [share(stay(r, pool, dead)[0], memory.curves[pool], done, end, 1.0) for pool in pools]
    unqueued = actual.copy()
    actual[alive[done]] = r.finished_at[done] - r.arrived_at[done]
    unqueued[alive[done]] = np.sum([s.unqueued for s in shares], axis=0)
    return actual, unqueued, None


def _seconds(moment: datetime) -> float:
    return moment.replace(tzinfo=UTC).timestamp()


def _maybe(moment: datetime | None) -> float | None:
    return None if moment is None else _seconds(moment)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


@dataclass(frozen=True, slots=True)
class Expected:
    """What happened the last times these parameters were set: how often, how many of these could be measured, and those together.

    `last_at` (naive UTC) and `last_by`: the newest time. `doubt`: why the newest of those that do not count does not.
    """

    times: int
    measured: int
    last_at: datetime | None
    last_by: str | None
    effects: tuple[Effect, ...]
    doubt: str | None


def expected(rows: Sequence[Mapping[str, Any]], tau: float, omega: float) -> Expected:
    """From rows of `effects`, in order of time; only changes to exactly these parameters count, from whatever was in force before."""
    mine = [row for row in rows if (row["tau"], row["omega"]) == (tau, omega)]
    names = [f.name for f in fields(Effect)]
    by_measure: dict[str, list[Effect]] = {}
    sound: set[datetime] = set()
    doubt = None
    for row in mine:
        effect = Effect(**{name: row[name] for name in names})
        by_measure.setdefault(effect.measure, []).append(effect)
        if effect.withheld or effect.confounded:
            doubt = effect.withheld or effect.confounded
        else:
            sound.add(row["ts"])
    together = tuple(found for found in (pooled(by_measure.get(name, [])) for name in MEASURES) if found)
    times = {row["ts"] for row in mine}
    last_at, last_by = (mine[-1]["ts"], mine[-1]["actor"]) if mine else (None, None)
    return Expected(len(times), len(sound), last_at, last_by, together, doubt)
