"""`poascope experiment what-if` and `experiment classifier`: the trace asked from a shell."""

import sys
from typing import Annotated, Any

import typer

from poascope.errors import Misconfigured, PoascopeError
from poascope.settings import Settings
from poascope.verbs import group, verb

Store = Annotated[str | None, typer.Option("--store", help="A store that no process has open, or a bundle.")]
Url = Annotated[str | None, typer.Option("--url", help="A running collector, as http://127.0.0.1:8600.")]
Deployment = Annotated[str | None, typer.Option("--deployment", help="Which one; not needed when there is one.")]
From = Annotated[str | None, typer.Option("--from", help="ISO-8601 (UTC) or Unix seconds; default: the beginning.")]
To = Annotated[str | None, typer.Option("--to", help="ISO-8601 (UTC) or Unix seconds; default: the end.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]
POLICIES = ("round-robin", "least-loaded", "kv:0:0", "kv:0:1", "kv:0.7:1", "kv:0.8:0.1")


def register(cli: typer.Typer) -> None:
    """Add these experiments to the command line."""
    experiments = group(cli, "experiment", "Questions to recordings and real clusters, answered with their error.")
    experiments.command("what-if")(verb("api_token")(what_if))
    experiments.command("classifier")(verb("api_token")(classifier))


def fetch(
    settings: Settings, store: str | None, url: str | None, deployment: str | None, span: dict[str, str | None], names: tuple[str, ...]
) -> tuple[str, dict[str, Any]]:
    """Tables of the named queries for one deployment and span, and its name."""
    from contextlib import ExitStack

    from queries import named, remote
    from queries.verbs import one_of
    from store import Store as File

    one_of(store, url)
    given = {key: value for key, value in span.items() if value is not None}
    with ExitStack() as stack:
        if url:

            def read(name: str, asked: dict[str, str]) -> Any:
                with remote.read(url, settings.api_token, name, asked) as rows:
                    return rows.read_all()
        else:
            cursor = stack.enter_context(stack.enter_context(File.open(str(store), read_only=True)).cursor())

            def read(name: str, asked: dict[str, str]) -> Any:
                return named.read(cursor, name, asked).read_all()

        known = read("deployments", {})["deployment"].to_pylist()
        if deployment is None and len(known) == 1:
            deployment = known[0]
        if deployment not in known:
            raise Misconfigured(
                f"deployment: {deployment or 'not given'} - must be one of {', '.join(known) or 'none: the store is empty'}"
            )
        tables = {}
        for name in names:
            takes = {p.name for p in named.catalogue()[name].parameters}
            tables[name] = read(name, {k: v for k, v in {"deployment": str(deployment), **given}.items() if k in takes})
    return str(deployment), tables


def what_if(
    settings: Settings,
    store: Store = None,
    url: Url = None,
    deployment: Deployment = None,
    from_: From = None,
    to: To = None,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", help="recorded, round-robin, least-loaded, kv[:TAU[:OMEGA]]; may be given again. Default: a few of each."),
    ] = None,
    prefill: Annotated[int, typer.Option("--prefill", help="Prefill workers more (or less).")] = 0,
    decode: Annotated[int, typer.Option("--decode", help="Decode workers more (or less).")] = 0,
    loop: Annotated[str | None, typer.Option("--loop", help="open or closed; default: told from the number in flight.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the lots that routing draws.")] = 0,
    as_json: AsJson = False,
) -> None:
    """What other routing, or other workers, would have done to a recorded load: by a model that must first reproduce the recording."""
    from queries.whatif import answer as whatif
    from queries.whatif.policy import parse_policy
    from queries.whatif.trace import trace_of

    if loop not in (None, "open", "closed"):
        raise Misconfigured(f"loop: {loop} - must be open or closed")
    policies = [parse_policy(text) for text in policy or ()]
    name, tables = fetch(settings, store, url, deployment, {"from": from_, "to": to}, ("requests", "kv_events", "gaps", "signals"))
    trace = trace_of(name, tables["requests"], tables["kv_events"], tables["gaps"], tables["signals"], loop)
    checked = whatif.validate(trace, seed)
    cluster = whatif.more(trace.cluster, prefill, decode)
    if cluster != trace.cluster or policies:
        answers = [whatif.ask(trace, checked, cluster, p, seed) for p in policies or [whatif.used(trace)]]
    else:
        answers = [whatif.ask(trace, checked, None, parse_policy(p), seed) for p in POLICIES]
        answers.append(whatif.optimum(trace, checked))
        rule = used if (used := whatif.used(trace)).kind == "kv" else parse_policy("kv")
        answers += [whatif.ask(trace, checked, whatif.more(trace.cluster, p, d), rule, seed) for p, d in ((1, 0), (0, 1))]
    _print_json(name, checked, answers) if as_json else _print(name, checked, answers)
    if checked.refused:
        raise PoascopeError(f"what-if: {name} - {checked.refused}")


def _print_json(name: str, checked: Any, answers: list[Any]) -> None:
    import json
    from dataclasses import asdict

    typer.echo(json.dumps({"deployment": name, "validation": asdict(checked), "answers": [asdict(a) for a in answers]}))


def _print(name: str, checked: Any, answers: list[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 130)
    table = Table("", "requests", "req/s", "TTFT mean", "P50", "P90", "P99", "hits", title=f"What if · {name}")

    def row(what: str, s: Any, low: Any = None, high: Any = None) -> None:
        def seconds(field: str) -> str:
            if low is None or getattr(high, field) - getattr(low, field) < 0.0005:
                return f"{getattr(s, field):.3f} s"
            return f"{getattr(s, field):.3f} s ({getattr(low, field):.3f}–{getattr(high, field):.3f})"

        hits = "–" if s.hit_ratio is None else f"{s.hit_ratio:.0%}"
        cells = [seconds(f"ttft_{q}_s") for q in ("mean", "p50", "p90", "p99")]
        table.add_row(what, f"{s.requests:.0f}", f"{s.per_s:.2f}", *cells, hits)

    row("recorded", checked.recorded)
    row(f"the model, {checked.policy}", checked.played)
    table.add_row(
        "its error",
        "",
        f"{checked.error['per_s']:+.1%}",
        "",
        f"{checked.error['ttft_p50_s']:+.1%}",
        "",
        f"{checked.error['ttft_p99_s']:+.1%}",
        "",
    )
    table.add_section()
    for a in answers:
        if a.value:
            row(a.question, a.value, a.low, a.high)
        elif a.bound_s is not None:
            table.add_row(a.question, "", "", f"≥ {a.bound_s:.3f} s", "", "", "", "")
    console.print(table)
    for a in answers:
        if a.refused:
            console.print(f"{a.question}: refused - {a.refused}", highlight=False)
    console.print("Assumptions:", highlight=False)
    for text in dict.fromkeys(text for a in answers for text in a.assumptions):
        console.print(f" · {text}", highlight=False, markup=False)


def classifier(
    settings: Settings,
    store: Store = None,
    url: Url = None,
    deployment: Deployment = None,
    from_: From = None,
    to: To = None,
    theta: Annotated[str, typer.Option("--theta", help="θ₁,θ₂ in seconds.")] = "0.3,2",
    alpha: Annotated[float, typer.Option("--alpha", help="Weight of the newest P99 in the smoothed one.")] = 0.3,
    dwell_s: Annotated[float, typer.Option("--dwell-s", help="Least seconds in a regime before it goes down.")] = 10.0,
    source: Annotated[str, typer.Option("--source", help="censored, events or prometheus.")] = "censored",
    as_json: AsJson = False,
) -> None:
    """When the regime would have switched with other thresholds, smoothing, dwell or P99, beside when it did."""
    from datetime import UTC, datetime

    from queries.whatif.classify import Rule, play, recorded_switches

    try:
        low, high = (float(part) for part in theta.split(","))
    except ValueError:
        raise Misconfigured(f"theta: {theta} - must be two numbers of seconds, as 0.3,2") from None
    name, tables = fetch(settings, store, url, deployment, {"from": from_, "to": to}, ("requests", "signals"))
    played = play(tables["requests"], tables["signals"], Rule((low, high), alpha, dwell_s, source))
    if played.refused:
        raise PoascopeError(f"classifier: {name} - {played.refused}")
    was = recorded_switches(tables["signals"])
    if as_json:
        import json
        from dataclasses import asdict

        rows = {"deployment": name, "played": [asdict(s) for s in played.switches], "recorded": [asdict(s) for s in was]}
        typer.echo(json.dumps(rows | {"taken_back": played.away, "assumptions": played.assumptions}))
        return
    for title, switches in (("as it was", was), ("as asked", played.switches)):
        typer.echo(f"{title}: {len(switches)} switches")
        for s in switches:
            at = datetime.fromtimestamp(s.at, UTC).strftime("%H:%M:%S")
            smoothed = "" if s.ewma_s is None else f"  L̄ {s.ewma_s:.2f} s"
            typer.echo(f"  {at} UTC  {s.before} → {s.after}{smoothed}")
    typer.echo(f"{played.away} of the asked were taken back within 30 s.")
    for text in played.assumptions:
        typer.echo(f" · {text}")
