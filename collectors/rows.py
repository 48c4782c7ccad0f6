"""Rows on their way to the store, kept as columns per table."""

from typing import Any

import pyarrow as pa

_TS = pa.timestamp("us")
_U64, _U32, _F64, _STR = pa.uint64(), pa.uint32(), pa.float64(), pa.string()

SCHEMAS: dict[str, Any] = {
    "requests": pa.schema(
        {
            "deployment": _STR, "request_id": _STR, "model": _STR,
            "prefill_worker": _U64, "prefill_dp_rank": _U32, "decode_worker": _U64, "decode_dp_rank": _U32,
            "arrived_at": _TS, "prefill_done_at": _TS, "decode_started_at": _TS, "first_token_at": _TS, "finished_at": _TS,
            "input_blocks": _U32, "overlap_blocks": _U32, "prefill_inflight": _U32, "decode_inflight": _U32,
            "tau": _F64, "omega": _F64, "regime": _STR, "outcome": _STR,
        }
    ),
    "signals": pa.schema(
        {
            "ts": _TS, "deployment": _STR,
            "inflight": _F64, "arrivals_per_s": _F64, "finished_per_s": _F64, "queued": _F64,
            "ttft_p50_s": _F64, "ttft_p90_s": _F64, "ttft_p99_s": _F64, "ttft_p99_censored_s": _F64, "ttft_p99_prometheus_s": _F64,
            "ttft_ewma_s": _F64, "itl_p50_s": _F64, "itl_p99_s": _F64, "e2e_p99_s": _F64, "kv_hit_ratio": _F64,
            "poa_hat": _F64, "poa_low": _F64, "poa_high": _F64, "poa_n": _U32, "poa_withheld": _STR,
            "poa_frozen": _F64, "poa_ttft": _F64, "poa_routing": _F64, "poa_temporal": _F64,
            "prefill_queue_s": _F64, "imbalance_s": _F64, "cache_miss_s": _F64, "transfer_s": _F64, "other_s": _F64,
            "knee_inflight": _F64, "headroom_ratio": _F64, "regime": _STR, "mode": _STR, "tau": _F64, "omega": _F64,
            "quality": pa.list_(_STR),
        }
    ),
    "workers": pa.schema(
        {
            "ts": _TS, "deployment": _STR, "component": _STR, "role": _STR, "worker_id": _U64, "dp_rank": _U32, "source": _STR,
            "inflight": _U32, "active_decode_blocks": _U64, "active_prefill_tokens": _U64, "kv_used_blocks": _U64,
            "running": _U32, "waiting": _U32, "step_s": _F64,
        }
    ),
    "kv_events": pa.schema(
        {
            "ts": _TS, "deployment": _STR, "component": _STR, "worker_id": _U64, "dp_rank": _U32, "event_id": _U64, "kind": _STR,
            "parent_hash": _U64, "block_hashes": pa.list_(_U64), "tier": _STR,
        }
    ),
    "metric_samples": pa.schema({"ts": _TS, "target": _STR, "name": _STR, "labels": _STR, "value": _F64}),
    "histogram_samples": pa.schema(
        {"ts": _TS, "target": _STR, "name": _STR, "labels": _STR, "le": pa.list_(_F64), "counts": pa.list_(_F64), "total": _F64}
    ),
    "decisions": pa.schema(
        {
            "ts": _TS, "deployment": _STR, "kind": _STR, "actor": _STR, "replica": _STR, "mode": _STR, "regime": _STR,
            "tau": _F64, "omega": _F64, "from_tau": _F64, "from_omega": _F64, "why": _STR, "revision": _U64, "expires_at": _TS,
            "error": _STR,
        }
    ),
    "incidents": pa.schema(
        {
            "marked_at": _TS, "deployment": _STR, "id": _STR, "from": _TS, "to": _TS,
            "title": _STR, "notes": _STR, "author": _STR,
        }
    ),
    "alarms": pa.schema(
        {
            "ts": _TS, "deployment": _STR, "signal": _STR, "event": _STR, "state": _STR, "since": _TS, "value": _F64, "reference": _F64,
            "lead_s": _F64, "watched_s": _F64, "why": _STR,
        }
    ),
    "gaps": pa.schema({"source": _STR, "kind": _STR, "from": _TS, "to": _TS, "count": _U64, "deployment": _STR}),
    "games": pa.schema(
        {
            "ts": _TS, "deployment": _STR, "finished": _U32, "costliest": _STR, "cost_s": _F64, "sentence": _STR, "lever": _STR,
            "routing_ratio": _F64, "imbalance_s": _F64,
            "hit_possible_ratio": _F64, "hit_chosen_ratio": _F64, "hit_realised_ratio": _F64, "lost_blocks": _F64, "cache_miss_s": _F64,
            "kv_workers": _U32, "kv_silent_workers": _U32, "tiers": pa.list_(_STR), "tier_blocks": pa.list_(_U64),
            "prefill_workers": _U32, "decode_workers": _U32, "prefill_busy_ratio": _F64, "decode_busy_ratio": _F64,
            "wait_s": _F64, "wait_predicted_s": _F64, "prefill_queue_s": _F64, "ttft_gain_s": _F64, "itl_gain_s": _F64,
            "equilibrium_prefill": _U32, "optimum_prefill": _U32, "e2e_s": _F64, "e2e_optimum_s": _F64,
            "prefill_busy_followed_ratio": _F64, "knee_inflight": _F64, "knee_followed_inflight": _F64,
            "coupling": pa.list_(_STR), "quality": pa.list_(_STR),
        }
    ),
    "game_loads": pa.schema(
        {"ts": _TS, "deployment": _STR, "role": _STR, "worker_id": _U64, "dp_rank": _U32, "load": _F64, "optimum": _F64}
    ),
}  # fmt: skip
_TIMES = {table: {f.name for f in schema if f.type == _TS} for table, schema in SCHEMAS.items()}

