"""The past, for the replay page: what the page showed at one moment, and the charts of a span. Time is an argument."""

import asyncio
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa

from app import payload, status
from app.charts.again import again
from app.charts.frame import time_ms, with_gaps
from app.charts.load import choose
from app.page import Given, Page, trends
from app.theme import THEMES
from poascope.errors import PoascopeError
from queries.recompute import LEAD_S, recompute
from queries.signals import PulseConfig

KEEP_S = 130.0  # what the head of a page is given of the past
AGAIN_MAX_S = 3600.0
AGAIN_KEPT = 8
LONGEST_S = 366 * 86400.0
NOTHING = status.Verdict("unknown", "Nothing was stored of this moment.", "", "No signals in the two minutes before it: step or drag on.")


class Source(Protocol):
    """Named queries, of a collector or of a file."""

    async def frame(self, name: str, **params: Any) -> pd.DataFrame: ...

    async def table(self, name: str, **params: Any) -> pa.Table: ...


def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows with `at` in Unix seconds, as the head of a page takes them."""
    stamps = frame["ts"].to_numpy("datetime64[us]").astype("int64") / 1e6
    return [{**{str(k): v for k, v in row.items()}, "at": float(at)} for row, at in zip(frame.to_dict("records"), stamps, strict=True)]


def events(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The list beside the charts: `{at, kind, what, who, why}`, times in Unix ms."""
    at: list[int] = time_ms(frame)
    said = frame[["kind", "what", "who", "why"]].astype(object)
    return [
        {"at": t} | {str(k): v if isinstance(v, str) else "" for k, v in row.items()}
        for t, row in zip(at, said.where(said.notna(), "").to_dict("records"), strict=True)
    ]


def difference(stored: pd.DataFrame, new: pd.DataFrame) -> str:
    """One sentence: how far the recomputed PoA-hat and TTFT P99 are from the stored ones."""
    both = stored.merge(new, on="ts", suffixes=("", "_again"))
    said = []
    for column, name in (("poa_hat", "PoA-hat"), ("ttft_p99_s", "TTFT P99")):
        if f"{column}_again" not in both:
            continue
        a, b = (pd.to_numeric(both[c]).to_numpy(float) for c in (column, f"{column}_again"))
        known = ~np.isnan(a) & ~np.isnan(b) & (a > 0)
        if known.any():
            off = np.abs(b - a)[known] / a[known]
            most = f"{100 * np.median(off):.2g} % (median), {100 * off.max():.2g} % at most"
            said.append(f"{name} differs by {most}, over {known.sum()} instants")
    why = "Stored rows know nothing of metrics, gaps, or messages that came late."
    return f"{'; '.join(said)}. {why}" if said else f"Nothing stored to compare with. {why}"


