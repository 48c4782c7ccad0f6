import asyncio

import pytest

from poascope.ending import asked, end, run


def test_a_task_that_swallows_a_cancellation_ends_all_the_same() -> None:
    """What is left is cancelled again until it is gone, and only then is the end reached."""
    swallowed = []

    async def stubborn() -> None:
        while len(swallowed) < 2:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError as error:
                swallowed.append(error)
        await asyncio.sleep(60)

    async def main() -> None:
        main.left = asyncio.create_task(stubborn())  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    run(main())
    assert len(swallowed) == 2 and main.left.cancelled()  # type: ignore[attr-defined]


def test_an_error_is_the_callers() -> None:
    """What main raises comes out, after the rest has ended."""

    async def main() -> None:
        asyncio.get_running_loop().create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run(main())


def test_a_task_of_a_group_ends_although_its_cancellation_was_swallowed() -> None:
    """A group passes a cancellation on once; a loop that asks ends even where that one was lost."""

    async def deaf() -> None:
        while not asked():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(deaf())

    async def main() -> None:
        task = asyncio.create_task(group())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await end([task])

    run(main())
