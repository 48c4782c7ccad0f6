"""The router actuator: a Dynamo component round `KvPushRouter` that takes τ and ω for each request from the controller's target.

It runs by its path in Dynamo's own environment, so it needs that and `nats-py`, and nothing of ours:

    python router.py --model-path MODEL --worker dyn://dynamo.backend.generate --prefill dyn://dynamo.prefill.generate

Frontends reach it as the only model of its namespace (`dynamo.frontend --router-mode round-robin --namespace dynamo-front`), so that
HTTP, chat templates and tokenising stay Dynamo's. A request keeps the id that its frontend gave it, on both legs. It is decided once, when
it arrives, under which parameters it goes; these are published with it on `poascope.<deployment>.routed`, from what was really handed to
Dynamo's router, never from the target. A new target touches no stream under way.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

log = logging.getLogger("poascope.router")

BUCKET, STORED, REVISION = "poascope", "poascope-kv", "Nats-Sequence"
MAX_PARAMETER = 10.0
LOOK_S = 2.0  # between two looks at the bucket, for what no message told
PATIENCE_S = 1.0  # for one answer of NATS
HEARD_S, LEAVE_S = 0.5, 60.0  # until frontends know that a router left; and at most until its streams have ended
# As in controller/protocol.py; tests/controller/test_router.py holds the two together.
EXPIRY_GRACE_S, LEASE_S = 2.0, 120.0


@dataclass(frozen=True, slots=True)
class Names:
    """How a Dynamo version calls what we call ω, and what else the decode leg of its own frontends sets beside it.

    `per_request`: whether its router heeds what a request asks. 1.6 takes it and goes by the router's own configuration all the same (seen:
    100 of 100 choices); there each pair of parameters has a router of its own.
    """

    omega: str
    decode: Mapping[str, float | bool]
    said: str
    per_request: bool = True


# 0.9: cost = weight x blocks left to prefill + active blocks; its frontends give the decode leg weight 0.
V0 = Names("overlap_score_weight", {"overlap_score_weight": 0.0}, "ω is overlap_score_weight; 0 on the decode leg behind a prefill pool")
V1 = Names(
    "prefill_load_scale",
    {"overlap_score_credit": 0.0, "assume_kv_reuse": False, "track_prefill_tokens": False},
    "ω is prefill_load_scale, overlap_score_credit is 1; credit 0 on the decode leg behind a prefill pool",
)
V1_6 = replace(V1, said=f"{V1.said}; a change takes a new router, to which requests then under way are no load", per_request=False)
MAX_ROUTERS = 16


def override(names: Names, tau: float, omega: float, *, prefilled: bool) -> dict[str, float | bool]:
    """The per-request configuration for Dynamo's router. `prefilled`: the decode leg of a request whose prompt was read elsewhere."""
    return {"router_temperature": tau, names.omega: omega, **(names.decode if prefilled else {})}


def configuration(names: Names, tau: float, omega: float, *, prefilled: bool) -> dict[str, float | bool]:
    """What a request would ask, as far as a router is configured by it."""
    asked = override(names, tau, omega, prefilled=prefilled)
    return {name: value for name, value in asked.items() if not isinstance(value, bool)}


def names_of(signature: str) -> Names:
    """By the parameters that this version's `KvRouterConfig` has."""
    if "prefill_load_scale" not in signature:
        return V0
    return V1_6 if "router_prefill_policy" in signature else V1


@dataclass(frozen=True, slots=True)
class Target:
    """What the controller wants, as the bucket has it at `revision`. Times are Unix s."""

    tau: float
    omega: float
    revision: int
    decided_at: float
    expires_at: float | None = None
    lease_s: float = LEASE_S


def parse_target(data: bytes, revision: int) -> Target:
    """Raises ValueError saying what cannot be used."""
    said = json.loads(data)
    if not isinstance(said, dict):
        raise ValueError("not an object")
    found: dict[str, float | None] = {}
    for name, high in (
        ("tau", MAX_PARAMETER),
        ("omega", MAX_PARAMETER),
        ("decided_at", 2.5e11),
        ("expires_at", 2.5e11),
        ("lease_s", 86_400),
    ):
        value = said.get(name)
        if value is None and name in ("expires_at", "lease_s"):
            found[name] = None
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= high or not math.isfinite(value):
            raise ValueError(f"{name} {value} - must be a number from 0 to {high:g}")
        else:
            found[name] = float(value)
    tau, omega, decided_at = found["tau"], found["omega"], found["decided_at"]
    assert tau is not None and omega is not None and decided_at is not None
    return Target(tau, omega, revision, decided_at, found["expires_at"], found["lease_s"] or LEASE_S)


