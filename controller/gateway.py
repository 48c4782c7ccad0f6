"""The gateway actuator: a target's (τ, ω) → the frontend with exactly these → Caddy sends new requests there.

Streams that are open stay on the frontend where they began. How a change comes about, Caddy's own configuration says:

- upstream `{file./path}`: Caddy reads the file for each request, and we write the address into it. Nothing is lost (docs/measured.md), and
  what is in force survives Caddy's restart. Caddy and the controller must see the same file.
- a plain address: we change it through the admin API. Each change makes Caddy start its server anew, and a request that arrives in this
  instant may find its connection closed before any answer (measured: 23 of 4,150 in 100 changes). Clients that retry it do not notice.
"""

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from controller.bus import Bus, Stored
from controller.loop import Ear
from controller.protocol import Ack, InForce, Renewal, Safe, Target, in_force
from poascope import ending
from poascope.errors import Misconfigured, PoascopeError, Unreachable
from poascope.settings import Profile

log = logging.getLogger("poascope.gateway")

REPLICA = "gateway"
PLACEHOLDER = re.compile(r"\{file\.(.+)\}")
HANDLER_ID = "poascope-gateway"
INTERVAL_S = 2.0
LISTEN_S = 2.5  # two pulses: hear who else is there before acting for the first


def profile_for(profiles: tuple[Profile, ...], tau: float, omega: float) -> Profile:
    """The frontend with exactly these parameters. Raises PoascopeError naming those that exist."""
    for profile in profiles:
        if (profile.tau, profile.omega) == (tau, omega):
            return profile
    known = ", ".join(f"{p.name} (τ {p.tau:g}, ω {p.omega:g})" for p in profiles)
    raise PoascopeError(f"profile: τ {tau:g}, ω {omega:g} - no frontend behind the gateway has these; there are {known}")


def dial(profile: Profile) -> str:
    """The profile's address as Caddy writes it: host:port."""
    parts = urlsplit(profile.url)
    if parts.scheme != "http" or not parts.hostname:
        raise Misconfigured(f"profiles: {profile.url} - must be http://host:port")
    return f"{parts.netloc}" if parts.port else f"{parts.netloc}:80"


class Gateway:
    """Caddy's admin API, for the one handler that has our id."""

    def __init__(self, admin_url: str, profiles: tuple[Profile, ...], client: httpx.AsyncClient) -> None:
        if not profiles:
            raise Misconfigured("profiles: none - the gateway needs [[profiles]] with name, tau, omega and url in poascope.toml")
        self.url, self.profiles, self.client = f"{admin_url.rstrip('/')}/id/{HANDLER_ID}/upstreams", profiles, client
        self._dials = {dial(profile): profile for profile in profiles}
        self._file: Path | None = None  # from which Caddy reads its upstream, when it was last asked

    async def _ask(self, method: str, upstreams: list[dict[str, str]] | None = None) -> object:
        try:
            response = await self.client.request(method, self.url, json=upstreams)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unreachable(f"gateway: {self.url} - {str(error) or type(error).__name__}; is Caddy running?") from error
        if response.is_error:
            raise PoascopeError(f"gateway: {self.url} - {response.status_code} {response.text.strip()[:200]}")
        try:
            return response.json() if response.content else None
        except ValueError as error:
            raise PoascopeError(f"gateway: {self.url} - answers, but not as Caddy's admin API does") from error

    async def _address(self) -> str:
        """The one upstream as Caddy's configuration has it, "" where there are none or several."""
        match await self._ask("GET"):
            case [{"dial": str(address)}]:
                return address
        return ""

    async def in_force(self) -> Profile | None:
        """Where Caddy sends new requests now; None when that is not exactly one of the profiles."""
        address = await self._address()
        file = PLACEHOLDER.fullmatch(address)
        self._file = Path(file[1]) if file else None
        return self._dials.get(_read(self._file) if self._file else address)

    def leave(self, profile: Profile) -> None:
        """For a Caddy that is away: what it is to find in its file when it comes back."""
        if self._file and _read(self._file) != dial(profile):
            _write(self._file, dial(profile))

    async def move(self, profile: Profile) -> None:
        """Send new requests to this profile, and see that Caddy has it."""
        if file := PLACEHOLDER.fullmatch(await self._address()):
            _write(Path(file[1]), dial(profile))
        else:
            await self._ask("PATCH", [{"dial": dial(profile)}])
        if await self.in_force() != profile:
            raise PoascopeError(
                f"gateway: {profile.name} - Caddy took the change but does not show it; does something else write its config?"
            )


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PoascopeError(f"gateway: {path} - Caddy's upstream cannot be read ({error}); is this the machine that it runs on?") from error


def _write(path: Path, address: str) -> None:
    """At once or not at all: Caddy may read it at any moment."""
    try:
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(address)
        os.replace(partial, path)  # noqa: PTH105
    except OSError as error:
        raise PoascopeError(f"gateway: {path} - Caddy's upstream cannot be written ({error})") from error


