"""A recording of a real cluster, said again on a NATS server, as fast as it is taken or at its own pace."""

import asyncio
import base64
import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client


def lines(capture: Path, src: str) -> Iterator[dict[str, Any]]:
    with gzip.open(capture, "rt") as file:
        for text in file:
            line = json.loads(text)
            if line["src"] == src:
                yield line


async def play(where: str | Client, capture: Path, seconds: float, from_s: float = 0.0) -> int:
    """Publish what was heard in `seconds` of the recording from `from_s` on, at its own pace; returns how many messages."""
    client = await nats.connect(where) if isinstance(where, str) else where
    began, start, count = time.monotonic(), None, 0
    for line in lines(capture, "nats"):
        start = line["t"] + from_s if start is None else start
        if line["t"] < start:
            continue
        if line["t"] > start + seconds:
            break
        wait = line["t"] - start - (time.monotonic() - began)
        if wait > 0.005:
            await asyncio.sleep(wait)
        await client.publish(line["subject"], base64.b64decode(line["data"]))
        count += 1
    await client.flush()
    if isinstance(where, str):
        await client.close()
    return count