@dataclass(frozen=True, slots=True)
class InForce:
    """What the next request goes by. `error`: why that is not the newest target."""

    tau: float
    omega: float
    revision: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """All that a router knows of what is wanted. Pure: every change gives a new one. Times are Unix s of this machine's clock.

    A lease counts from when this router heard its renewal; only the first one it finds is dated by the bucket.
    """

    safe: tuple[float, float] = (0.0, 1.0)
    target: Target | None = None
    problem: str | None = None
    lease: int = 0
    renewed_at: float | None = None

    def hear_target(self, data: bytes, revision: int) -> "Held":
        if self.target and revision == self.target.revision and not self.problem:
            return self
        try:
            return replace(self, target=parse_target(data, revision), problem=None)
        except ValueError as error:
            return replace(self, problem=f"target: revision {revision} - cannot be used ({error})")

    def hear_lease(self, revision: int, stored_at: float | None, now: float) -> "Held":
        if revision in (0, self.lease):
            return self
        first = self.lease == 0 and stored_at is not None
        return replace(self, lease=revision, renewed_at=min(now, stored_at) if first and stored_at is not None else now)

    def in_force(self, now: float) -> InForce:
        """The target's parameters until its override has ended or its lease has run out, then the safe ones."""
        target = self.target
        if target is None:
            return InForce(*self.safe, 0, self.problem)
        why = None
        renewed = target.decided_at if self.renewed_at is None else self.renewed_at
        if target.expires_at is not None and now >= target.expires_at + EXPIRY_GRACE_S:
            why = "the override has ended and the controller sent nothing newer"
        elif now >= renewed + target.lease_s:
            why = f"the controller has not renewed the target within its lease of {target.lease_s:g} s"
        if why is None:
            return InForce(target.tau, target.omega, target.revision, self.problem)
        tau, omega = self.safe
        return InForce(tau, omega, target.revision, f"{why}: back to safe τ {tau:g}, ω {omega:g}")


def token(name: str) -> str:
    """A deployment's or replica's name as one part of a NATS subject, as in controller/protocol.py."""
    return "".join(chr(b) if b < 128 and (chr(b).isalnum() or chr(b) in "-_") else f"={b:02x}" for b in name.encode())


