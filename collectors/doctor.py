"""`poascope doctor`: each thing poascope depends on, whether it is there, and what brings it when it is not."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from prometheus_api_client.exceptions import PrometheusApiClientException
from requests.exceptions import RequestException

from collectors.metrics import Readings, parse_series, parse_text
from collectors.metrics_source import FAILURES, bases, by_target, fetch_samples
from collectors.nats_source import BUCKET, EVENTS
from collectors.wire import Unreadable, decode
from poascope.addresses import without_password
from poascope.errors import Misconfigured, PoascopeError
from poascope.settings import Settings
from store import Store

CONNECT_S = 3.0
CONTROLLER_PING = "poascope-control.ping"  # as controller/protocol.py has it; a test holds the two together
# ok: there. quiet: there, and nothing to be heard at the moment. absent: not there, and poascope works without.
# missing: there, but not what poascope needs of it (exit 1). down: told, and does not answer (exit 3).
State = Literal["ok", "quiet", "absent", "missing", "down"]
ROUTING = "active_sequences_events"
BRINGS_ROUTING = "start the frontends with --router-mode kv --router-replica-sync, and everything with DYN_EVENT_PLANE=nats"
BRINGS_KV = "start the workers with KV events on (vLLM: --kv-events-config), and everything with DYN_EVENT_PLANE=nats"
BRINGS_RIGHTS = "give this user the rights that deploy/nats/nats.conf gives to its kind"


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    state: State
    detail: str
    fix: str = ""


async def examine(settings: Settings, listen_s: float) -> list[Finding]:
    """Every probe's finding. Listens to the event plane for `listen_s` seconds; changes nothing anywhere."""
    async with httpx.AsyncClient(timeout=CONNECT_S, follow_redirects=True, trust_env=False) as http:
        before = await _requests_of(http, settings)
        bus = [finding async for finding in _nats(settings, listen_s, http, before)]
        scraped = [await _target(http, base) for base in bases(settings)]
        rest = [await _prometheus(settings), await _api(http, settings), await _caddy(http, settings)]
    return [*bus, *scraped, rest[0], _store(settings), *rest[1:]]


def exit_code(findings: list[Finding]) -> int:
    states = {finding.state for finding in findings}
    return 3 if "down" in states else 1 if "missing" in states else 0


async def _nats(settings: Settings, listen_s: float, http: httpx.AsyncClient, before: float | None) -> AsyncIterator[Finding]:
    client, shown, said = Client(), settings.nats.shown, list[str]()

    async def note(error: Exception) -> None:
        said.append(str(error) or type(error).__name__)

    try:
        options = settings.nats.options()
        # nats-py tries a server that refuses again and again, whatever it is told of reconnecting.
        async with asyncio.timeout(CONNECT_S):
            await client.connect(
                **options,
                name="poascope doctor",
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=1,
                error_cb=note,
            )
    except Misconfigured as error:
        yield Finding("nats", "down", str(error), "it is in poascope.toml or in the environment")
        return
    except (NatsError, OSError, TimeoutError) as error:
        told = [*said, str(error) or type(error).__name__]
        yield Finding("nats", "down", f"{shown} - {told[0]}", _brings_nats(told))
        return
    try:
        version = client.connected_server_version
        encrypted = ", TLS" if client._server_info.get("tls_required") else ""
        yield Finding("nats", "ok", f"{shown}, version {version.major}.{version.minor}.{version.patch}{encrypted}")
        yield await _jetstream(client, said)
        yield await _controller(client)
        heard = await _listen(client, listen_s)
        after = await _requests_of(http, settings)
        moved = None if before is None or after is None else after > before
        yield _events(heard, listen_s, moved)
        yield _kv(heard, listen_s, moved)
        if denied := [text for text in said if "permissions violation" in text.lower()]:
            yield Finding("nats rights", "missing", "; ".join(dict.fromkeys(denied)), BRINGS_RIGHTS)
    finally:
        await client.close()


def _brings_nats(told: list[str]) -> str:
    """What to do about a server that cannot be reached, by what was said on the way."""
    all_of_it = " ".join(told).lower()
    if "authorization violation" in all_of_it or "nonce" in all_of_it:
        return "it asks who you are: nats_username and nats_password, nats_token, user:password@ in the URL, or nats_credentials"
    if "certificate_verify_failed" in all_of_it:
        return "its certificate is not trusted: name its authority (nats_tls_ca), and the server as the certificate does"
    if "certificate required" in all_of_it or "alert" in all_of_it or "bad certificate" in all_of_it:
        return "it asks for a certificate of ours: nats_tls_cert and nats_tls_key"
    return "start nats-server, or name it: --nats URL"


