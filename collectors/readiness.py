"""What the collector says of its sources: which are there, how old their last word is, what is missing and what brings it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collectors.process import Collector

STALE_S = 10.0
STALLED_S = 3.0
NO_ROUTING = (
    "no routing events are heard: start the frontends with --router-mode kv --router-replica-sync, "
    "and everything with DYN_EVENT_PLANE=nats (ZMQ events do not pass NATS)"
)
NO_METRICS = "ITL, queue and, on 1.x, hit rate come from metrics: give --prometheus URL or --scrape URL"

Source = dict[str, Any]


def readiness(collector: "Collector", now: float) -> dict[str, Any]:
    """The body of /readyz: ready when events can come in, are pulsed and are stored, whether or not anything is said at the moment."""
    needed = [_nats(collector, now), _store(collector, now), _pulse(collector, now)]
    sources = [*needed, *_events(collector, now), *_metrics(collector, now)]
    counters = {**collector.core.counts(), **collector.counters()}
    return {"ready": all(source["state"] == "ok" for source in needed), "now": now, "sources": sources, "counters": counters}


def _source(name: str, state: str, at: float | None, now: float, detail: str = "") -> Source:
    return {"name": name, "state": state, "age_s": None if at is None else max(0.0, now - at), "detail": detail}


def _nats(collector: "Collector", now: float) -> Source:
    nats = collector.nats
    if nats.down_since is None:
        return _source("nats", "ok", nats.heard_at, now, nats.shown)
    why = f" ({nats.trouble})" if nats.trouble else ""
    return _source(
        "nats", "down", nats.heard_at, now, f"{nats.shown} - no connection{why}; trying again every second (--nats names another)"
    )


def _store(collector: "Collector", now: float) -> Source:
    writer = collector.writer
    return _source("store", "down" if writer.trouble else "ok", writer.written_at, now, writer.trouble or collector.store.path)


def _pulse(collector: "Collector", now: float) -> Source:
    at = collector.pulsed_at
    late = at is None or now - at > STALLED_S
    restarted = collector.supervisor.errors.get("pulse", "")
    return _source("pulse", "stale" if late else "ok", at, now, restarted)


def _events(collector: "Collector", now: float) -> Iterator[Source]:
    deployments = {d.name: d.events_as_of for d in collector.core.deployments.values()}
    routed = any(topic == "active_sequences_events" for what, topic, _ in collector.core.counters if what == "messages")
    if not deployments:
        yield _source("events", "absent", None, now, NO_ROUTING)
    for name, at in deployments.items():
        if not routed:
            yield _source(f"events:{name}", "absent", at, now, NO_ROUTING)
        elif at is None or now - at > STALE_S:
            yield _source(f"events:{name}", "stale", at, now, "nothing heard: no requests, or its routers stopped publishing")
        else:
            yield _source(f"events:{name}", "ok", at, now)


def _metrics(collector: "Collector", now: float) -> Iterator[Source]:
    targets = collector.metrics.targets
    if not targets:
        yield _source("metrics", "absent", None, now, NO_METRICS)
    late_s = 3 * collector.settings.scrape_interval_s
    for name, target in targets.items():
        if target.trouble:
            yield _source(f"metrics:{name}", "down", target.read_at, now, target.trouble)
        elif target.read_at is None or now - target.read_at > late_s:
            yield _source(f"metrics:{name}", "stale", target.read_at, now, f"last read more than {late_s:g} s ago")
        else:
            yield _source(f"metrics:{name}", "ok", target.read_at, now)
