import asyncio
import logging

import pytest

from collectors.supervisor import Supervisor


async def test_a_task_that_dies_is_started_again_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a task raises is logged, counted and followed by a restart, and the tasks beside it never notice."""
    caplog.set_level(logging.CRITICAL)
    supervisor = Supervisor(back_off_s=(0.0,))
    starts, ticks = 0, 0

    async def fragile() -> None:
        nonlocal starts
        starts += 1
        if starts < 4:
            raise RuntimeError(f"start {starts}")

    async def steady() -> None:
        nonlocal ticks
        while starts < 4:
            ticks += 1
            await asyncio.sleep(0)

    await asyncio.gather(supervisor.keep("fragile", fragile), supervisor.keep("steady", steady))
    assert (starts, supervisor.restarts, supervisor.errors) == (4, {"fragile": 3}, {"fragile": "RuntimeError: start 3"})
    assert ticks > 0


async def test_cancelling_ends_it() -> None:
    """Shutting down is not a failure: a cancelled task is not started again."""
    supervisor = Supervisor()
    task = asyncio.create_task(supervisor.keep("x", lambda: asyncio.sleep(60)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (task.cancelled(), supervisor.restarts.total()) == (True, 0)
