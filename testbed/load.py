"""The load generator: closed and open loops of streamed chat requests, timed by the client's own clock.

One core reads 128 streams at 50 tokens/s each, so a chunk costs a byte search and a clock reading; only the first and the last
event of an answer are parsed.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, BinaryIO

import aiohttp
import msgspec

from poascope.errors import Unreachable
from testbed.prompts import Shape, prompt, traced
from testbed.report import Tally
from testbed.scenario import Scenario
from testbed.trace import Arrival

MAX_IN_FLIGHT = 2000
BACKOFF_S, MAX_BACKOFF_S = 0.25, 5.0
TOKEN, DONE = b'"choices":[{', b"data: [DONE]"


class Outcome(msgspec.Struct, frozen=True):
    """One request; a line of the output file. Times are Unix seconds, None where it did not come to that."""

    id: str | None
    phase: int
    status: int | None
    error: str | None
    sent: float
    first: float | None
    last: float | None
    chunks: int
    nvext: Any = None


class Load:
    """One run. `run` returns when all phases are over and every answer has ended, or at once when cancelled; tallies stay readable."""

    def __init__(
        self,
        base_url: str,
        model: str,
        scenario: Scenario,
        shape: Shape,
        seed: int,
        out: BinaryIO | None,
        tell: Callable[["Load"], None],
        *,
        overhead: int = 0,
        block_tokens: int = 512,
    ) -> None:
        """overhead: tokens that the chat template adds; block_tokens: how many one hash id of a trace stands for."""
        self.overhead, self.block_tokens = overhead, block_tokens
        self.url, self.model, self.scenario, self.shape = f"{base_url}/v1/chat/completions", model, scenario, shape
        self.rng, self.out, self.tell = random.Random(seed), out, tell
        self.tallies = [Tally(phase) for phase in scenario.phases]
        self.phase, self.in_flight = 0, 0
        self._users, self._tasks = 0, set[asyncio.Task[None]]()

    @property
    def tally(self) -> Tally:
        return self.tallies[self.phase]

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, connect=10, sock_read=120)
        # A connection for each request: Caddy drops reused ones when its upstreams change, and that would count as a failure.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            ticker = asyncio.create_task(self._tick())
            try:
                for number, phase in enumerate(self.scenario.phases):
                    self.phase = number
                    began = time.monotonic()
                    try:
                        if phase.arrivals:
                            await self._replay(session, phase.arrivals, phase.seconds)
                        elif phase.rate is not None:
                            await self._open(session, phase.rate, phase.seconds)
                        else:
                            await self._closed(session, phase.users or 0, phase.seconds)
                    finally:
                        self.tally.seconds = time.monotonic() - began
                self._users = 0
                while self._tasks:
                    await asyncio.wait(self._tasks)
            finally:
                ticker.cancel()
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            self.tell(self)
            await asyncio.sleep(0.25)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _closed(self, session: aiohttp.ClientSession, users: int, seconds: float) -> None:
        for user in range(self._users, users):
            self._keep(asyncio.create_task(self._user(session, user)))
        self._users = users
        await asyncio.sleep(seconds)

    async def _user(self, session: aiohttp.ClientSession, user: int) -> None:
        failures = 0
        while user < self._users:
            if await self._request(session):
                failures = 0
            else:
                await asyncio.sleep(min(MAX_BACKOFF_S, BACKOFF_S * 2**failures) * self.rng.uniform(0.5, 1))
                failures += 1

    async def _open(self, session: aiohttp.ClientSession, rate: float, seconds: float) -> None:
        self._users = 0
        now = asyncio.get_running_loop().time
        due, end = now(), now() + seconds
        while (due := due + self.rng.expovariate(rate)) < end:
            await asyncio.sleep(due - now())
            if self.in_flight >= MAX_IN_FLIGHT:
                self.tally.sent += 1
                self.tally.errors[f"not sent: {MAX_IN_FLIGHT} in flight"] += 1
            else:
                self._keep(asyncio.create_task(self._fire(session)))
        await asyncio.sleep(max(0.0, end - now()))

    async def _replay(self, session: aiohttp.ClientSession, arrivals: Sequence[Arrival], seconds: float) -> None:
        """Each request when the trace says, whatever became of those before it."""
        self._users = 0
        now = asyncio.get_running_loop().time
        began = now()
        for arrival in arrivals:
            await asyncio.sleep(max(0.0, began + arrival.at_s - now()))
            if self.in_flight >= MAX_IN_FLIGHT:
                self.tally.sent += 1
                self.tally.errors[f"not sent: {MAX_IN_FLIGHT} in flight"] += 1
            else:
                self._keep(asyncio.create_task(self._fire(session, arrival)))
        await asyncio.sleep(max(0.0, began + seconds - now()))

    async def _fire(self, session: aiohttp.ClientSession, arrival: Arrival | None = None) -> None:
        await self._request(session, arrival)

    async def _request(self, session: aiohttp.ClientSession, arrival: Arrival | None = None) -> bool:
        """Send one and read it to the end. True when it came whole; a failure is counted in its phase."""
        number, tally = self.phase, self.tally
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": self._prompt(arrival)}],
            "max_tokens": arrival.output_tokens if arrival else self.shape.output_tokens,
            "stream": True,
            "ignore_eos": True,
            "temperature": 0,
            "nvext": {"extra_fields": ["worker_id", "timing"]},
        }
        tally.sent += 1
        self.in_flight += 1
        sent, began = time.time(), time.perf_counter()
        status: int | None = None
        error: str | None = "interrupted"
        marks: list[float] = []
        head, tail = b"", b""
        try:
            async with session.post(self.url, json=body) as response:
                status = response.status
                if status != 200:
                    text = (await response.content.read(300)).decode(errors="replace")
                    error = f"HTTP {status}: {text.strip()[:120]}"
                else:
                    async for chunk in response.content.iter_any():
                        if tokens := chunk.count(TOKEN):
                            marks += [time.perf_counter()] * tokens
                            head = head or chunk
                        # An event may be split between two reads; the last three events are well under this.
                        tail = (tail + chunk)[-4096:]
                    error = None if DONE in tail and marks else "cut"
        except (aiohttp.ClientError, TimeoutError) as failure:
            error = "cut" if marks else type(failure).__name__
        finally:
            self.in_flight -= 1
            at = [sent + mark - began for mark in (marks[0], marks[-1])] if marks else [None, None]
            self._record(number, Outcome(_id(head), number + 1, status, error, sent, at[0], at[1], len(marks), _nvext(tail)))
            if error:
                tally.errors[error] += 1
            else:
                tally.finished += 1
                tally.ttft_s.append(marks[0] - began)
                tally.e2e_s.append(marks[-1] - began)
                tally.itl_s += [after - before for before, after in pairwise(marks)]
        return error is None

    def _prompt(self, arrival: Arrival | None) -> str:
        if arrival is None:
            return prompt(self.shape, self.rng)
        tokens = max(1, arrival.input_tokens - self.overhead)
        return traced(tokens, arrival.blocks, self.block_tokens, self.shape.seed, self.rng)

    def _record(self, number: int, outcome: Outcome) -> None:
        if self.out:
            self.out.write(msgspec.json.encode(outcome) + b"\n")


def _events(data: bytes) -> list[dict[str, Any]]:
    """The whole events in a piece of a stream; its ends may be cut."""
    events = []
    for line in data.split(b"\n"):
        if line.startswith(b"data: {"):
            with contextlib.suppress(msgspec.DecodeError):
                events.append(msgspec.json.decode(line[6:], type=dict[str, Any]))
    return events


def _id(head: bytes) -> str | None:
    return next((str(event["id"]) for event in _events(head) if "id" in event), None)


def _nvext(tail: bytes) -> Any:
    """The last one: it has the timing. Worker ids become text, for they do not fit a float."""
    found = next((event["nvext"] for event in reversed(_events(tail)) if event.get("nvext")), None)
    if isinstance(found, dict) and isinstance(found.get("worker_id"), dict):
        workers = found["worker_id"]
        return found | {"worker_id": {k: str(v) if k.endswith("worker_id") and v is not None else v for k, v in workers.items()}}
    return found


async def discover(base_url: str) -> tuple[str, int]:
    """The served model, and how many tokens its chat template adds to a prompt. Raises Unreachable."""
    timeout = aiohttp.ClientTimeout(total=15)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            async with session.get(f"{base_url}/v1/models") as response:
                models = (await response.json())["data"]
            if not models:
                raise Unreachable(f"load: {base_url} - serves no model yet")
            body = {"model": models[0]["id"], "messages": [{"role": "user", "content": "amber"}], "max_tokens": 1}
            async with session.post(f"{base_url}/v1/chat/completions", json=body) as response:
                answer = await response.json()
            return str(models[0]["id"]), max(0, int(answer["usage"]["prompt_tokens"]) - 1)
    except (aiohttp.ClientError, TimeoutError, KeyError, TypeError, ValueError) as error:
        raise Unreachable(f"load: {base_url} - no completed chat request there ({type(error).__name__}: {error})") from error
