"""The guard that stays when the controller's process is killed; test_faults.py kills real ones."""

import subprocess
import sys
import time
from dataclasses import replace

import httpx
import msgspec
import pytest
import pytest_asyncio

from controller import guard
from controller.bus import Bus
from controller.gateway import REPLICA, Gateway
from controller.protocol import Ack, Target
from poascope.settings import Profile, Settings
from tests.conftest import NatsServer
from tests.controller.conftest import Caddy


def target(**changes: object) -> Target:
    base = Target(tau=0.7, omega=1.0, regime="transition", mode="auto", why="so", decided_at=time.time())
    return msgspec.structs.replace(base, **changes)


@pytest.fixture
def settings(nats_server: NatsServer, caddy: Caddy, profiles: tuple[Profile, ...]) -> Settings:
    return Settings(nats_url=nats_server.url, caddy_admin_url=caddy.admin_url, profiles=profiles, namespaces=("dynamo",))


@pytest_asyncio.fixture
async def gateway(settings: Settings, http: httpx.AsyncClient, profiles: tuple[Profile, ...]) -> Gateway:
    """At the tuned profile."""
    made = Gateway(settings.caddy_admin_url, profiles, http)
    await made.move(profiles[1])
    return made


async def test_it_ends_what_has_run_out_and_says_so(bus: Bus, settings: Settings, gateway: Gateway, profiles: tuple[Profile, ...]) -> None:
    """The target's lease is over: the gateway goes to the safe parameters, and the acknowledgement tells why."""
    revision = await bus.put_target("dynamo", target(decided_at=time.time() - 500), 0)
    await guard.watch(settings)
    assert await gateway.in_force() == profiles[0]
    ack = (await bus.ack("dynamo", REPLICA)).value
    assert ack is not None
    assert (ack.tau, ack.omega, ack.target_revision) == (0.0, 1.0, revision)
    assert "the controller has not renewed the target for 500 s (lease 120 s): back to safe τ 0, ω 1" in (ack.error or "")


async def test_it_finds_its_deployment_by_the_last_acknowledgement(
    bus: Bus, settings: Settings, gateway: Gateway, profiles: tuple[Profile, ...]
) -> None:
    """Where nobody named one."""
    revision = await bus.put_target("east", target(mode="manual", expires_at=time.time() - 60), 0)
    assert revision
    await bus.put_target("west", target(), 0)
    await bus.put_ack("east", REPLICA, Ack(tau=0.7, omega=1.0, applied_at=1.0, target_revision=revision))
    await guard.watch(replace(settings, namespaces=()))
    assert await gateway.in_force() == profiles[0]
    assert (await bus.ack("west", REPLICA)).value is None


async def test_it_leaves_alone_what_is_not_its_own(bus: Bus, settings: Settings, gateway: Gateway, profiles: tuple[Profile, ...]) -> None:
    """A gateway that nobody wanted anything of, and one that another controller cares for, stay as they are."""
    await guard.watch(settings)
    assert await gateway.in_force() == profiles[1]
    await bus.put_target("dynamo", target(decided_at=time.time() - 500), 0)
    await bus.answer_pings(time.time)
    await bus.client.flush()
    await guard.watch(settings)
    assert await gateway.in_force() == profiles[1]


async def test_without_nats_it_waits_no_longer_than_a_lease(
    nats_server: NatsServer, settings: Settings, gateway: Gateway, profiles: tuple[Profile, ...]
) -> None:
    """Nobody can say what should be in force: the safe parameters are."""
    nats_server.kill()
    began = time.time()
    ticks = iter([began, *[began + 121] * 20])
    await guard.watch(settings, lambda: next(ticks))
    assert await gateway.in_force() == profiles[0]


async def test_without_a_gateway_there_is_nothing_to_guard(settings: Settings, caddy: Caddy) -> None:
    """It ends, and does not wait for a Caddy that is gone."""
    caddy.kill()
    await guard.watch(settings)


ORDERLY = """
import os
from controller import guard
from poascope.settings import Settings

def child():
    return int(open(f"/proc/self/task/{os.getpid()}/children").read())

settings = Settings(nats_url="nats://127.0.0.1:1", caddy_admin_url="http://127.0.0.1:1")
dismiss = guard.post(settings)
dismiss()
print(os.wait()[1])
dismiss = guard.post(settings)
os.kill(child(), 9)
print(os.wait()[1])
dismiss()
"""


def test_an_orderly_end_dismisses_it() -> None:
    """It ends with the controller, having done nothing; that somebody killed it first is no error."""
    told = subprocess.run([sys.executable, "-c", ORDERLY], capture_output=True, text=True, check=True)
    assert (told.stdout.split(), told.stderr) == (["0", "9"], "")
