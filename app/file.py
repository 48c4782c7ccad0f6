"""A closed store in the collector's place: the same named queries, nothing live. What `poascope dash FILE` shows."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa

from app.charts.frame import framed
from poascope.errors import PoascopeError
from queries import named
from queries.bundle import open_bundle

AFTER_S = 0.2  # past the last row, where its second is over and none is missed


class File:
    """Rows of a bundle or a closed store. `begin`, `end`: Unix seconds of what it holds. Raises PoascopeError when it cannot be trusted."""

    def __init__(self, path: Path) -> None:
        self.url = path.name
        self._store, self.manifest = open_bundle(path)
        with self._store.cursor() as cursor:
            spans = named.deployments(cursor).to_pylist()
        if not spans:
            self._store.close()
            raise PoascopeError(f"bundle: {path} - holds no signals and no requests, there is nothing to show")
        self.begin: float = min(row["first_at"] for row in spans).replace(tzinfo=UTC).timestamp()
        self.end: float = max(row["last_at"] for row in spans).replace(tzinfo=UTC).timestamp()
        # What has the life cycle of an HTTP client has its end here.
        self.client = SimpleNamespace(aclose=self._close)

    @property
    def said(self) -> str:
        """One sentence for the top of every page."""
        begin, end = (datetime.fromtimestamp(at, UTC) for at in (self.begin, self.end))
        until = f"{end:%H:%M:%S}" if begin.date() == end.date() else f"{end:%Y-%m-%d %H:%M:%S}"
        proof = "checksums verified" if self.manifest else "a store, without checksums"
        return f"Replay of a file: {self.url}, {begin:%Y-%m-%d %H:%M:%S} to {until} UTC ({proof}). Nothing here is live."

    def clock(self) -> float:
        """Time stands at the end of the file."""
        return self.end + AFTER_S

    async def table(self, name: str, **params: Any) -> pa.Table:
        """Rows of a named query, as the read API gives them. Raises PoascopeError."""
        return await asyncio.to_thread(self._read, name, {k: v for k, v in params.items() if v is not None})

    async def frame(self, name: str, **params: Any) -> pd.DataFrame:
        """The same as a frame, u64 as text."""
        return framed(await self.table(name, **params))

    async def ready(self) -> dict[str, Any]:
        source = {"name": "file", "state": "ok", "age_s": None, "detail": self.said}
        return {"ready": True, "now": self.clock(), "sources": [source], "counters": {}}

    def _read(self, name: str, params: dict[str, Any]) -> pa.Table:
        with self._store.cursor() as cursor:
            return named.read(cursor, name, params).read_all()

    async def _close(self) -> None:
        self._store.close()


class NoControl:
    """What the bucket says where there is none: nothing is in force, and why is on the page."""

    def __init__(self) -> None:
        self.states: dict[str, Any] = {}
        self.loops: dict[str, Any] = {}
        self.problem = "a file is shown: there is nothing to steer"

    async def run(self, deployments: Callable[[], Any]) -> None:
        await asyncio.Event().wait()
