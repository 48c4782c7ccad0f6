"""The pages of the live component: which panels each has, and in which order. A new panel or page is a line here. Pure."""

from dataclasses import replace

from app import games, warning
from app.charts.cache import kv_hit
from app.charts.control import in_force, smoothed
from app.charts.games import busy, costs, gains, loads, shares, waits
from app.charts.latency import itl, ttft
from app.charts.load import throughput, workers
from app.charts.lost import lost
from app.charts.poa import poa
from app.page import Head, Page, Panel, Rows
from app.status import Objectives, tiles, verdict


def _live_head(rows: Rows, age_s: float | None, objectives: Objectives) -> Head:
    signals = rows["signals"]
    found = verdict(signals[-1] if signals else None, age_s, objectives)
    if "alarm_record" not in rows:
        return Head(found, tiles(signals, objectives))
    return Head(warning.warned(found, rows), tiles(signals, objectives), warning.said(rows))


LIVE = Page(
    "live",
    (
        Panel("alarm", "Early warning", "rings before the TTFT objective breaks; judge it by its record", None),
        Panel(
            "poa",
            "Price of anarchy",
            "sum of latencies over the optimum; hollow where it is withheld",
            lambda g: poa(g.frames["signals"], theme=g.theme),
            named=True,
        ),
        Panel(
            "ttft",
            "TTFT",
            "answered requests, and with those still waiting",
            lambda g: ttft(g.frames["signals"], slo_s=g.objectives.slo_ttft_s, theme=g.theme),
            named=True,
        ),
        Panel(
            "lost",
            "Where the lost seconds go",
            "what PoA-hat is made of: seconds over the optimum for each finished request, by cause",
            lambda g: lost(g.frames["signals"], theme=g.theme),
        ),
        Panel(
            "throughput",
            "Throughput",
            "requests per second, and requests in the system",
            lambda g: throughput(g.frames["signals"], theme=g.theme),
        ),
        Panel("itl", "Inter-token latency", "decode", lambda g: itl(g.frames["signals"], slo_s=g.objectives.slo_itl_s, theme=g.theme)),
        Panel("kv", "KV cache hits", "prompt blocks already on the worker chosen", lambda g: kv_hit(g.frames["signals"], theme=g.theme)),
        Panel(
            "workers",
            "In flight by worker",
            "prefill solid, decode dashed",
            lambda g: workers(g.frames["worker_inflight"], g.frames["signals"], lines=g.lines, theme=g.theme),
        ),
    ),
    _live_head,
    queries=("worker_inflight",),
    latest=("signals", "alarm_record"),
)
GAMES = Page(
    "games",
    (
        Panel(
            "costs",
            "What each game costs",
            "seconds over the optimum for each finished request, by the game they are lost in",
            lambda g: costs(g.frames["games_binned"], g.frames["signals"], theme=g.theme),
            named=True,
        ),
        Panel(
            "loads",
            "Routing: load against the optimum",
            "requests present on each worker; dotted, what each would have in the cheapest placement of the same requests",
            lambda g: loads(g.frames["game_loads"], g.frames["signals"], lines=g.lines, theme=g.theme),
            named=True,
        ),
        Panel(
            "hits",
            "Cache: possible, chosen, realised",
            "share of prompt blocks: on some worker of the pool, on the one chosen, and not computed again",
            lambda g: shares(g.frames["games_binned"], g.frames["signals"], theme=g.theme),
        ),
        Panel(
            "wait",
            "Resources: wait for prefill",
            "mean wait of the prompts read, against the M/G/k baseline (Allen-Cunneen) at the same arrivals",
            lambda g: waits(g.frames["games_binned"], g.frames["signals"], theme=g.theme),
        ),
        Panel(
            "busy",
            "Resources: prefill against decode",
            "requests served over the most that the pool's workers could serve",
            lambda g: busy(g.frames["games_binned"], g.frames["signals"], theme=g.theme),
        ),
        Panel(
            "gains",
            "Resources: one more worker",
            "what it would take off TTFT as a prefill worker, off ITL as a decode worker",
            lambda g: gains(g.frames["games_binned"], g.frames["signals"], theme=g.theme),
        ),
        Panel("coupling", "How they couple", "what one game does to the others, in this window", None),
    ),
    games.head,
    queries=("games_binned", "game_loads"),
    latest=("games",),
    every_s=5.0,
)
CONTROL = Page(
    "control",
    (
        Panel(
            "smoothed",
            "What the loop sees",
            "TTFT P99 with those waiting, its EWMA, and the thresholds of the regimes",
            lambda g: smoothed(g.frames["signals"], theta_s=g.objectives.theta_s, theme=g.theme),
            named=True,
        ),
        Panel(
            "in_force",
            "τ and ω in force",
            "under which requests were really routed; a gap where that is not known",
            lambda g: in_force(g.frames["signals"], theme=g.theme),
        ),
        Panel(
            "ttft",
            "TTFT",
            "answered requests, and with those still waiting",
            lambda g: ttft(g.frames["signals"], slo_s=g.objectives.slo_ttft_s, theme=g.theme),
        ),
        Panel(
            "throughput",
            "Throughput",
            "requests per second, and requests in the system",
            lambda g: throughput(g.frames["signals"], theme=g.theme),
        ),
    ),
    lambda rows, age_s, objectives: replace(_live_head(rows, age_s, objectives), tiles=[]),
)
PAGES = {page.name: page for page in (LIVE, GAMES, CONTROL)}
