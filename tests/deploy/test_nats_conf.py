"""deploy/nats/nats.conf on a real server with TLS: the whole line works under it, and each user may do its own part and nothing else."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import nats
import pytest
import trustme
from nats.aio.client import Client

from collectors.doctor import examine
from controller.bus import Denied, connect
from controller.protocol import Ack, Target
from poascope.nats import Nats
from poascope.settings import Settings
from testbed.gateway import caddy_config
from tests.collectors.playback import play
from tests.conftest import CAPTURES, free_port, wait_for_port
from tests.controller.conftest import intent

CONF = Path(__file__).parents[2] / "deploy" / "nats" / "nats.conf"
PROGRAMS = Path(sys.executable).parent
USERS = ("dynamo", "collector", "controller", "operators", "router")


class Secured:
    """A nats-server with the sample's configuration, a certificate of its own authority, and a password for each user."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.ca = folder, free_port(), folder / "ca.pem"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.ca))
        server = authority.issue_cert("127.0.0.1")
        server.cert_chain_pems[0].write_to_path(str(folder / "server.pem"))
        server.private_key_pem.write_to_path(str(folder / "server.key"))
        env = {f"NATS_{user.upper()}_PASSWORD": f"secret-of-{user}" for user in USERS}
        env |= {"NATS_STORE": str(folder / "js"), "NATS_TLS_CERT": str(folder / "server.pem"), "NATS_TLS_KEY": str(folder / "server.key")}
        self.process = subprocess.Popen(
            [PROGRAMS / "nats-server", "-c", CONF, "-a", "127.0.0.1", "-p", str(self.port)],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=(folder / "server.log").open("wb"),
        )
        wait_for_port(self.port)

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text()

    def nats(self, user: str) -> Nats:
        return Nats(f"nats://127.0.0.1:{self.port}", username=user, password=f"secret-of-{user}", tls_ca=str(self.ca))

    def env(self, user: str) -> dict[str, str]:
        return os.environ | {
            "NATS_SERVER": f"nats://127.0.0.1:{self.port}",
            "NATS_AUTH_USERNAME": user,
            "NATS_AUTH_PASSWORD": f"secret-of-{user}",
            "POASCOPE_NATS_TLS_CA": str(self.ca),
        }

    @contextlib.asynccontextmanager
    async def client(self, user: str) -> AsyncIterator[tuple[Client, list[str]]]:
        """A connection, and what the server said against it."""
        said: list[str] = []

        async def note(error: Exception) -> None:
            said.append(str(error))

        client = await nats.connect(**self.nats(user).options(), error_cb=note)
        try:
            yield client, said
        finally:
            await client.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Secured]:
    server = Secured(tmp_path)
    yield server
    server.process.kill()
    server.process.wait()


async def denied(server: Secured, user: str, subject: str) -> bool:
    async with server.client(user) as (client, said):
        await client.publish(subject, b"{}")
        await client.flush()
        async with asyncio.timeout(20):
            while not said and client.is_connected:
                await asyncio.sleep(0.02)
                await client.flush()
                break
        await asyncio.sleep(0.05)
        return any("permissions violation" in text.lower() and subject.lower() in text.lower() for text in said)