class Link:
    """The control bucket seen from a router: what is wanted comes in, what was done goes out. NATS may come and go."""

    def __init__(
        self,
        url: str,
        access: Mapping[str, Any],
        deployment: str,
        replica: str,
        held: Held,
        said: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        from nats.aio.client import Client

        self.url, self.access, self.said, self.clock = url, access, said, clock
        self.shown = url.rpartition("@")[2]
        self.deployment, self.held = deployment, held
        place = token(deployment)
        self._target, self._lease = f"{place}.target", f"{place}.lease"
        self._ack, self._routed = f"$KV.{BUCKET}.{place}.ack.{token(replica)}", f"poascope.{place}.routed"
        self._client = Client()
        self._told: tuple[object, ...] | None = None
        self._applied: InForce | None = None
        self._applied_at = clock()
        self._away: str | None = None
        self._turn = asyncio.Lock()
        self.unsaid = 0  # requests whose parameters could not be published

    def now(self) -> InForce:
        """What a request that arrives now goes by."""
        in_force = self.held.in_force(self.clock())
        if in_force != self._applied:
            self._applied, self._applied_at = in_force, self.clock()
            level = logging.WARNING if in_force.error else logging.INFO
            log.log(level, "%s: τ %g, ω %g from now on%s", self.deployment, in_force.tau, in_force.omega, self._why(in_force))
        return in_force

    @property
    def trouble(self) -> str | None:
        """Why nothing is heard of the controller; None while NATS is there."""
        return None if self._client.is_connected and not self._away else self._away or "not connected yet"

    @staticmethod
    def _why(in_force: InForce) -> str:
        return f" ({in_force.error})" if in_force.error else f" (target revision {in_force.revision})" if in_force.revision else ""

    async def run(self) -> None:
        """Until cancelled. Without NATS the last target stays in force as long as its lease."""
        from nats.errors import Error

        while not self._client.is_connected:
            try:
                await self._client.connect(
                    self.url,
                    name="poascope router",
                    **self.access,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=1,
                    connect_timeout=2,
                    pending_size=0,  # late word of a request, or a late acknowledgement, would be taken for a new one
                    error_cb=self._error,
                )
            except (Error, OSError, TimeoutError) as error:
                await self._error(error)
                await asyncio.sleep(LOOK_S)
        for key in (self._target, self._lease):
            await self._client.subscribe(f"{STORED}.{key}", cb=self._hear)
        while True:
            await self._look()
            await asyncio.sleep(LOOK_S)

    async def _error(self, error: Exception) -> None:
        told = str(error) or type(error).__name__
        if told != self._away:
            self._away = told
            log.warning("NATS: %s - %s; what is in force stays as long as its lease", self.shown, told)

    async def _hear(self, message: Any) -> None:
        """The bucket has stored something: no need to go and read it."""
        revision = (message.headers or {}).get(REVISION, "")
        if revision.isdecimal():
            self._take(message.subject.removeprefix(f"{STORED}."), message.data, int(revision), None)
            await self._acknowledge()

    def _take(self, key: str, data: bytes, revision: int, stored_at: float | None) -> None:
        if key == self._lease:
            self.held = self.held.hear_lease(revision, stored_at, self.clock())
        else:
            self.held = self.held.hear_target(data, revision)
        self.now()

    async def _look(self) -> None:
        from nats.errors import Error
        from nats.js.errors import NotFoundError

        try:
            for key in (self._lease, self._target):
                with contextlib.suppress(NotFoundError):  # no bucket, or no such key, yet
                    before = self.held
                    found = await self._client.jetstream(timeout=PATIENCE_S).get_msg(f"KV_{BUCKET}", subject=f"$KV.{BUCKET}.{key}")
                    if self.held.lease != before.lease if key == self._lease else self.held.target is not before.target:
                        continue  # what was heard while the answer was on its way is newer
                    if found.seq and not (found.headers or {}).get("KV-Operation"):
                        self._take(key, found.data or b"", found.seq, found.time.timestamp() if found.time else None)
            if self._away:
                log.info("NATS: %s - back", self.shown)
                self._away, self._told = None, None
        except (Error, OSError, TimeoutError) as error:
            await self._error(error)
        self.now()
        await self._acknowledge()

    async def _acknowledge(self) -> None:
        """Written when it says something new; always once after a start, and after a time without NATS."""
        from nats.errors import Error

        async with self._turn:
            in_force = self.now()
            told = (in_force, self._applied_at)
            if told == self._told or not self._client.is_connected:
                return
            ack = {
                "tau": in_force.tau,
                "omega": in_force.omega,
                "applied_at": self._applied_at,
                "target_revision": in_force.revision,
                "error": in_force.error,
                "mapping": self.said,
            }
            try:
                await self._client.jetstream(timeout=PATIENCE_S).publish(self._ack, json.dumps(ack).encode())
                self._told = told
            except (Error, OSError, TimeoutError) as error:
                log.debug("ack: %s - not written, tried again at the next look", error)

    async def routed(self, request_id: str, in_force: InForce) -> None:
        """Say under which parameters a request goes to Dynamo's router. Never in its way: what cannot be said is counted."""
        from nats.errors import Error

        if not self._client.is_connected:
            self.unsaid += 1
            return
        said = {"request_id": request_id, "tau": in_force.tau, "omega": in_force.omega, "at": self.clock()}
        try:
            await self._client.publish(self._routed, json.dumps(said).encode())
        except (Error, OSError):
            self.unsaid += 1

    async def close(self) -> None:
        await self._client.close()


class Leg:
    """One pool of workers: Dynamo's router chooses, keeps the load of each worker and publishes it; the request goes straight there.

    `make` makes a router for (τ, ω). `prefilled`: the decode pool behind a prefill pool.
    """

    def __init__(self, make: Callable[[float, float], Any], client: Any, names: Names, *, prefilled: bool) -> None:
        self.make, self.client, self.names, self.prefilled = make, client, names, prefilled
        self._routers: dict[tuple[float, float], Any] = {}

    def router(self, tau: float, omega: float) -> Any:
        """The one for these parameters, made when it is needed (12 to 30 ms); one for all of them where requests may ask."""
        pair = (0.0, 0.0) if self.names.per_request else (tau, omega)
        router = self._routers.pop(pair, None) or self.make(tau, omega)
        self._routers[pair] = router
        if len(self._routers) > MAX_ROUTERS:
            # Requests that it routed hold it until they end.
            del self._routers[next(iter(self._routers))]
        return router

    async def workers(self, tau: float, omega: float) -> list[str]:
        """Ids of the workers that this leg may choose from, as text: they do not fit a float."""
        return sorted({str(load["worker_id"]) for load in await self.router(tau, omega).get_potential_loads([0])})

    async def stream(
        self, request: Mapping[str, Any], context: Any, tau: float, omega: float, chosen: list[int]
    ) -> AsyncIterator[dict[str, Any]]:
        """The worker's answers. `chosen` gets its id. Whatever ends this, the router's books are closed behind it."""
        request_id, router = context.id(), self.router(tau, omega)
        asked = override(self.names, tau, omega, prefilled=self.prefilled)
        worker, dp_rank, overlap = await router.best_worker(list(request["token_ids"]), asked, request_id)
        chosen.append(worker)
        marked = False
        try:
            routing = {**(request.get("routing") or {}), "dp_rank": dp_rank}
            sent = {**request, "routing": routing, "estimated_prefix_hit_num_blocks": overlap}
            async for answer in await self.client.direct(sent, worker, annotated=False, context=context):
                if not marked:
                    marked = True
                    await router.mark_prefill_complete(request_id)
                yield answer
        finally:
            await router.free(request_id)


class Router:
    """What answers the frontends' requests: the legs of one deployment under whatever parameters are in force when a request comes."""

    def __init__(self, link: Link, names: Names, worker: Leg, prefill: Leg | None) -> None:
        self.link, self.names, self.worker, self.prefill = link, names, worker, prefill
        self.open = 0

    async def generate(self, request: dict[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
        """One request, from its tokens to its last answer. What fails here fails for this request alone."""
        self.open += 1
        try:
            async for answer in self._generate(request, context):
                yield answer
        finally:
            self.open -= 1

    async def leave(self, endpoint: Any, shutdown: Callable[[], None]) -> None:
        """Be found no more, finish what is under way, then end."""
        await endpoint.unregister_endpoint_instance()
        deadline = time.monotonic() + LEAVE_S
        await asyncio.sleep(HEARD_S)
        while self.open and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        shutdown()

    async def _generate(self, request: dict[str, Any], context: Any) -> AsyncIterator[dict[str, Any]]:
        in_force = self.link.now()
        tau, omega = in_force.tau, in_force.omega
        await self.link.routed(context.id(), in_force)
        chosen: list[int] = []
        base = {key: value for key, value in request.items() if key != "router_config_override"}
        if self.prefill:
            stop = {**(request.get("stop_conditions") or {}), "max_tokens": 1}
            result: dict[str, Any] | None = None
            async for answer in self.prefill.stream({**base, "stop_conditions": stop}, context, tau, omega, chosen):
                if result is None and answer.get("disaggregated_params") is not None:
                    result = {"disaggregated_params": answer["disaggregated_params"]}
            if context.is_stopped() or context.is_killed():
                return
            if result is None:
                raise RuntimeError(f"prefill: worker {chosen[-1]} - ended without handing its cache over")
            base["prefill_result"] = result
        async for answer in self.worker.stream(base, context, tau, omega, chosen):
            yield answer

    async def status(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """For people and probes, also while NATS is away: what is in force, and which workers each leg may choose from."""
        in_force = self.link.now()
        legs = {"worker": self.worker, **({"prefill": self.prefill} if self.prefill else {})}
        return {
            "tau": in_force.tau,
            "omega": in_force.omega,
            "target_revision": in_force.revision,
            "error": in_force.error,
            "nats": self.link.trouble,
            "unsaid": self.link.unsaid,
            "mapping": self.names.said,
            "workers": {name: await leg.workers(in_force.tau, in_force.omega) for name, leg in legs.items()},
        }


def _endpoint(runtime: Any, path: str) -> Any:
    """`dyn://namespace.component.endpoint` in any version."""
    namespace, component, endpoint = path.removeprefix("dyn://").split(".")
    if hasattr(runtime, "endpoint"):
        return runtime.endpoint(f"{namespace}.{component}.{endpoint}")
    return runtime.namespace(namespace).component(component).endpoint(endpoint)


def access(environment: Mapping[str, str]) -> dict[str, Any]:
    """How to be let in by NATS, from the variables that poascope's own settings have. Raises OSError for a file that is not there."""
    names = {"user": "NATS_AUTH_USERNAME", "password": "NATS_AUTH_PASSWORD", "token": "NATS_AUTH_TOKEN"}
    given: dict[str, Any] = {name: environment[variable] for name, variable in names.items() if environment.get(variable)}
    if credentials := environment.get("POASCOPE_NATS_CREDENTIALS"):
        given["user_credentials"] = credentials
    authority, certificate = environment.get("POASCOPE_NATS_TLS_CA"), environment.get("POASCOPE_NATS_TLS_CERT")
    if authority or certificate:
        given["tls"] = ssl.create_default_context(cafile=authority or None)
    if certificate:
        given["tls"].load_cert_chain(certificate, environment.get("POASCOPE_NATS_TLS_KEY") or None)
    return given


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="poascope's router actuator: Dynamo's KV router with τ and ω from the controller.",
        epilog="Rights on NATS by NATS_AUTH_USERNAME, NATS_AUTH_PASSWORD, NATS_AUTH_TOKEN, POASCOPE_NATS_CREDENTIALS, POASCOPE_NATS_TLS_*.",
    )
    parser.add_argument("--model-path", required=True, help="The model's folder, as the workers have it.")
    parser.add_argument("--model-name", help="Name to serve it under; default: its path.")
    parser.add_argument("--worker", required=True, help="dyn://namespace.component.endpoint of the decode, or aggregated, workers.")
    parser.add_argument("--prefill", help="The same of the prefill workers; without it the deployment is aggregated.")
    parser.add_argument("--serve", help="Where frontends find this router; default: dyn://<namespace>-front.router.generate.")
    parser.add_argument("--block-size", type=int, default=16, help="Tokens of a KV block, as the workers have it.")
    parser.add_argument("--deployment", help="The deployment whose target to take; default: the workers' namespace.")
    parser.add_argument("--replica", default=f"router-{socket.gethostname()}-{os.getpid()}", help="This router's name in acknowledgements.")
    parser.add_argument("--nats", default=os.environ.get("NATS_SERVER", "nats://127.0.0.1:4222"), help="Default: NATS_SERVER.")
    parser.add_argument("--safe-tau", type=float, default=0.0, help="τ when nobody stands behind the target any more.")
    parser.add_argument("--safe-omega", type=float, default=1.0, help="ω when nobody stands behind the target any more.")
    found = parser.parse_args()
    namespace = found.worker.removeprefix("dyn://").split(".")[0]
    found.deployment = found.deployment or namespace
    found.serve = found.serve or f"dyn://{namespace}-front.router.generate"
    return found


async def serve(runtime: Any, given: argparse.Namespace) -> None:
    """Run as a component until the runtime ends."""
    from dynamo import llm

    names = names_of(llm.KvRouterConfig.__text_signature__ or "")
    kind = getattr(llm, "KvPushRouter", None) or llm.KvRouter

    async def leg(path: str, *, prefilled: bool, **more: Any) -> Leg:
        endpoint = _endpoint(runtime, path)
        client = await endpoint.client()
        await client.wait_for_instances()

        def make(tau: float, omega: float) -> Any:
            config = configuration(names, tau, omega, prefilled=prefilled) | {"router_replica_sync": True, **more}
            return kind(endpoint, given.block_size, llm.KvRouterConfig(**config))

        made = Leg(make, client, names, prefilled=prefilled)
        made.router(given.safe_tau, given.safe_omega)
        return made

    held = Held((given.safe_tau, given.safe_omega))
    link = Link(given.nats, access(os.environ), given.deployment, given.replica, held, names.said)
    task = asyncio.create_task(link.run())
    try:
        # As Dynamo's frontends do it: a prefill worker's load is the prompts it has to read, not the blocks it holds.
        prefill = await leg(given.prefill, prefilled=False, router_track_active_blocks=False) if given.prefill else None
        router = Router(link, names, await leg(given.worker, prefilled=prefill is not None), prefill)
        endpoint = _endpoint(runtime, given.serve)
        place = (llm.ModelInput.Tokens, llm.ModelType.Chat | llm.ModelType.Completions, endpoint, given.model_path)
        name = given.model_name or given.model_path
        if names is not V0:
            await llm.register_model(*place, name, kv_cache_block_size=given.block_size, worker_type=llm.WorkerType.Aggregated)
        else:
            await llm.register_llm(*place, name, kv_cache_block_size=given.block_size)
        runtime.register_engine_route("poascope", router.status)
        leaving: list[asyncio.Task[None]] = []

        def leave() -> None:
            leaving.append(asyncio.create_task(router.leave(endpoint, runtime.shutdown)))

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, leave)
        log.info("%s: serving %s as %s; %s", given.deployment, name, given.serve, names.said)
        await endpoint.serve_endpoint(router.generate, graceful_shutdown=True)
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=2)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(link.close(), 2)


def main() -> None:
    import uvloop
    from dynamo.runtime import dynamo_worker

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    given = arguments()

    async def run(runtime: Any) -> None:
        await serve(runtime, given)

    uvloop.run(dynamo_worker()(run)())


if __name__ == "__main__":
    main()
