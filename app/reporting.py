"""What a report is told: the named queries of a span, from a file or a running collector."""

import platform
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa

from app.charts.frame import framed
from app.payload import step_s
from app.report import Told
from app.status import Objectives
from poascope import __version__
from poascope.errors import Misconfigured, PoascopeError
from poascope.settings import Settings
from queries import named
from queries.verbs import Rows

LONGEST = timedelta(days=1)  # every request of it is read


def tell(rows: Rows, settings: Settings, deployment: str | None, begin: str | None, end: str | None, source: str) -> Told:
    """Raises Misconfigured when it is not clear of what, PoascopeError when there is nothing."""
    bounds = named.bind(named.catalogue()["signals"], {"from": begin, "to": end})
    known = {row["deployment"]: row for row in _read(rows, "deployments", {}).to_pylist()}
    if not known:
        raise PoascopeError(f"report: {source} - holds no signals and no requests")
    if deployment is None and len(known) > 1:
        raise Misconfigured(f"deployment: not given - {source} has {', '.join(sorted(known))}; choose one with --deployment")
    chosen = deployment or next(iter(known))
    if chosen not in known:
        raise Misconfigured(f"deployment: {chosen} - not in {source}; it has {', '.join(sorted(known))}")
    since = _aware(bounds["from"] or known[chosen]["first_at"])
    until = _aware(bounds["to"] or known[chosen]["last_at"] + timedelta(seconds=1))
    if not timedelta(0) < until - since <= LONGEST:
        raise Misconfigured(
            f"from, to: {since:%Y-%m-%d %H:%M:%S} to {until:%Y-%m-%d %H:%M:%S} - must span more than nothing, at most a day"
        )
    length_s = (until - since).total_seconds()
    step = step_s(length_s)
    span = {"from": since.isoformat(), "to": until.isoformat()}
    one, binned = {"deployment": chosen} | span, {"deployment": chosen, "step_s": str(step)} | span
    signals = _read(rows, "signals", one) if step == 1 else _read(rows, "signals_binned", binned)
    frames = {
        "signals": framed(signals),
        "worker_inflight": framed(_read(rows, "worker_inflight", binned)),
        "decisions": framed(_read(rows, "decisions", one)),
        "gaps": framed(_read(rows, "gaps", span)),
        "requests": framed(_read(rows, "requests", one)),
    }
    if not len(frames["signals"]) and not len(frames["requests"]):
        raise PoascopeError(f"report: {source} - holds nothing of {chosen} in that span")
    about = {
        "source": source,
        "deployment": chosen,
        "made at": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC",
        "poascope": __version__,
        "DuckDB": duckdb.__version__,
        "Python": platform.python_version(),
        "one point": f"{step} s" + ("" if step == 1 else ": the worst latency and PoA of it, means of rates and counts"),
        "times": "UTC",
    }
    return Told(chosen, since, until, step, frames, Objectives(settings.slo_ttft_s, settings.slo_itl_s), about)


def _aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _read(rows: Rows, name: str, given: Mapping[str, Any]) -> pa.Table:
    with rows(name, given) as reader:
        return reader.read_all()
