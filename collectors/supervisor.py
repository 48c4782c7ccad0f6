"""Keeps the long-running tasks of the collector running: the one place that catches whatever they raise."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable

log = logging.getLogger("poascope.collect")

BACK_OFF_S = (1.0, 2.0, 5.0, 10.0, 30.0)
SETTLED_S = 60.0


class Supervisor:
    """Each task restarts alone, after a growing pause; `restarts` and `errors` are what /readyz and /metrics show of it."""

    def __init__(self, back_off_s: tuple[float, ...] = BACK_OFF_S) -> None:
        self._back_off_s = back_off_s
        self.restarts: Counter[str] = Counter()
        self.errors: dict[str, str] = {}

    async def keep(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run until it returns, or is cancelled."""
        in_a_row = 0
        while True:
            began = time.monotonic()
            try:
                await run()
                return
            except Exception as error:
                log.exception("%s: ended, starting it again", name)
                self.restarts[name] += 1
                self.errors[name] = f"{type(error).__name__}: {error}"
                in_a_row = 0 if time.monotonic() - began > SETTLED_S else in_a_row + 1
            await asyncio.sleep(self._back_off_s[min(in_a_row, len(self._back_off_s)) - 1 if in_a_row else 0])
