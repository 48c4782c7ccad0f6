"""What is left when the controller's process is killed: it ends at the gateway what nobody else would end.

Caddy knows nothing of expiry and lease. The guard is forked before anything is open and sleeps on a pipe, which costs nothing. When the
pipe closes without a word it watches the target in force until it has run out, another controller answers, or the gateway is gone.
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from poascope.errors import PoascopeError, Unreachable
from poascope.settings import Settings

if TYPE_CHECKING:
    from controller.bus import Bus
    from controller.protocol import Safe

log = logging.getLogger("poascope.guard")

LOOK_S = 1.0


def post(settings: Settings) -> Callable[[], None]:
    """Fork the guard; call what is returned at an orderly end, to dismiss it. Call this before there are threads, sockets or a loop."""
    heard, said = os.pipe()
    if os.fork():
        os.close(heard)

        def dismiss() -> None:
            with contextlib.suppress(BrokenPipeError):  # somebody killed it
                os.write(said, b".")
            os.close(said)

        return dismiss
    os.close(said)
    os.setsid()  # a Ctrl-C in the terminal is the controller's, which then dismisses the guard
    code = 0
    try:
        if not os.read(heard, 1):
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            asyncio.run(watch(settings))
    except BaseException:
        log.exception("guard: the gateway stays as it is")
        code = 1
    finally:
        os._exit(code)


async def watch(settings: Settings, clock: Callable[[], float] = time.time) -> None:
    """Until the gateway has the safe parameters, or somebody else cares for it."""
    import httpx

    from controller.bus import connect
    from controller.gateway import Gateway, profile_for
    from controller.protocol import Renewal, Safe, Target, in_force

    safe, began = Safe(settings.safe_tau, settings.safe_omega), clock()
    target: Target | None = None
    renewal, revision = Renewal(), 0
    log.warning("the controller is gone: watching the gateway until what is in force has run out")
    async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
        gateway = Gateway(settings.caddy_admin_url, settings.profiles, client)
        default = profile_for(settings.profiles, safe.tau, safe.omega)
        while True:
            try:
                if await gateway.in_force() == default:
                    return
            except Unreachable:
                return
            try:
                async with connect(settings.nats) as bus:
                    if await bus.controller_at() is not None:
                        return
                    if deployment := await _served(bus, settings):
                        stored, lease = await bus.target(deployment), await bus.lease(deployment)
                        if not stored.revision:
                            return  # nobody ever wanted anything of this gateway
                        target, revision = stored.value or target, stored.revision
                        renewal = renewal.hear(lease.revision, lease.at, clock())
            except PoascopeError as error:
                log.debug("%s", error)
            # Without NATS nothing may be known: then no longer than the lease would last.
            why = in_force(target, renewal.at, clock(), safe).fallback if target else None
            if target is None and clock() > began + settings.lease_s:
                why = f"the controller is gone for {clock() - began:.0f} s, and NATS does not say what should be in force"
            if why:
                log.warning("%s", why)
                await gateway.move(default)
                await _acknowledge(settings, safe, revision, why, clock())
                return
            await asyncio.sleep(LOOK_S)


async def _served(bus: "Bus", settings: Settings) -> str | None:
    """The deployment behind the gateway: named, or the one that its actuator acknowledged last."""
    from controller.gateway import REPLICA

    if settings.gateway_namespace or len(settings.namespaces) == 1:
        return settings.gateway_namespace or settings.namespaces[0]
    acks = {deployment: await bus.ack(deployment, REPLICA) for deployment in await bus.deployments()}
    served = {ack.revision: deployment for deployment, ack in acks.items() if ack.value and not ack.value.error}
    return served[max(served)] if served else None


async def _acknowledge(settings: Settings, safe: "Safe", revision: int, why: str, now: float) -> None:
    from controller.bus import connect
    from controller.gateway import REPLICA
    from controller.protocol import Ack

    try:
        async with connect(settings.nats) as bus:
            if deployment := await _served(bus, settings):
                ack = Ack(tau=safe.tau, omega=safe.omega, applied_at=now, target_revision=revision, error=why)
                await bus.put_ack(deployment, REPLICA, ack)
    except PoascopeError as error:
        log.warning("%s; done, but not acknowledged", error)
