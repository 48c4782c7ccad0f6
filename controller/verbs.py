"""`poascope control` and `poascope intent set|show|cancel|arm|disarm`."""

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controller import guard
from poascope import ending
from poascope.errors import Misconfigured, PoascopeError
from poascope.settings import Settings
from poascope.verbs import verb

if TYPE_CHECKING:
    from controller.bus import Bus, State

FLAGS = ("nats_url", "nats_credentials", "namespaces")
LIMITS = ("preset", "min_dwell_s", "max_switches", "lease_s")
UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}

Deployment = Annotated[str, typer.Option(help="Dynamo namespace; needed when there are several.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Reason = Annotated[str, typer.Option(help="Why, for whoever reads the audit trail.")]
Wait = Annotated[float, typer.Option("--wait", help="Seconds to wait until every actuator has acknowledged; 0: do not.")]
Expect = Annotated[int | None, typer.Option("--expect", help="Revision of the intent that you saw; refused if it is another by now.")]
Key = Annotated[str, typer.Option("--key", help="Idempotency key: the same key again is the same intent.")]


def control(settings: Settings) -> None:
    """Run the controller, and the gateway's actuator when there is a Caddy admin URL. Ctrl-C ends it; the bucket keeps all it knows."""
    import logging
    import signal

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    dismiss = guard.post(settings) if settings.caddy_admin_url and settings.profiles else None

    async def run() -> None:
        task = asyncio.ensure_future(_control(settings))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            return
        except BaseExceptionGroup as failed:
            # A task group tells several errors at once; the first that a person can read is the one to print.
            first: BaseException = failed.subgroup(PoascopeError) or failed
            while isinstance(first, BaseExceptionGroup) and failed.subgroup(PoascopeError):
                first = first.exceptions[0]
            raise first from None

    try:
        ending.run(run())
    finally:
        if dismiss:
            dismiss()


async def _control(settings: Settings) -> None:
    import httpx

    from controller.bus import connect
    from controller.gateway import Actuator, Gateway
    from controller.loop import Controller, Ear
    from controller.policy import Config
    from controller.protocol import Safe

    config = Config(min_dwell_s=settings.min_dwell_s, max_switches=settings.max_switches, lease_s=settings.lease_s)
    async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
        gateway = Gateway(settings.caddy_admin_url, settings.profiles, client) if settings.caddy_admin_url else None
        async with connect(settings.nats, patient=True) as bus:
            ear = Ear(settings.namespaces, preset=settings.preset)
            await ear.listen(bus)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(Controller(bus, ear, config).run())
                if gateway:
                    safe = Safe(settings.safe_tau, settings.safe_omega)
                    tasks.create_task(Actuator(bus, ear, gateway, settings.gateway_namespace, safe=safe).run())


def seconds(text: str) -> float:
    """`90s`, `30m`, `2h` in seconds. Raises Misconfigured."""
    try:
        return float(text[:-1]) * UNITS_S[text[-1:]]
    except (KeyError, ValueError) as error:
        raise Misconfigured(f"expires: {text!r} - write 90s, 30m or 2h") from error


async def _deployment(bus: "Bus", settings: Settings, named: str) -> str:
    known = (named,) if named else settings.namespaces or await bus.deployments()
    if len(known) == 1:
        return known[0]
    raise Misconfigured(f"deployment: {', '.join(known) or 'none known yet'} - name one with --deployment")


def set_(
    settings: Settings,
    reason: Reason,
    mode: Annotated[str, typer.Option(help="auto, manual or freeze; manual is understood from a preset or τ and ω.")] = "",
    preset: Annotated[str, typer.Option(help="Parameters of a regime of the paper: below, transition or saturated.")] = "",
    tau: Annotated[float | None, typer.Option(help="Softmax temperature τ, 0 to 10.")] = None,
    omega: Annotated[float | None, typer.Option(help="Weight ω of cache overlap, 0 to 10.")] = None,
    expires: Annotated[str, typer.Option(help="When it ends by itself: 5m to 8h from now.")] = "",
    deployment: Deployment = "",
    expect: Expect = None,
    key: Key = "",
    wait: Wait = 0,
    json: Json = False,
) -> None:
    """Say what you want: parameters for a while, what is in force frozen, or the controller's choice."""
    from controller.protocol import REGIMES

    if preset:
        if preset not in REGIMES:
            raise Misconfigured(f"preset: {preset} - must be one of {', '.join(REGIMES)}")
        if tau is not None or omega is not None:
            raise Misconfigured(f"preset: {preset} - has its own τ and ω, leave --tau and --omega out")
        tau, omega = REGIMES[preset]
    chosen = mode or ("manual" if tau is not None or omega is not None else "")
    if chosen not in ("auto", "manual", "freeze"):
        raise Misconfigured(f"mode: {mode or 'none'} - give --mode auto|manual|freeze, a --preset, or --tau and --omega")
    if chosen != "manual" and (tau is not None or omega is not None):
        raise Misconfigured(f"mode: {chosen} - takes no parameters")
    ends_in_s = seconds(expires) if expires else None
    fields = {"mode": chosen, "tau": tau, "omega": omega, "reason": reason}
    _submit(settings, fields, ends_in_s if chosen != "auto" else None, deployment, expect, key, wait, json)


def cancel(
    settings: Settings,
    reason: Reason,
    deployment: Deployment = "",
    expect: Expect = None,
    key: Key = "",
    wait: Wait = 0,
    json: Json = False,
) -> None:
    """End an override now: back to the controller's choice."""
    _submit(settings, {"mode": "auto", "reason": reason}, None, deployment, expect, key, wait, json)


def _submit(
    settings: Settings,
    fields: dict[str, Any],
    ends_in_s: float | None,
    deployment: str,
    expect: int | None,
    key: str,
    wait: float,
    json: bool,
) -> None:
    import uuid

    from controller.bus import call
    from controller.protocol import Intent, complaint

    async def submit(bus: "Bus") -> tuple["State", bool]:
        where, now = await _deployment(bus, settings, deployment), time.time()
        intent = Intent(
            operator=settings.operator_name,
            idempotency_key=key or uuid.uuid4().hex,
            expected_revision=(await bus.intent(where)).revision if expect is None else expect,
            expires_at=None if ends_in_s is None else now + ends_in_s,
            **fields,
        )
        if why := complaint(intent, now):
            await bus.refuse(where, intent, why, now)
            raise Misconfigured(why)
        submitted = await bus.put_intent(where, intent, now)
        if wait:
            await _acknowledged(bus, where, submitted.revision, wait)
        return await bus.state(where), submitted.first

    state, first = call(settings.nats, submit)
    _print(state, json, "" if first else "this key was used before: nothing new was written")


def _is_auto(state: "State") -> bool:
    return state.intent.value is not None and state.intent.value.mode == "auto"


async def _acknowledged(bus: "Bus", deployment: str, revision: int, wait_s: float) -> None:
    """Until every actuator has applied the target of this intent. Raises PoascopeError when one cannot, or when time is up."""
    state = await bus.state(deployment)
    try:
        async with asyncio.timeout(wait_s):
            async for _ in bus.watch():
                state = await bus.state(deployment)
                if state.intent.revision != revision:
                    raise PoascopeError(f"wait: revision {revision} - overtaken by revision {state.intent.revision} while waiting")
                target = state.target.value
                if target is None and state.controller_at and not (state.arming.value and state.arming.value.armed) and _is_auto(state):
                    raise PoascopeError("wait: auto - the controller is not armed and nothing was ever set, so nothing is; see intent arm")
                acks = {replica: ack.value for replica, ack in state.acks.items() if ack.value}
                if not target or target.intent_revision != revision or not acks:
                    continue
                if all(ack.target_revision == state.target.revision for ack in acks.values()):
                    if failed := [f"{replica}: {ack.error}" for replica, ack in acks.items() if ack.error]:
                        raise PoascopeError("; ".join(failed))
                    return
    except TimeoutError:
        taken = state.target.value and state.target.value.intent_revision == revision
        silent = [replica for replica, ack in state.acks.items() if not ack.value or ack.value.target_revision != state.target.revision]
        missing = (
            f"not acknowledged by {', '.join(silent) or 'any actuator'}"
            if taken
            else "the controller has not taken it; is `poascope control` running?"
        )
        raise PoascopeError(f"wait: {wait_s:g} s - {missing}") from None


def arm(settings: Settings, reason: Reason, deployment: Deployment = "", expect: Expect = None, key: Key = "", json: Json = False) -> None:
    """Let the controller act on the regime by itself. Until then it decides, says what it would do, and does nothing (dry run)."""
    _arming(settings, True, reason, deployment, expect, key, json)


def disarm(
    settings: Settings, reason: Reason, deployment: Deployment = "", expect: Expect = None, key: Key = "", json: Json = False
) -> None:
    """Back to the dry run: what is in force stays; overrides by people are carried out as before."""
    _arming(settings, False, reason, deployment, expect, key, json)


def _arming(settings: Settings, armed: bool, reason: str, deployment: str, expect: int | None, key: str, json: bool) -> None:
    import uuid

    from controller.bus import call
    from controller.protocol import Arming, complaint

    async def submit(bus: "Bus") -> tuple["State", bool]:
        where, now = await _deployment(bus, settings, deployment), time.time()
        arming = Arming(
            armed=armed,
            reason=reason,
            operator=settings.operator_name,
            idempotency_key=key or uuid.uuid4().hex,
            expected_revision=(await bus.arming(where)).revision if expect is None else expect,
        )
        if why := complaint(arming, now):
            await bus.refuse(where, arming, why, now)
            raise Misconfigured(why)
        submitted = await bus.put_arming(where, arming, now)
        return await bus.state(where), submitted.first

    state, first = call(settings.nats, submit)
    _print(state, json, "" if first else "this key was used before: nothing new was written")


def show(settings: Settings, deployment: Deployment = "", json: Json = False) -> None:
    """What is wanted, decided and acknowledged now."""
    from controller.bus import call

    async def ask(bus: "Bus") -> "State":
        state = await bus.state(await _deployment(bus, settings, deployment))
        if not (state.intent.revision or state.target.revision or state.acks or state.arming.revision):
            known = ", ".join(await bus.deployments()) or "none"
            raise PoascopeError(
                f"deployment: {state.deployment} - nobody wanted or decided anything for it; known: {known}"
                + ("" if state.controller_at else "; no controller answers")
            )
        return state

    _print(call(settings.nats, ask), json)


def _print(state: "State", json: bool, note: str = "") -> None:
    import msgspec

    if json:
        typer.echo(msgspec.json.encode(state).decode())
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "revision", "τ", "ω", "mode", "at (UTC)", "says", title=f"deployment {state.deployment}", title_justify="left")
    rows: list[tuple[str, Any]] = [("intent", state.intent), ("target", state.target)]
    for what, stored in [*rows, *((f"ack {replica}", ack) for replica, ack in sorted(state.acks.items()))]:
        value = stored.value
        until = getattr(value, "expires_at", None)
        says = next((getattr(value, name) for name in ("why", "error", "reason") if getattr(value, name, None)), stored.problem or "")
        cells = [
            what,
            str(getattr(value, "target_revision", stored.revision)),
            *(f"{v:g}" if (v := getattr(value, name, None)) is not None else "-" for name in ("tau", "omega")),
            getattr(value, "mode", "-"),
            _utc(stored.at),
            says + (f" (until {_utc(until)})" if until else ""),
        ]
        table.add_row(*(Text(cell) for cell in cells))
    Console().print(table)
    arming = state.arming.value
    if arming and arming.armed:
        typer.echo(f"armed by {arming.operator} at {_utc(state.arming.at)} ({arming.reason}): the controller acts on the regime by itself")
    else:
        by = f"disarmed by {arming.operator} at {_utc(state.arming.at)} ({arming.reason})" if arming else "not armed"
        typer.echo(f"{by}: the controller decides and does not act (dry run); overrides are carried out; see intent arm")
    if state.controller_at is None:
        typer.echo("no controller answers: nothing changes until `poascope control` runs")
    if note:
        typer.echo(note)


def _utc(at: float | None) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(at)) if at else "-"


def register(cli: typer.Typer) -> None:
    """Add this package's verbs to the command line."""
    cli.command("control")(verb(*FLAGS, "caddy_admin_url", *LIMITS)(control))
    intent = typer.Typer(name="intent", no_args_is_help=True, help="Override the routing parameters, or see who did.")
    intent.command("set")(verb(*FLAGS, "operator")(set_))
    intent.command("show")(verb(*FLAGS)(show))
    intent.command("cancel")(verb(*FLAGS, "operator")(cancel))
    intent.command("arm")(verb(*FLAGS, "operator")(arm))
    intent.command("disarm")(verb(*FLAGS, "operator")(disarm))
    cli.add_typer(intent)
