import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from typer.testing import CliRunner

from collectors.doctor import Finding, examine, exit_code
from controller.bus import connect
from poascope.cli import cli
from poascope.settings import Settings
from store import Store
from tests.collectors.playback import play
from tests.collectors.test_metrics_source import BODY, Exporter
from tests.conftest import CAPTURES, NatsServer, free_port


@pytest.fixture
def frontend() -> Iterator[Exporter]:
    exporter = Exporter()
    yield exporter
    exporter.close()


def settings(nats_server: NatsServer, folder: Path, **more: Any) -> Settings:
    return Settings(nats_url=nats_server.url, store=str(folder / "s.duckdb"), api_port=free_port(), **more)


async def named(of: Settings, listen_s: float = 0.3) -> dict[str, Finding]:
    return {finding.name: finding for finding in await examine(of, listen_s)}


async def test_a_healthy_cluster_needs_nothing(nats_server: NatsServer, frontend: Exporter, tmp_path: Path) -> None:
    """With routing events, KV events and metrics there, nothing is down or missing."""
    Store.open(tmp_path / "s.duckdb").close()
    speaking = asyncio.create_task(play(nats_server.url, CAPTURES / "cap-0.9.0-1p2d.jsonl.gz", 3))
    found = await named(settings(nats_server, tmp_path, scrape=(frontend.address,)), 3)
    await speaking
    states = {name: found[name].state for name in ("nats", "routing events", "KV events", "store")}
    assert states == dict.fromkeys(states, "ok")
    assert "dynamo:" in found["routing events"].detail
    assert exit_code(list(found.values())) == 0


async def test_requests_without_routing_events_name_the_flags(nats_server: NatsServer, frontend: Exporter, tmp_path: Path) -> None:
    """Frontends that serve while NATS carries no routing event lack --router-replica-sync or DYN_EVENT_PLANE=nats, and that is said."""
    served = next(line for line in BODY.splitlines() if line.startswith("dynamo_frontend_input_sequence_tokens") and 'le="+Inf"' in line)
    name, count = served.rsplit(" ", 1)
    of = settings(nats_server, tmp_path, scrape=(frontend.address,))
    probing = asyncio.create_task(named(of, 1))
    await asyncio.sleep(0.5)
    frontend.body = BODY.replace(served, f"{name} {float(count) + 1:g}")
    found = (await probing)["routing events"]
    assert found.state == "missing"
    assert "--router-replica-sync" in found.fix
    assert "DYN_EVENT_PLANE=nats" in found.fix


async def test_other_events_alone_are_not_enough(nats_server: NatsServer, tmp_path: Path) -> None:
    """KV events without routing events: the event plane works, and the routers do not publish."""
    probing = asyncio.create_task(named(settings(nats_server, tmp_path), 1))
    await asyncio.sleep(0.5)
    client = await nats.connect(nats_server.url)
    event = {"event_id": 1, "data": {"stored": {"parent_hash": None, "blocks": [{"block_hash": 1, "tokens_hash": 2}]}}, "dp_rank": 0}
    said = {"worker_id": 2**64 - 1, "event": event}
    await client.publish("namespace-d-component-c-kv-events.kv-events", json.dumps(said).encode())
    await client.publish("namespace.d.something-new", b"\xff")
    await client.flush()
    await client.close()
    found = (await probing)["routing events"]
    assert (found.state, "kv-events came" in found.detail, "not understood" in found.detail) == ("missing", True, True)


async def test_a_quiet_cluster_is_no_fault(nats_server: NatsServer, frontend: Exporter, tmp_path: Path) -> None:
    """When no request ran nothing can be said of routing events, and doctor says just that."""
    found = await named(settings(nats_server, tmp_path, scrape=(frontend.address,)))
    assert (found["routing events"].state, "no request ran" in found["routing events"].detail) == ("quiet", True)
    assert found["control bucket"].state == "absent"
    assert exit_code(list(found.values())) == 0


async def test_what_is_told_and_away_is_down(nats_server: NatsServer, tmp_path: Path) -> None:
    """NATS, Prometheus, a target or the gateway that does not answer is down, by its name, with what to do: exit 3."""
    nats_server.kill()
    away = f"http://127.0.0.1:{free_port()}"
    found = await named(settings(nats_server, tmp_path, prometheus_url=away, scrape=(away,), caddy_admin_url=away))
    for name in ("nats", "prometheus", f"metrics {away}", "gateway"):
        assert (found[name].state, bool(found[name].fix)) == ("down", True), name
    assert exit_code(list(found.values())) == 3


async def test_a_service_that_is_not_what_it_should_be(nats_server: NatsServer, frontend: Exporter, tmp_path: Path) -> None:
    """Something that answers, but not as poascope needs it, is missing and not ok: exit 1."""
    frontend.body = "up 1\n"
    (tmp_path / "s.duckdb").write_text("junk" * 1000)
    of = settings(nats_server, tmp_path, scrape=(frontend.address,), caddy_admin_url=f"http://{frontend.address}")
    found = await named(of)
    for name in (f"metrics http://{frontend.address}", "store", "gateway"):
        assert found[name].state == "missing", name
    assert "[[profiles]]" in found["gateway"].fix
    assert exit_code(list(found.values())) == 1


def test_the_verb_prints_and_exits_with_the_finding(tmp_path: Path) -> None:
    """`poascope doctor` exits 3 while NATS is away, in text and in JSON."""
    url = f"nats://127.0.0.1:{free_port()}"
    args = ["doctor", "--nats", url, "--listen", "0.1", "--api-port", str(free_port()), "--store", str(tmp_path / "s.duckdb")]
    text = CliRunner().invoke(cli, args)
    assert (text.exit_code, "→ start nats-server" in text.output) == (3, True), text.output
    found = json.loads(CliRunner().invoke(cli, [*args, "--json"]).stdout)
    assert {"name", "state", "detail", "fix"} == set(found[0])


async def test_the_controller_is_asked_itself(nats_server: NatsServer, tmp_path: Path) -> None:
    """A controller that runs answers doctor, and one that does not is absent, with the verb that brings it."""
    settings = Settings(nats_url=nats_server.url, store=str(tmp_path / "s.duckdb"), api_port=free_port())
    asked = {finding.name: finding for finding in await examine(settings, 0.1)}
    assert (asked["controller"].state, "poascope control" in asked["controller"].fix) == ("absent", True)
    async with connect(nats_server.url) as bus:
        await bus.answer_pings(lambda: None)
        asked = {finding.name: finding for finding in await examine(settings, 0.1)}
    assert asked["controller"].state == "ok"