class Past:
    """Answers are JSON. A query that fails is said in `source`, as on the live page."""

    def __init__(self, source: Source, objectives: status.Objectives, config: PulseConfig) -> None:
        self.source, self.objectives, self.config = source, objectives, config
        self._again: OrderedDict[tuple[Any, ...], asyncio.Task[pd.DataFrame]] = OrderedDict()
        self._one = asyncio.Lock()

    async def moment(self, page: Page, deployment: str, at: float) -> bytes:
        """Sentence and tiles as they were at `at` (Unix s)."""
        body: dict[str, Any] = {"now": at, "deployment": deployment}
        try:
            # The bound is exclusive, and a row of this very second was on screen.
            bounds = {"deployment": deployment, "from": at - KEEP_S, "to": at + 0.001}
            queries = dict.fromkeys(("signals", *page.latest))  # as the live page: how old the signals were decides what it says
            frames = await asyncio.gather(*[self.source.frame(query, **bounds) for query in queries])
        except PoascopeError as error:
            return payload.encode(body | {"source": _failed(error)})
        then: Mapping[str, Any] = dict(zip(queries, map(rows, frames), strict=True))
        signals = then["signals"]
        head = page.head(then, at - signals[-1]["at"] if signals else None, self.objectives)
        if not then[page.latest[0]]:
            head = replace(head, verdict=NOTHING)
        seen = {"verdict": head.verdict, "tiles": head.tiles, "said": head.said}
        return payload.encode(body | seen | {"source": _OK, "trends": trends(page, then[page.latest[0]], self.objectives)})

    async def span(self, page: Page, deployment: str, start: float, end: float, theme: str, anew: bool) -> bytes:
        """Figures with their points from `start` until `end` (Unix s), and what happened; with `anew` today's estimators over them."""
        body: dict[str, Any] = {"now": end, "deployment": deployment, "start": start * 1e3, "end": end * 1e3}
        step = payload.step_s(end - start)
        bounds = {"deployment": deployment, "from": start, "to": end}
        try:
            signals, decisions, happened, *others = await asyncio.gather(
                self.source.frame("signals", **bounds) if step == 1 else self.source.frame("signals_binned", step_s=step, **bounds),
                self.source.frame("decisions", **bounds),
                self.source.frame("events", **bounds),
                *[self.source.frame(query, step_s=step, **bounds) for query in page.queries],
            )
            new = await self._recomputed(deployment, start, end, step) if anew else None
        except PoascopeError as error:
            return payload.encode(body | {"source": _failed(error)})
        frames = dict(zip(page.queries, others, strict=True))
        if new is not None:
            body["differs"] = difference(signals, new)
        return await asyncio.to_thread(self._draw, page, body, signals, decisions, happened, frames, new, step, theme)

    def _draw(
        self,
        page: Page,
        body: dict[str, Any],
        signals: pd.DataFrame,
        decisions: pd.DataFrame,
        happened: pd.DataFrame,
        frames: dict[str, pd.DataFrame],
        new: pd.DataFrame | None,
        step: int,
        theme: str,
    ) -> bytes:
        look, gapped = THEMES[theme], with_gaps(signals, step)
        lines = choose(frames["worker_inflight"], None) if "worker_inflight" in frames else None
        drawn = payload.figures(page, Given(frames | {"signals": gapped, "decisions": decisions}, self.objectives, look, lines))
        if new is not None:
            drawn = {key: again(key, figure, with_gaps(new, step), look) for key, figure in drawn.items()}
        body |= payload.parts(drawn, whole=True)
        body |= {"shapes": payload.common(gapped, decisions, look), "events": events(happened), "source": _OK, "rows": len(signals)}
        return payload.encode(body)

    async def _recomputed(self, deployment: str, start: float, end: float, step: int) -> pd.DataFrame:
        if end - start > AGAIN_MAX_S:
            raise PoascopeError(f"recompute: {(end - start) / 3600:.1f} h - at most {AGAIN_MAX_S / 3600:g} h; choose a shorter span")
        key = (deployment, start, end, step)
        task = self._again.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._again[key] = asyncio.create_task(self._compute(deployment, start, end, step))
            while len(self._again) > AGAIN_KEPT:
                self._again.popitem(last=False)
        return await asyncio.shield(task)

    async def _compute(self, deployment: str, start: float, end: float, step: int) -> pd.DataFrame:
        async with self._one:  # each takes a core for seconds: viewers wait for their turn, and the live page goes on
            requests = await self.source.table("requests", **{"deployment": deployment, "from": start - LEAD_S, "to": end})
            # At most every 5 s, as the regime is stepped; whole seconds, as the stored rows are.
            instants = np.arange(math.ceil(start), end, max(step, 1 if end - start <= 900 else 5), dtype=float)
            found = await asyncio.to_thread(recompute, requests, [float(t) for t in instants], deployment, self.config)
        frame = pd.DataFrame(found or {"ts": []})
        frame["ts"] = pd.to_datetime(frame["ts"], unit="s").astype("datetime64[us]")
        return frame


_OK = {"state": "ok", "title": "", "todo": "", "detail": ""}


def _failed(error: PoascopeError) -> dict[str, str]:
    return {"state": "down", "title": "This span cannot be read.", "todo": str(error), "detail": str(error)}
