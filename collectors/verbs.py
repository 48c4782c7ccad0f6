"""`collect` watches a cluster, `doctor` says what that lacks; `record`, `import` and `compact` are about files of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from poascope.addresses import without_password
from poascope.ending import run
from poascope.settings import Settings
from poascope.verbs import group, verb

EXPERIMENTS = {
    "early-warning": "How long before the TTFT objective broke each signal of the early warning rang, by the client's own clock.",
    "detection": "How late the regime is by each of the three TTFT P99s, and how often it switches for nothing, by the client's own clock.",
}


def register(cli: typer.Typer) -> None:
    """Add this package's verbs to the command line."""
    events, metrics = ("nats_url", "nats_credentials", "namespaces"), ("prometheus_url", "scrape", "scrape_interval_s")
    api = ("api_host", "api_port", "api_token")
    cli.command("collect")(
        verb(
            *events,
            *metrics,
            "store",
            *api,
            "window_s",
            "lost_after_s",
            "preset",
            "regime_source",
            "alarm_signal",
            "retain_raw_days",
            "retain_raw_gb",
            "retain_rollup_days",
        )(collect)
    )
    cli.command("doctor")(verb(*events[:2], *metrics[:2], "store", *api, "caddy_admin_url")(doctor))
    cli.command("record")(verb("nats_url", "nats_credentials", "scrape", "scrape_interval_s")(record))
    cli.command("import")(verb("store", "window_s", "lost_after_s", "preset", "regime_source", "alarm_signal")(import_captures))
    cli.command("compact")(verb("store")(compact))
    experiments = group(cli, "experiment", "Questions to recordings and real clusters, answered with their error.")
    for name, told in EXPERIMENTS.items():
        experiments.command(name)(verb("window_s", "lost_after_s", "slo_ttft_s", "preset")(_experiment(name, told)))


def collect(settings: Settings) -> None:
    """Watch a cluster: events and metrics into the store, a row of signals a second, and the read API. Ctrl-C stops it."""
    import logging

    from collectors.process import Collector, serve

    def started(collector: Collector) -> None:
        typer.echo(f"collecting from {without_password(settings.nats_url)} into {settings.store}; read API on {collector.url}", err=True)

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    serve(settings, started)


def doctor(
    settings: Settings,
    listen_s: Annotated[float, typer.Option("--listen", help="Seconds to listen to the event plane.", min=0.1, max=600)] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Probe everything poascope depends on, and say what is missing and which flag brings it. Exit 0 fine, 1 missing, 3 down."""
    import asyncio
    from dataclasses import asdict

    from collectors.doctor import examine, exit_code

    findings = asyncio.run(examine(settings, listen_s))
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            typer.echo(f"{finding.state:8}{finding.name:16} {finding.detail}" + (f"\n{'':25}→ {finding.fix}" if finding.fix else ""))
    if code := exit_code(findings):
        raise typer.Exit(code)


def record(
    settings: Settings,
    out: Annotated[Path, typer.Argument(help="The recording to write, as OUT.jsonl.gz.", show_default=False)],
    seconds: Annotated[float | None, typer.Option("--seconds", help="Stop after so many seconds; default: at Ctrl-C.", min=0)] = None,
) -> None:
    """Record every message of the event plane, and the metrics of the --scrape targets, until Ctrl-C."""
    from collectors.capture import Recorder
    from collectors.metrics_source import bases
    from collectors.record import record as recording

    def started() -> None:
        typer.echo(
            f"recording {without_password(settings.nats_url)} and {len(bases(settings))} metrics targets into {out}; stop with Ctrl-C",
            err=True,
        )

    with Recorder(out) as recorder:
        run(recording(settings, recorder, seconds, started))
    typer.echo(f"{out}: {recorder.lines} lines", err=True)


def import_captures(
    settings: Settings,
    captures: Annotated[
        list[Path],
        typer.Argument(
            help="Recordings of `poascope record`, AIPerf's profile_export.jsonl, Dynamo's request traces (DYN_REQUEST_TRACE=1).",
            show_default=False,
        ),
    ],
    deployment: Annotated[
        str | None, typer.Option("--deployment", help="Under which name to keep a trace that tells none; default: its file's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was read as JSON.")] = False,
) -> None:
    """Read recordings, or traces of other tools, into a store; the format is told by the content. What is already in it changes nothing."""
    from datetime import UTC, datetime

    from collectors.importer import import_capture, summary
    from store import Store

    file, told = Path(settings.store), False
    ours = not file.exists()
    try:
        with Store.open(settings.store) as store:
            for path in captures:
                done = import_capture(path, store, settings, datetime.now(UTC).replace(tzinfo=None), deployment)
                typer.echo(json.dumps(summary(done)) if as_json else _sentence(summary(done)))
                told = True
    except BaseException:
        if ours and not told:  # made by this import, and nothing is in it
            file.unlink(missing_ok=True)
        raise


def _experiment(name: str, told: str) -> Callable[..., None]:
    def experiment(
        settings: Settings,
        recordings: Annotated[list[Path], typer.Argument(help="Recordings made by `poascope record`.", show_default=False)],
        client: Annotated[
            list[Path] | None,
            typer.Option("--client", help="What `testbed load --out` wrote meanwhile: the truth. Default: client lines in the recordings."),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
    ) -> None:
        from collectors.experiment import lines, run

        done = run(name, recordings, client or [], settings)
        if as_json:
            typer.echo(json.dumps(done))
            return
        on = done["on"]
        typer.echo(
            f"{len(recordings)} recordings, {on['seconds']} s, {on['requests']} requests; TTFT P99 objective {settings.slo_ttft_s:g} s"
        )
        for path in on["truncated"]:
            typer.echo(f"{path} breaks off; everything before that was read")
        for line in lines(done["table"]):
            typer.echo(line)

    experiment.__doc__ = told
    return experiment


def compact(settings: Settings) -> None:
    """Write a closed store anew without the room that deleted rows left. Needs as much free disk as the rows that stay."""
    from store.retention import compact as anew

    before, after = anew(settings.store)
    typer.echo(f"{settings.store}: {before / 1e6:.1f} MB before, {after / 1e6:.1f} MB now")


def _sentence(done: dict[str, object]) -> str:
    if done["already"]:
        return f"{done['capture']}: already in the store, nothing changed"
    parts = [f"{name} {count}" for name, count in dict(done["rows"]).items()]  # type: ignore[call-overload]
    text = f"{done['capture']}: {', '.join(parts) or 'no rows'}"
    if done["lacks"]:
        text += f"\n  read as {done['format']}; it does not tell {done['lacks']}: those are NULL"
    if done["open_requests"]:
        text += f"\n  {done['open_requests']} requests were still under way when the recording ended"
    for name, count in dict(done["notable"]).items():  # type: ignore[call-overload]
        text += f"\n  {name}: {count}"
    if done["truncated"]:
        text += f"\n  the file breaks off ({done['truncated']}); everything before that was read"
    return text