async def test_each_writes_its_own_and_nothing_else(server: Secured) -> None:
    """Only the controller writes targets and leases, only operators intents and armings, only actuators acknowledgements."""
    async with connect(server.nats("controller")) as bus:
        revision = await bus.put_target(
            "dynamo", Target(tau=0, omega=1, regime="below", mode="auto", why="first", decided_at=time.time()), 0
        )
        assert revision == 1
        await bus.put_ack("dynamo", "gateway", Ack(tau=0, omega=1, applied_at=time.time(), target_revision=1))
    async with connect(server.nats("operators")) as bus:
        assert (await bus.put_intent("dynamo", intent(), time.time())).revision == 3
        assert (await bus.state("dynamo")).target.value is not None
    writers = {
        "$KV.poascope.dynamo.target": {"controller"},
        "$KV.poascope.dynamo.lease": {"controller"},
        "$KV.poascope.dynamo.intent": {"operators"},
        "$KV.poascope.dynamo.armed": {"operators"},
        "$KV.poascope.dynamo.ack.router-1": {"router"},
        "poascope.dynamo.signals": {"collector"},
        "poascope.dynamo.decision": {"controller", "operators"},
        "$JS.API.STREAM.CREATE.KV_poascope": {"controller"},
        "$JS.API.STREAM.DELETE.KV_poascope": set(),
        "$JS.API.STREAM.PURGE.KV_poascope": set(),
        "$JS.API.STREAM.MSG.DELETE.KV_poascope": set(),
        "$JS.API.STREAM.PURGE.dynamo-kv-events": set(),
        "$JS.API.CONSUMER.CREATE.dynamo-kv-events.x": set(),
        "namespace.dynamo.component.prefill.active_sequences_events": set(),
        "dynamo.kv-events": set(),
    }
    for subject, may in writers.items():
        for user in ("collector", "controller", "operators", "router"):
            if user not in may:
                assert await denied(server, user, subject), f"{user} may publish {subject}"
    assert "$KV.poascope.dynamo.target" in server.log
    async with connect(server.nats("operators")) as bus:
        found = await bus.state("dynamo")
        assert (found.target.revision, found.intent.revision) == (1, 3)


async def test_accounts_keep_dynamo_and_the_bucket_apart(server: Secured) -> None:
    """What Dynamo's user writes to the bucket's subjects reaches nobody of ours; its streams cannot be seen from our side."""
    async with connect(server.nats("controller")) as bus, server.client("dynamo") as (dynamo, _), server.client("collector") as (ours, _):
        heard: list[str] = []

        async def note(message: nats.aio.msg.Msg) -> None:
            heard.append(message.subject)

        for subject in ("namespace.>", "$KV.poascope.>", "poascope.>"):
            await ours.subscribe(subject, cb=note)
        await ours.flush()
        await dynamo.jetstream().add_stream(name="dynamo-kv-events", subjects=["dynamo.kv-events"])
        for subject in ("$KV.poascope.dynamo.intent", "poascope.dynamo.signals", "namespace.dynamo.hello"):
            await dynamo.publish(subject, b"{}")
        await dynamo.flush()
        async with asyncio.timeout(20):
            while "namespace.dynamo.hello" not in heard:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert heard == ["namespace.dynamo.hello"]
        assert (await bus.intent("dynamo")).revision == 0


async def test_a_refusal_says_which_right_is_missing(server: Secured) -> None:
    """Not a time-out: the subject that this user may not write, and where rights are to be had. Without the bucket likewise."""
    with pytest.raises(Denied, match=r"(?i)STREAM\.CREATE"):
        async with connect(server.nats("operators")) as bus:
            await bus.intent("dynamo")
    async with connect(server.nats("controller")) as bus:
        await bus.intent("dynamo")
        with pytest.raises(Denied, match=r"(?i)\$KV\.poascope\.dynamo\.intent"):
            async with server.client("collector") as (ours, _), connect(server.nats("controller")) as other:
                trail = await ours.subscribe("poascope.dynamo.decision")
                await ours.flush()
                try:
                    await other.put_intent("dynamo", intent(), time.time())
                finally:
                    assert b"permissions violation" in (await trail.next_msg(20)).data


