"""`run`, as asyncio's, for processes that hold a NATS client: they end although nats-py is looking for a server that is away."""

import asyncio
from collections.abc import Coroutine
from typing import Any

AGAIN_S = 0.2


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run to the end, and then cancel what is left until it is gone.

    asyncio.run cancels once and waits; nats-py swallows a cancellation that comes while it connects, and would go on for ever.
    """

    async def whole() -> None:
        try:
            await main
        finally:
            while rest := asyncio.all_tasks() - {asyncio.current_task()}:
                for task in rest:
                    task.cancel()
                await asyncio.wait(rest, timeout=AGAIN_S)

    asyncio.run(whole())