class Actuator:
    """Keeps the gateway at the target of its deployment, and acknowledges what Caddy really does.

    A gateway stands before one deployment: the one it is told, else the one watched, else the one heard, else the one it last served.
    When that is several it acts for none of them and says so.
    """

    def __init__(
        self,
        bus: Bus,
        ear: Ear,
        gateway: Gateway,
        deployment: str = "",
        clock: Callable[[], float] = time.time,
        safe: Safe = Safe(),  # noqa: B008
    ) -> None:
        self.bus, self.ear, self.gateway, self.clock, self.safe = bus, ear, gateway, clock, safe
        self._named = (deployment,) if deployment else ear.namespaces
        self._turn = asyncio.Lock()
        self._served: str | None = None
        self._target: Stored[Target] = Stored()
        self._renewal = Renewal()
        self._late: tuple[int, str] | None = None
        self._acked: dict[str, Ack] = {}
        self._away = False

    async def run(self) -> None:
        """Until cancelled. Without NATS the last target stays applied until its override or its lease ends."""
        if not self._named:
            await asyncio.sleep(LISTEN_S)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._on_change())
            tasks.create_task(self._on_time())

    async def _on_change(self) -> None:
        async for keys in self.bus.watch():
            if keys is None or any(key.endswith(".target") for key in keys):
                await self.turn()
            if ending.asked():
                return

    async def _on_time(self) -> None:
        while not ending.asked():
            await asyncio.sleep(INTERVAL_S)
            await self.turn()

    async def turn(self) -> None:
        """Look at the target, make the gateway so, acknowledge."""
        async with self._turn:
            try:
                candidates = await self._candidates()
                if len(candidates) == 1:
                    if candidates[0] != self._served:
                        self._served, self._target, self._renewal = candidates[0], Stored(), Renewal()
                    lease = await self.bus.lease(candidates[0])
                    self._renewal = self._renewal.hear(lease.revision, lease.at, self.clock())
                    self._target = await self.bus.target(candidates[0])
                elif candidates and not self._fallback():
                    self._served = None
                    await self._refuse(candidates)
                self._away = False
            except Unreachable as error:
                if not self._away:
                    log.warning("%s; the gateway stays as it is", error)
                self._away = True
            if self._served:
                await self._settle(self._served, self._target)

    def _in_force(self, target: Target) -> InForce:
        return in_force(target, self._renewal.at, self.clock(), self.safe)

    def _fallback(self) -> str | None:
        """Why the safe parameters are in force instead of the target's; in the words of the moment at which that began."""
        said = self._target.value and self._in_force(self._target.value).fallback
        if not (self._served and said):
            self._late = None
        elif self._late is None or self._late[0] != self._target.revision:
            self._late = self._target.revision, said
        return self._late and self._late[1]

    async def _candidates(self) -> tuple[str, ...]:
        if self._named or self.ear.heard():
            return self._named or self.ear.heard()
        known = await self.bus.deployments()
        acks = {deployment: await self.bus.ack(deployment, REPLICA) for deployment in known}
        served = {ack.revision: deployment for deployment, ack in acks.items() if ack.value and not ack.value.error}
        return (served[max(served)],) if served else known[:1] if len(known) == 1 else ()

    async def _refuse(self, deployments: tuple[str, ...]) -> None:
        error = f"gateway: {len(deployments)} deployments ({', '.join(deployments)}) - name the one behind it: gateway_namespace"
        for deployment in deployments:
            target = await self.bus.target(deployment)
            await self._acknowledge(
                deployment, Ack(tau=None, omega=None, applied_at=self.clock(), target_revision=target.revision, error=error)
            )

    async def _settle(self, deployment: str, stored: Stored[Target]) -> None:
        target, moved, late = stored.value, False, self._fallback()
        now_there: Profile | None = None
        try:
            if target:
                now = self._in_force(target)
                try:
                    now_there = await self.gateway.in_force()
                    wanted = profile_for(self.gateway.profiles, now.tau, now.omega)
                    if now_there != wanted:
                        await self.gateway.move(wanted)
                        now_there, moved = wanted, True
                except Unreachable:
                    self.gateway.leave(profile_for(self.gateway.profiles, now.tau, now.omega))
                    raise
            else:
                now_there = await self.gateway.in_force()
            error = late or stored.problem
        except PoascopeError as problem:
            error = str(problem)
        ack = Ack(
            tau=now_there.tau if now_there else None,
            omega=now_there.omega if now_there else None,
            applied_at=self.clock(),
            target_revision=stored.revision,
            error=error,
        )
        try:
            await self._acknowledge(deployment, ack, moved)
        except Unreachable as problem:
            log.debug("ack: %s - not written, tried again on the next turn", problem)

    async def _acknowledge(self, deployment: str, ack: Ack, moved: bool = False) -> None:
        """Written when it says something new, or something was done; always once after a start."""
        last = self._acked.get(deployment)
        if (
            last
            and not moved
            and (last.tau, last.omega, last.target_revision, last.error) == (ack.tau, ack.omega, ack.target_revision, ack.error)
        ):
            return
        await self.bus.put_ack(deployment, REPLICA, ack)
        self._acked[deployment] = ack
        log.log(logging.WARNING if ack.error else logging.INFO, "%s: %s", deployment, ack.error or f"τ {ack.tau}, ω {ack.omega} in force")