async def _jetstream(client: Client, said: list[str]) -> Finding:
    stream = client.jetstream(timeout=CONNECT_S)
    try:
        info = await stream.stream_info(f"KV_{BUCKET}")
    except nats.js.errors.NotFoundError:
        return Finding("control bucket", "absent", f"JetStream is on, bucket {BUCKET} is not made yet", "`poascope control` makes it")
    except (NatsError, TimeoutError) as error:
        if denied := next((text for text in said if "$js.api" in text.lower()), None):
            return Finding("control bucket", "missing", f"{denied}: no overrides", BRINGS_RIGHTS)
        detail = f"no JetStream ({str(error) or type(error).__name__}): no overrides"
        return Finding("control bucket", "missing", detail, "start nats-server with -js")
    return Finding("control bucket", "ok", f"bucket {BUCKET}, {info.state.messages} entries")


async def _controller(client: Client) -> Finding:
    try:
        await client.request(CONTROLLER_PING, timeout=1)
    except (NoRespondersError, TimeoutError):
        return Finding(
            "controller", "absent", "none answers: overrides wait, what is in force stays", "`poascope control`, or `poascope up`"
        )
    return Finding("controller", "ok", "answers")


async def _listen(client: Client, listen_s: float) -> Counter[tuple[str, str]]:
    """Messages by deployment and topic; what cannot be read goes under deployment ''."""
    heard: Counter[tuple[str, str]] = Counter()

    async def note(message: Msg) -> None:
        said = decode(message.subject, message.data)
        heard[("", said.pattern) if isinstance(said, Unreadable) else (said.deployment, said.topic)] += 1

    for subject in EVENTS:
        await client.subscribe(subject, cb=note)
    await asyncio.sleep(listen_s)
    return heard


def _events(heard: Counter[tuple[str, str]], listen_s: float, moved: bool | None) -> Finding:
    """Routing events are what ties a request to its workers: without them there is nothing to show."""
    routed = {deployment: n for (deployment, topic), n in heard.items() if topic == ROUTING}
    unread = [topic for (deployment, topic) in heard if not deployment]
    also = f"; not understood: {', '.join(sorted(unread))}" if unread else ""
    if routed:
        told = ", ".join(f"{deployment}: {n}" for deployment, n in sorted(routed.items()))
        return Finding("routing events", "ok", f"in {listen_s:g} s, {told}{also}")
    others = sorted({topic for deployment, topic in heard if deployment and topic != "signals"})
    if moved or others:
        why = "requests ran" if moved else f"{', '.join(others)} came"
        return Finding("routing events", "missing", f"{why} in {listen_s:g} s, and no routing event{also}", BRINGS_ROUTING)
    seen = "no request ran" if moved is False else "nothing was heard"
    return Finding(
        "routing events", "quiet", f"{seen} in {listen_s:g} s{also}", f"send a request meanwhile; if still nothing: {BRINGS_ROUTING}"
    )


def _kv(heard: Counter[tuple[str, str]], listen_s: float, moved: bool | None) -> Finding:
    events = sum(n for (deployment, topic), n in heard.items() if deployment and topic == "kv-events")
    if events:
        return Finding("KV events", "ok", f"{events} in {listen_s:g} s")
    return Finding(
        "KV events", "quiet", f"none in {listen_s:g} s (there are none while every block is cached already)", BRINGS_KV if moved else ""
    )


async def _requests_of(http: httpx.AsyncClient, settings: Settings) -> float | None:
    """Requests that the scraped frontends have had; None when no frontend is scraped."""
    total: float | None = None
    for base in bases(settings):
        with contextlib.suppress(*FAILURES):
            readings = Readings()
            readings.feed(0, base, *parse_series(parse_text((await http.get(f"{base}/metrics")).text)))
            if any(quantity.name == "frontend_input_tokens" for quantity, _ in readings.labels(base)):
                total = (total or 0) + readings.count("frontend_input_tokens", base)
    return total


