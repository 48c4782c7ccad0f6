"""Metrics of frontends and workers: from a Prometheus server, or scraped from the targets themselves. One target's failure is its own."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from requests import Session
from requests.exceptions import RequestException
from urllib3.util import Retry

from collectors.metrics import Raw, parse_text
from poascope.settings import Settings
from store.names import QUANTITIES

log = logging.getLogger("poascope.collect")

TIMEOUT_S = 4.0
MAX_BODY = 64 * 2**20  # a frontend of a thousand workers says a few
LOOK_BACK_S = 60  # Prometheus scrapes every 15 s to 60 s mostly; a sample older than this is no news
FORGOTTEN_S = 600.0
FAILURES = (httpx.HTTPError, httpx.InvalidURL, ValueError)

OnSamples = Callable[[float, str, list[Raw]], None]
OnGap = Callable[[str, str, float, float | None, int | None], None]


@dataclass(slots=True)
class Target:
    """What is known of one source of metrics. Times are Unix seconds; `trouble` is empty while it answers."""

    trouble: str = "not read yet"
    read_at: float | None = None
    down_since: float | None = None
    missed: int = 0


@dataclass(slots=True)
class MetricsSource:
    """Reads every `scrape_interval_s`. `on_samples(received_at, target, samples)`, `on_gap(source, kind, since, until, count)`."""

    settings: Settings
    on_samples: OnSamples
    on_gap: OnGap
    targets: dict[str, Target] = field(default_factory=dict)

    async def run(self) -> None:
        """Until cancelled; returns at once when there is nothing to read."""
        interval_s = self.settings.scrape_interval_s
        # A connection kept from one read to the next would often be found closed by the target just then, and count as a failure.
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=True, limits=limits, trust_env=False) as http:

            async def keep(read: Callable[[], Awaitable[None]]) -> None:
                while True:
                    began = time.monotonic()
                    await read()
                    await asyncio.sleep(max(0.1, interval_s - (time.monotonic() - began)))

            # Each in its own time: one that takes long makes no other one late.
            async with asyncio.TaskGroup() as reading:
                if self.settings.prometheus_url:
                    reading.create_task(keep(self._ask_prometheus))
                else:
                    for base in bases(self.settings):
                        reading.create_task(keep(partial(self._scrape, http, base)))

    def close(self, now: float) -> None:
        """Record what is still missing at the end."""
        for name, target in self.targets.items():
            if target.down_since is not None:
                self.on_gap(f"metrics:{name}", "unreachable", target.down_since, now, target.missed)

    async def _scrape(self, http: httpx.AsyncClient, base: str) -> None:
        target = self.targets.setdefault(base, Target())
        try:
            # httpx bounds each piece of an answer, and a target may send a piece for ever.
            async with asyncio.timeout(TIMEOUT_S):
                body = await _read(http, f"{base}/metrics")
            # On a thread: a large exposition takes the parser long enough to be felt by the events.
            samples = await asyncio.to_thread(parse_text, body)
        except TimeoutError:
            self._failed(base, target, f"no whole answer within {TIMEOUT_S:g} s")
            return
        except FAILURES as error:
            self._failed(base, target, str(error) or type(error).__name__)
            return
        self._answered(base, target, time.time())
        self.on_samples(time.time(), base, samples)

    async def _ask_prometheus(self) -> None:
        server = self.targets.setdefault("prometheus", Target())
        try:
            result = await asyncio.to_thread(fetch_samples, self.settings.prometheus_url)
            found = by_target(result, bases(self.settings))
        except (RequestException, PrometheusApiClientException, ValueError) as error:
            self._failed("prometheus", server, str(error) or type(error).__name__)
            return
        self._answered("prometheus", server, time.time())
        for name, (at, samples) in found.items():
            target = self.targets.setdefault(name, Target())
            if target.read_at is None or at > target.read_at:
                self._answered(name, target, at)
                self.on_samples(at, name, samples)
        told = bases(self.settings)
        for name, target in list(self.targets.items()):
            age_s = 0.0 if target.read_at is None else time.time() - target.read_at
            if age_s > LOOK_BACK_S:
                target.trouble = f"Prometheus has had no sample of it for {LOOK_BACK_S} s"
            if age_s > FORGOTTEN_S and name not in told:
                del self.targets[name]  # a pod that was replaced, under another address since

    def _answered(self, name: str, target: Target, at: float) -> None:
        if target.down_since is not None:
            self.on_gap(f"metrics:{name}", "unreachable", target.down_since, at, target.missed)
            log.info("metrics: %s - answers again", name)
        target.trouble, target.read_at, target.down_since, target.missed = "", at, None, 0

    def _failed(self, name: str, target: Target, why: str) -> None:
        if target.down_since is None:
            target.down_since = target.read_at or time.time()
            log.warning("metrics: %s - %s", name, why)
        target.trouble = why
        target.missed += 1


async def _read(http: httpx.AsyncClient, url: str) -> str:
    """The answer's text. Raises httpx.HTTPError, or ValueError when it never ends."""
    body = bytearray()
    async with http.stream("GET", url) as answer:
        answer.raise_for_status()
        async for piece in answer.aiter_bytes():
            body += piece
            if len(body) > MAX_BODY:
                raise ValueError(f"more than {MAX_BODY >> 20} MiB of metrics")
    return body.decode(errors="replace")


def bases(settings: Settings) -> tuple[str, ...]:
    """Base URLs to scrape: those told, and the frontends of the profiles, each once."""
    told = [base if "://" in base else f"http://{base}" for base in settings.scrape]
    urls = [base.rstrip("/").removesuffix("/metrics") for base in (*told, *(profile.url for profile in settings.profiles))]
    return tuple(dict.fromkeys(urls))


def fetch_samples(url: str) -> list[dict[str, Any]]:
    """The newest samples of every metric poascope reads, as a range vector: only that says when each was really taken."""
    names = [
        alias + suffix
        for quantity in QUANTITIES
        for alias in quantity.aliases
        for suffix in (("_bucket", "_sum", "_count") if quantity.kind == "histogram" else ("",))
    ]
    with Session() as session:
        server = PrometheusConnect(url=url.rstrip("/"), session=session, timeout=int(TIMEOUT_S), retry=Retry(total=0))
        result: list[dict[str, Any]] = server.custom_query(f'{{__name__=~"{"|".join(names)}"}}[{LOOK_BACK_S}s]')
    return result


def by_target(result: Iterable[Mapping[str, Any]], known: Iterable[str]) -> dict[str, tuple[float, list[Raw]]]:
    """The last sample of each series by its target, with the time of the target's newest scrape (Unix s); older series are left out.

    A target is called by its base URL where that is known, so that it is the same one as when scraped; else by `instance`.
    Raises ValueError when it is no range vector.
    """
    urls = {urlsplit(base).netloc: base for base in known}
    found: dict[str, list[tuple[float, Raw]]] = {}
    try:
        for series in result:
            labels = dict(series["metric"])
            name, instance = labels.pop("__name__"), labels.pop("instance", "")
            labels.pop("job", None)
            at, value = series["values"][-1]
            found.setdefault(str(urls.get(instance, instance)), []).append((float(at), (name, labels, float(value))))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"answered without the range vector asked for ({type(error).__name__}: {error})") from error
    newest = {target: max(at for at, _ in samples) for target, samples in found.items()}
    return {target: (newest[target], [raw for at, raw in samples if at == newest[target]]) for target, samples in found.items()}
