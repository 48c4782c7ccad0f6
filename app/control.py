"""What the bucket says, read once a second for all viewers over one connection, and what the controller says at each step."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from controller import bus
from controller.protocol import Loop
from poascope.errors import PoascopeError
from poascope.settings import Settings

log = logging.getLogger("poascope.dash")

MAX_LOOPS = 1000  # kept also of deployments that nobody looks at, so that who opens the page need not wait for the next step


class Control:
    """`states` by deployment, empty while NATS does not answer; then `problem` says so.

    `loops`: the newest that was heard of each deployment; its `at` tells its age.
    """

    def __init__(self, settings: Settings) -> None:
        self.nats = settings.nats
        self.states: dict[str, bus.State] = {}
        self.loops: dict[str, Loop] = {}
        self.problem = ""

    async def run(self, deployments: Callable[[], Iterable[str]]) -> None:
        """Read for ever. A connection that breaks is made anew, so that a server which comes back is found within a second or two."""
        while True:
            try:
                async with bus.connect(self.nats) as connection:
                    await connection.hear_loops(self._looped)
                    while True:
                        self.states = {d: await connection.state(d) for d in deployments()}
                        if len(self.loops) > MAX_LOOPS:
                            self.loops = {d: loop for d, loop in self.loops.items() if d in self.states}
                        self.problem = ""
                        await asyncio.sleep(1)
            except PoascopeError as error:
                self._lost(str(error))
            except Exception as error:
                log.exception("dash: reading the bucket failed")
                self._lost(f"NATS: {self.nats.shown} - {error}")
            await asyncio.sleep(1)

    def _looped(self, deployment: str, loop: Loop) -> None:
        self.loops[deployment] = loop

    def _lost(self, problem: str) -> None:
        self.states, self.problem = {}, problem