@pytest.mark.real
async def test_the_whole_line_under_it(server: Secured, tmp_path: Path) -> None:
    """Events in, pulse out, an override from the command line to the gateway and its audit trail, each process by its own user."""
    caddy_port, admin, api = free_port(), free_port(), free_port()
    (tmp_path / "caddy.json").write_text(
        json.dumps(caddy_config(port=caddy_port, admin_port=admin, upstream="127.0.0.1:9", access_log=tmp_path / "access.log"))
    )
    config = tmp_path / "poascope.toml"
    config.write_text(
        f'caddy_admin_url = "http://127.0.0.1:{admin}"\napi_port = {api}\nstore = "{tmp_path}/t.duckdb"\nlease_s = 60\n'
        + "".join(
            f'[[profiles]]\nname = "{name}"\ntau = {tau}\nomega = 1.0\nurl = "http://127.0.0.1:{port}"\n'
            for name, tau, port in (("below", 0.0, 9), ("transition", 0.7, 10))
        )
    )

    def start(user: str, *command: str | Path) -> subprocess.Popen[bytes]:
        out = (tmp_path / f"{user}.log").open("ab")
        return subprocess.Popen(command, env=server.env(user) | {"HOME": str(tmp_path)}, stdout=out, stderr=out)

    poascope = PROGRAMS / "poascope"
    running = [
        start("caddy", PROGRAMS / "caddy", "run", "--config", tmp_path / "caddy.json"),
        start("collector", poascope, "collect", "--config", config),
        start("controller", poascope, "control", "--config", config),
    ]
    try:
        for port in (admin, api):
            await asyncio.to_thread(wait_for_port, port, 60)

        async def asked(query: str) -> list[dict[str, object]]:
            async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
                answer = (await http.get(f"http://127.0.0.1:{api}/query/{query}", params={"format": "json"})).json()
            return [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]

        async with server.client("dynamo") as (dynamo, _):
            async with asyncio.timeout(120):
                while not (await asked("signals")):
                    await play(dynamo, CAPTURES / "cap-0.9.0-1p2d.jsonl.gz", 1.0)
        wish = (
            "--deployment",
            "dynamo",
            "--preset",
            "transition",
            "--expires",
            "10m",
            "--operator",
            "ann",
            "--reason",
            "rights",
            "--wait",
            "60",
        )
        set_ = await asyncio.to_thread(
            subprocess.run,
            [poascope, "intent", "set", "--config", config, *wish],
            env=server.env("operators"),
            capture_output=True,
            text=True,
        )
        assert set_.returncode == 0, set_.stderr
        async with asyncio.timeout(60):
            while not {"intent", "target", "ack"} <= {row["kind"] for row in await asked("decisions")}:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        told = await asked("decisions")
        assert {row["actor"] for row in told if row["kind"] == "intent"} == {"ann"}
        assert {row["error"] for row in told if row["kind"] == "ack" and row["tau"] == 0.7} == {None}
        assert "Violation" not in server.log
    finally:
        for process in running:
            process.terminate()
            process.wait(30)


async def test_doctor_says_what_is_wrong(server: Secured) -> None:
    """No user, a wrong password, an authority it does not know, a right that is missing: each with the setting that brings it."""
    where, ca = f"nats://127.0.0.1:{server.port}", str(server.ca)

    async def finding(name: str, **told: str) -> str:
        settings = Settings(nats_url=where, store=str(server.folder / "none.duckdb"), **told)
        return next((f"{found.state}: {found.detail}; {found.fix}" for found in await examine(settings, 0.1) if found.name == name), "")

    async with connect(server.nats("controller")) as bus:
        await bus.intent("dynamo")
    assert "nats_username" in await finding("nats", nats_tls_ca=ca)
    assert "nats_username" in await finding("nats", nats_tls_ca=ca, nats_username="operators", nats_password="wrong")
    assert "nats_tls_ca" in await finding("nats", nats_username="operators", nats_password="secret-of-operators")
    assert "no such file" in await finding("nats", nats_tls_ca="absent.pem")
    right = {"nats_tls_ca": ca, "nats_username": "operators", "nats_password": "secret-of-operators"}
    assert "TLS" in await finding("nats", **right)
    assert (await finding("control bucket", **right)).startswith("ok")
    assert not await finding("nats rights", **right)
    router = right | {"nats_username": "router", "nats_password": "secret-of-router"}
    assert "namespace.>" in await finding("nats rights", **router)