async def _target(http: httpx.AsyncClient, base: str) -> Finding:
    name = f"metrics {base}"
    try:
        answer = await http.get(f"{base}/metrics")
        answer.raise_for_status()
        gauges, histograms = parse_series(parse_text(answer.text))
    except FAILURES as error:
        fix = "a frontend serves /metrics on its HTTP port; a worker only with DYN_SYSTEM_PORT set"
        return Finding(name, "down", str(error) or type(error).__name__, fix)
    known = {gauge.quantity.name for gauge in gauges} | {histogram.quantity.name for histogram in histograms}
    if not known:
        return Finding(name, "missing", "answers, with no metric that poascope knows", "give a Dynamo frontend's or worker's address")
    return Finding(name, "ok", f"{len(known)} quantities")


async def _prometheus(settings: Settings) -> Finding:
    url, shown = settings.prometheus_url, without_password(settings.prometheus_url)
    if not url:
        told = "targets are scraped directly" if bases(settings) else "no metrics at all: ITL and queue stay without data"
        return Finding(
            "prometheus", "absent", told, "" if bases(settings) else "--prometheus URL, or --scrape URL of each frontend and worker"
        )
    try:
        targets = by_target(await asyncio.to_thread(fetch_samples, url), bases(settings))
    except (RequestException, PrometheusApiClientException, ValueError) as error:
        return Finding("prometheus", "down", f"{shown} - {error}", "start it, or name it: --prometheus URL")
    if not targets:
        return Finding(
            "prometheus", "missing", f"{shown} - has none of Dynamo's metrics", "add the frontends and workers to its scrape_configs"
        )
    return Finding("prometheus", "ok", f"{shown}, targets {', '.join(sorted(targets))}")


def _store(settings: Settings) -> Finding:
    path = Path(settings.store)
    if not path.exists():
        if path.absolute().parent.is_dir():
            return Finding("store", "absent", f"{path} - not made yet", "`poascope collect` makes it")
        return Finding("store", "missing", f"{path} - its folder does not exist", "make the folder, or name another file: --store")
    try:
        Store.open(path, read_only=True).close()
    except PoascopeError as error:
        # In use is as it should be: a collector runs.
        return Finding("store", "ok" if "in use by pid" in str(error) else "missing", str(error).removeprefix("store: "))
    return Finding("store", "ok", f"{path} - {path.stat().st_size / 2**20:.1f} MiB, no process has it open")


async def _api(http: httpx.AsyncClient, settings: Settings) -> Finding:
    url = f"http://{settings.api_host}:{settings.api_port}"
    try:
        answer = await http.get(f"{url}/readyz", headers={"Authorization": f"Bearer {settings.api_token}"} if settings.api_token else {})
        if answer.status_code == 401:
            return Finding("collector", "missing", f"{url} - refuses the token", "--api-token, or POASCOPE_API_TOKEN")
        body = answer.json()
        troubled = [f"{source['name']} {source['state']}" for source in body["sources"] if source["state"] in ("down", "stale")]
    except httpx.TransportError:
        return Finding("collector", "absent", f"{url} - not running", "`poascope collect`, or `poascope up` for all three")
    except (ValueError, KeyError, TypeError):
        return Finding("collector", "missing", f"{url} - something else answers there", "another --api-port")
    return Finding("collector", "ok" if body["ready"] else "missing", f"{url}" + (f" - {', '.join(troubled)}" if troubled else ""))


async def _caddy(http: httpx.AsyncClient, settings: Settings) -> Finding:
    url = settings.caddy_admin_url
    if not url:
        return Finding(
            "gateway",
            "absent",
            "no actuator: overrides are recorded and not applied",
            "--caddy-admin-url URL, with [[profiles]] in the file",
        )
    try:
        answer = await http.get(f"{url.rstrip('/')}/config/")
        answer.raise_for_status()
    except FAILURES as error:
        return Finding("gateway", "down", f"{url} - {str(error) or type(error).__name__}", "start Caddy with its admin API there")
    if not settings.profiles:
        return Finding(
            "gateway",
            "missing",
            f"{url} - answers, but no frontends are told",
            "[[profiles]] with name, tau, omega and url in poascope.toml",
        )
    return Finding("gateway", "ok", f"{url}, profiles {', '.join(profile.name for profile in settings.profiles)}")
