"""The ends of asyncio tasks that hold a NATS client: they end although nats-py is looking for a server that is away."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

AGAIN_S = 0.2


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel them until they are gone, whatever they raise.

    Once is not enough: nats-py swallows a cancellation that comes while it connects, and so does asyncio.wait_for (until 3.12) one that
    comes with the answer; the task would go on for ever.
    """
    ending = list(tasks)
    while rest := [task for task in ending if not task.done()]:
        for task in rest:
            task.cancel()
        await asyncio.wait(rest, timeout=AGAIN_S)
    await asyncio.gather(*ending, return_exceptions=True)


def asked() -> bool:
    """Whether the current task was cancelled, also where what it awaited swallowed that.

    For loops that are tasks of a TaskGroup: that cancels them once, and passes no second cancellation on.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def run(main: Coroutine[Any, Any, None]) -> None:
    """asyncio.run, with `end` for what is left."""

    async def whole() -> None:
        try:
            await main
        finally:
            await end(asyncio.all_tasks() - {task for task in [asyncio.current_task()] if task})

    asyncio.run(whole())