_LATEST = 253_402_300_800.0  # the year 10000: what reads a time back ends there

# Rows of one table that may wait for a writer that stalls; past it new ones are refused, and counted.
MAX_ROWS = 200_000


class Rows:
    """Columns per table, filled row by row and taken as Arrow tables. Times go in as Unix seconds."""

    def __init__(self) -> None:
        self._columns: dict[str, dict[str, list[Any]]] = {}
        self._counts: dict[str, int] = {}
        self.dropped = 0
        self.refused: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(self._counts.values())

    def put(self, table: str, **values: Any) -> None:
        """One row; a column that is not given is NULL. A full buffer refuses it and counts it in `dropped`."""
        count = self._counts.get(table, 0)
        if count >= MAX_ROWS:
            self.dropped += 1
            return
        columns = self._columns.get(table)
        if columns is None:
            columns = self._columns[table] = {f.name: [] for f in SCHEMAS[table]}
        times = _TIMES[table]
        if not all(0 <= value < _LATEST for name in times if (value := values.get(name)) is not None):
            self._refuse(table)
            return
        for name, column in columns.items():
            value = values.get(name)
            column.append(round(value * 1e6) if value is not None and name in times else value)
        self._counts[table] = count + 1

    def take(self) -> dict[str, pa.Table]:
        """Everything put since the last call, and an empty buffer. May run on another thread than `put`.

        A row that does not fit its table is left out and counted in `refused`: it must not hold back the others.
        """
        full, self._columns, self._counts = self._columns, {}, {}
        return {table: rows for table, columns in full.items() if (rows := self._table(table, columns)).num_rows}

    def _table(self, table: str, columns: dict[str, list[Any]]) -> pa.Table:
        schema = SCHEMAS[table]
        try:
            return pa.table([pa.array(columns[f.name], f.type) for f in schema], schema=schema)
        except (pa.ArrowException, OverflowError):
            count = len(next(iter(columns.values())))
            if count <= 1:
                self._refuse(table)
                return schema.empty_table()
            halves = [{name: column[half] for name, column in columns.items()} for half in (slice(count // 2), slice(count // 2, None))]
            return pa.concat_tables([self._table(table, half) for half in halves])

    def _refuse(self, table: str) -> None:
        self.refused[table] = self.refused.get(table, 0) + 1
