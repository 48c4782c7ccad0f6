import asyncio

import pytest

from poascope.ending import run


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
