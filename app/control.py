"""What the bucket says, read once a second for all viewers over one connection."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from controller import bus
from poascope.addresses import without_password
from poascope.errors import PoascopeError
from poascope.settings import Settings

log = logging.getLogger("poascope.dash")


class Control:
    """`states` by deployment, empty while NATS does not answer; then `problem` says so."""

    def __init__(self, settings: Settings) -> None:
        self.url, self.credentials = settings.nats_url, settings.nats_credentials
        self.states: dict[str, bus.State] = {}
        self.problem = ""

    async def run(self, deployments: Callable[[], Iterable[str]]) -> None:
        """Read for ever. A connection that breaks is made anew, so that a server which comes back is found within a second or two."""
        while True:
            try:
                async with bus.connect(self.url, self.credentials) as connection:
                    while True:
                        self.states = {d: await connection.state(d) for d in deployments()}
                        self.problem = ""
                        await asyncio.sleep(1)
            except PoascopeError as error:
                self._lost(str(error))
            except Exception as error:
                log.exception("dash: reading the bucket failed")
                self._lost(f"NATS: {without_password(self.url)} - {error}")
            await asyncio.sleep(1)

    def _lost(self, problem: str) -> None:
        self.states, self.problem = {}, problem
