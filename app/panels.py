"""The pages of the live component: which panels each has, and in which order. A new panel or page is a line here. Pure."""

from app.charts.cache import kv_hit
from app.charts.latency import itl, ttft
from app.charts.load import throughput, workers
from app.charts.lost import lost
from app.charts.poa import poa
from app.page import Head, Page, Panel, Rows
from app.status import Objectives, tiles, verdict


def _live_head(rows: Rows, age_s: float | None, objectives: Objectives) -> Head:
    signals = rows["signals"]
    return Head(verdict(signals[-1] if signals else None, age_s, objectives), tiles(signals, objectives))


LIVE = Page(
    "live",
    (
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
)
PAGES = {page.name: page for page in (LIVE,)}
