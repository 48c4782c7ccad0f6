"""The only cache of the page, and the only client of the read API. One second of a deployment is read once, however many look at it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pandas as pd
import pyarrow as pa

from app import payload, status
from app.audit import entries
from app.board import board
from app.chain import chain
from app.charts.frame import framed, number, with_gaps
from app.charts.load import Lines, choose
from app.control import Control
from app.file import File, NoControl
from app.page import Given, Head, Page, trends
from app.panels import LIVE
from app.theme import THEMES
from poascope.errors import PoascopeError, Unreachable
from poascope.settings import Settings
from queries.estimators.regime import THRESHOLDS_S
from queries.signals import RATE_WINDOW_S

log = logging.getLogger("poascope.dash")
KEEP_S = 130.0  # rows held for trends
WATCHED_S = 20.0  # a deployment nobody asked for this long is not read
EFFECTS_S = 10.0  # effects are asked for anew after that: a window after a change grows slowly
MAX_EFFECTS, MAX_LOG = 400, 500
LATE_S = 5.0  # a decision may be stored after the second it belongs to was drawn
READ_S = 30.0  # a script waits no longer for its rows
LEAD_S = 0.12  # after the whole second, when the pulse's row should be there


class Collector:
    """The read API as frames. u64 ids come as text: pandas would make floats of them where one is missing."""

    def __init__(self, url: str, token: str = "") -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = url
        self.client = httpx.AsyncClient(base_url=url, headers=headers, timeout=httpx.Timeout(4, connect=1.5), trust_env=False)

    async def _get(self, path: str, params: dict[str, Any]) -> httpx.Response:
        try:
            return await self.client.get(path, params=params)
        except httpx.HTTPError as error:
            raise Unreachable(f"collector: {self.url} - does not answer ({type(error).__name__})") from error

    async def table(self, name: str, **params: Any) -> pa.Table:
        """Rows of a named query, ids as they are. Raises Unreachable, or PoascopeError when the collector refuses."""
        answer = await self._get(f"/query/{name}", {k: v for k, v in params.items() if v is not None})
        if answer.status_code != 200:
            raise PoascopeError(f"collector: {name} - answered {answer.status_code}: {_said(answer)[:200]}")
        return pa.ipc.open_stream(answer.content).read_all()

    async def frame(self, name: str, **params: Any) -> pd.DataFrame:
        """The same as a frame, u64 as text."""
        return framed(await self.table(name, **params))

    async def ready(self) -> dict[str, Any]:
        """`/readyz` as it is: a collector that is not ready still answers."""
        answer = await self._get("/readyz", {})
        try:
            return dict(msgspec.json.decode(answer.content))
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            raise PoascopeError(f"collector: {self.url}/readyz - answered {answer.status_code} without JSON") from error


def _said(answer: httpx.Response) -> str:
    """The collector's own sentence, without the JSON it comes in."""
    try:
        return str(msgspec.json.decode(answer.content)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return answer.text


class Feed:
    """What the viewers see, renewed once a second. Answers are bytes, made once for each distinct question of a tick."""

    def __init__(
        self,
        collector: Collector | File,
        control: Control | NoControl,
        settings: Settings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.collector, self.control, self.clock = collector, control, clock
        self.objectives = status.Objectives(settings.slo_ttft_s, settings.slo_itl_s, THRESHOLDS_S.get(settings.preset))
        self.deployments: list[str] = []
        self.down_since: float | None = None
        self.trouble = ""
        self.silent = False
        self.sources: list[dict[str, Any]] = []
        self.ticked_at = 0.0
        self._rows: dict[tuple[str, str], list[dict[str, Any]]] = {}  # by query and deployment
        self._asked: dict[tuple[str, str], float] = {}
        self._answers: dict[tuple[Any, ...], asyncio.Task[bytes]] = {}
        self._busy_at: dict[str, float] = {}
        self._lines: dict[tuple[str, str, int], Lines] = {}
        self._listed_at = 0.0
        self._effects: dict[str, tuple[list[dict[str, Any]], float]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def rows(self, name: str, **params: Any) -> pa.Table:
        """Rows of a named query for a script, from its own thread. Raises PoascopeError, also before the server runs; TimeoutError."""
        if self._loop is None:
            raise PoascopeError("dash: not started yet - try again")
        return asyncio.run_coroutine_threadsafe(self.collector.table(name, **params), self._loop).result(READ_S)

    async def run(self) -> None:
        """Tick for ever, just after each whole second, when the collector's row is due; a little later again if it was not there yet."""
        self._loop = asyncio.get_running_loop()
        while True:
            for _ in range(3):
                try:
                    fresh = await self.tick()
                except Exception:
                    log.exception("dash: a tick failed")
                    fresh = True
                if fresh:
                    break
                await asyncio.sleep(0.2)
            await asyncio.sleep(1 - (self.clock() - LEAD_S) % 1)

    async def tick(self) -> bool:
        """Read what is new. True when nothing newer is to be expected within this second."""
        now = self.clock()
        try:
            self.sources = list((await self.collector.ready()).get("sources", ()))
            if now - self._listed_at > 5 or not self.deployments:
                self.deployments = [str(d) for d in (await self.collector.frame("deployments"))["deployment"]]
                self._listed_at = now
            moved = [await self._advance("signals", d, now) for d in self.watched()]
            for name, deployment in [key for key in self._asked if key[0] != "signals" and self._is_asked(*key)]:
                await self._advance(name, deployment, now)
            self.down_since, self.trouble = None, ""
        except PoascopeError as error:
            self._lost(error, now)
            moved = []
        self.ticked_at = self.clock()
        self._answers = {}
        return not moved or any(moved)

    def _lost(self, error: PoascopeError, now: float) -> None:
        self.down_since, self.trouble, self.silent = self.down_since or now, str(error), isinstance(error, Unreachable)

    async def _advance(self, query: str, deployment: str, now: float) -> bool:
        rows = self._rows.setdefault((query, deployment), [])
        newest = rows[-1]["at"] if rows else None
        frame = await self.collector.frame(query, **{"deployment": deployment, "from": max(newest + 0.001 if newest else 0, now - KEEP_S)})
        if not len(frame):
            return False
        stamps = frame["ts"].to_numpy("datetime64[us]").astype("int64") / 1e6
        fresh: list[dict[str, Any]] = [
            {**{str(k): v for k, v in row.items()}, "at": float(at)} for row, at in zip(frame.to_dict("records"), stamps, strict=True)
        ]
        self._rows[query, deployment] = [r for r in rows if r["at"] > now - KEEP_S] + fresh
        if query == "signals" and (busy := [r["at"] for r in fresh if (number(r.get("arrivals_per_s")) or 0) > 0]):
            self._busy_at[deployment] = busy[-1]
        return True

    def watched(self) -> list[str]:
        """Deployments that somebody is looking at."""
        return [d for d in self.deployments if self._is_asked("signals", d)]

    def _is_asked(self, query: str, deployment: str) -> bool:
        return self.clock() - self._asked.get((query, deployment), 0) < WATCHED_S

    def newest(self, deployment: str) -> dict[str, Any] | None:
        """The newest row of signals that anyone looked at, with `at` in Unix seconds."""
        rows = self._rows.get(("signals", deployment))
        return rows[-1] if rows else None

    def choose(self, deployment: str | None) -> str | None:
        """The deployment asked for, if it exists, else the first."""
        return deployment if deployment in self.deployments else self.deployments[0] if self.deployments else None

    async def answer(
        self, deployment: str | None, range_s: int, theme: str, after: int | None, *, points: bool = True, page: Page = LIVE
    ) -> bytes:
        """The JSON body for one viewer: `after` is the `cursor` of its last answer (Unix ms), None for everything; or no points at all."""
        chosen = self.choose(deployment)
        if chosen:
            for query in dict.fromkeys(("signals", *page.latest)):
                unseen = not self._is_asked(query, chosen)
                self._asked[query, chosen] = self.clock()
                if unseen and self.down_since is None:
                    with contextlib.suppress(PoascopeError):  # the next tick says what is wrong
                        await self._advance(query, chosen, self.clock())
        key = (page.name, chosen, range_s, theme, after) if points else (page.name, chosen)
        task = self._answers.get(key)
        if task is None:
            task = self._answers[key] = asyncio.create_task(self._compose(page, chosen, range_s, theme, after, points))
        body = await asyncio.shield(task)  # others may wait for the same answer
        now = self.clock()
        due_ms = max(0.0, self.ticked_at + 1 - now) * 1e3
        return b'{"now":%.3f,"next_ms":%.0f,' % (now, due_ms) + body[1:]

    async def _compose(self, page: Page, deployment: str | None, range_s: int, theme: str, after: int | None, points: bool) -> bytes:
        body = self._state(page, deployment)
        if not points or deployment is None or self.down_since is not None:
            return payload.encode(body)
        step = payload.RANGES[range_s]
        start = max((after or 0) / 1e3, self.clock() - range_s)  # of a tab that slept, only what its range still shows
        bounds = {"deployment": deployment, "from": start}
        try:
            signals, decisions, *others = await asyncio.gather(
                self.collector.frame("signals", **bounds) if step == 1 else self.collector.frame("signals_binned", step_s=step, **bounds),
                self.collector.frame("decisions", **bounds | {"from": start - LATE_S}),
                *[self.collector.frame(query, step_s=step, **bounds) for query in page.queries],
            )
        except PoascopeError as error:
            if isinstance(error, Unreachable):
                self._lost(error, self.clock())
            else:
                log.warning("%s", error)  # what one viewer asked is no news for the others: the next tick tells how the collector is
            return payload.encode(self._state(page, deployment))
        frames = dict(zip(page.queries, others, strict=True))
        lines = None
        if (inflight := next((f for f in frames.values() if {"worker_id", "inflight"} <= set(f)), None)) is not None:
            # What was chosen for a whole figure holds for the points that follow it.
            held = (page.name, deployment, range_s)
            lines = self._lines[held] = choose(inflight, self._lines.get(held) if after is not None else None)
        return await asyncio.to_thread(self._draw, page, body, signals, decisions, frames, step, theme, after, lines)

    def _draw(
        self,
        page: Page,
        body: dict[str, Any],
        signals: pd.DataFrame,
        decisions: pd.DataFrame,
        frames: dict[str, pd.DataFrame],
        step: int,
        theme: str,
        after: int | None,
        lines: Lines | None,
    ) -> bytes:
        look = THEMES[theme]
        gapped = with_gaps(signals, step)
        drawn = payload.figures(page, Given(frames | {"signals": gapped, "decisions": decisions}, self.objectives, look, lines))
        body |= payload.parts(drawn, whole=after is None)
        body["shapes"] = payload.common(gapped, decisions, look)
        body["step_ms"] = step * 1000
        if len(signals):
            stamps = signals["ts"].to_numpy("datetime64[ms]").astype("int64")
            body["from"], body["cursor"] = int(stamps[0]), int(stamps[-1])
        if after is None and body["deployment"]:
            body["trends"] = trends(page, self._rows.get((page.latest[0], body["deployment"]), []), self.objectives)
        return payload.encode(body)

    async def effects(self, deployment: str) -> list[dict[str, Any]]:
        """Rows of `effects`, the newest changes last, no older than some seconds; what is complete is not asked for again."""
        held, asked_at = self._effects.get(deployment, ([], 0.0))
        if self.clock() - asked_at < EFFECTS_S:
            return held
        done = [row for row in held if row["complete"]]
        since = next((row["ts"] for row in held if not row["complete"]), None) or (
            held[-1]["ts"] + timedelta(microseconds=1) if held else None
        )
        fresh = await self.collector.table("effects", **{"deployment": deployment, "from": since and since.isoformat()})
        rows = [row for row in done if since is None or row["ts"] < since] + fresh.to_pylist()
        self._effects[deployment] = rows[-MAX_EFFECTS:], self.clock()
        return self._effects[deployment][0]

    def wait_for_effects(self, deployment: str) -> list[dict[str, Any]]:
        """The same for a Streamlit script, which runs on a thread. Raises PoascopeError, or TimeoutError."""
        if self._loop is None:
            raise PoascopeError("dash: not started yet - try again")
        return asyncio.run_coroutine_threadsafe(self.effects(deployment), self._loop).result(READ_S)

    async def log(self, deployment: str, since_s: float | None) -> bytes:
        """The audit log of one deployment as JSON, of the last `since_s` seconds (None: of all time), the newest `MAX_LOG` entries."""
        task = self._answers.get(("log", deployment, since_s))
        if task is None:
            task = self._answers["log", deployment, since_s] = asyncio.create_task(self._log(deployment, since_s))
        return await asyncio.shield(task)

    async def _log(self, deployment: str, since_s: float | None) -> bytes:
        now = self.clock()
        try:
            decisions, effects = await asyncio.gather(
                self.collector.table("decisions", **{"deployment": deployment, "from": since_s and now - since_s}), self.effects(deployment)
            )
        except PoascopeError as error:
            return payload.encode({"now": now, "error": str(error), "entries": [], "left_out": 0})
        left_out = max(0, decisions.num_rows - MAX_LOG)
        rows = decisions.slice(left_out).to_pylist()
        return payload.encode({"now": now, "error": "", "entries": entries(rows, effects), "left_out": left_out})

    def _routed_at(self, deployment: str | None, newest: dict[str, Any] | None) -> float | None:
        """When the newest request was routed, to the second: never later than the newest event. None when no row held shows one."""
        at = self._busy_at.get(deployment or "")
        if at is None or newest is None:
            return None
        if newest["at"] > at:
            at -= RATE_WINDOW_S - 1  # rates look back so far: in the last row that has one, the request is about to leave the window
        age_s = next((s["age_s"] for s in self.sources if s["name"] == f"events:{deployment}" and s.get("age_s") is not None), 0.0)
        return min(at, self.ticked_at - float(age_s))

    def _head(self, page: Page, deployment: str | None) -> Head:
        newest = self.newest(deployment or "")
        age_s = self.clock() - newest["at"] if newest else None
        head = page.head({query: self._rows.get((query, deployment or ""), []) for query in page.latest}, age_s, self.objectives)
        states = {s["name"]: s["state"] for s in self.sources}
        if age_s is not None and age_s > status.STALE_S and states.get("nats") == "ok" and states.get("events") == "absent":
            said = "No requests seen since the collector started."
            return replace(
                head, verdict=status.Verdict("unknown", said, "", "The numbers below are from before; the first request brings new ones.")
            )
        return head

    def _state(self, page: Page, deployment: str | None) -> dict[str, Any]:
        newest, head = self.newest(deployment or ""), self._head(page, deployment)
        return {
            "deployment": deployment,
            "deployments": self.deployments,
            "down_since": self.down_since,
            "source": self._source(deployment),
            "verdict": head.verdict,
            "tiles": head.tiles,
            "said": head.said,
            "sources": self.sources,
            "board": board(
                self.control.loops.get(deployment or ""), self.control.states.get(deployment or ""), self.clock(), self.control.problem
            ),
            "chain": chain(
                self.control.states.get(deployment or ""), newest, self.clock(), self.control.problem, self._routed_at(deployment, newest)
            ),
        }

    def _source(self, deployment: str | None) -> dict[str, str]:
        """Whether there is anything to look at: `ok`, `down` (the collector does not answer) or `empty` (it has heard nothing)."""
        if self.down_since is not None:
            silent = "Start it with poascope collect, or check api_host and api_port. This page reconnects by itself."
            return {
                "state": "down",
                "title": f"The collector at {self.collector.url} {'does not answer' if self.silent else 'answers with an error'}.",
                "todo": silent if self.silent else self.trouble,
                "detail": self.trouble,
            }
        if deployment is None:
            return {
                "state": "empty",
                "title": "No deployment heard yet.",
                "todo": "The collector is running and listens. What is missing:",
                "detail": "",
            }
        return {"state": "ok", "title": "", "todo": "", "detail": ""}
