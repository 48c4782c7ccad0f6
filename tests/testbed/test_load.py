import asyncio
import io
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from poascope.errors import Unreachable
from testbed.load import Load, discover
from testbed.prompts import Shape
from testbed.scenario import Phase, Scenario

WORKER = 16882743587675780001


class Server:
    """Speaks Dynamo's stream; `faults` are what becomes of the next requests."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.most, self.open, self.answered = 0, 0, 0
        self.five_answered = asyncio.Event()

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not body.get("stream"):
            return web.json_response({"usage": {"prompt_tokens": 7}})
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "503":
            return web.Response(status=503, text="no workers")
        self.open += 1
        self.most = max(self.most, self.open)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for i in range(4):
            await asyncio.sleep(0.005)
            nvext = {"worker_id": {"prefill_worker_id": WORKER, "decode_worker_id": WORKER - 1}}
            event = {"id": "chatcmpl-x", "choices": [{"index": 0, "delta": {}}], "nvext": nvext}
            await response.write(f"data: {json.dumps(event, separators=(',', ':'))}\n\n".encode())
            if fault == "cut" and i == 1:
                assert request.transport
                request.transport.close()
                self.open -= 1
                return response
        self.open -= 1
        self.answered += 1
        if self.answered == 5:
            self.five_answered.set()
        if fault != "undone":
            await response.write(b"data: [DONE]\n\n")
        return response

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    server, app = Server(), web.Application()
    app.router.add_post("/v1/chat/completions", server.chat)
    app.router.add_get("/v1/models", server.models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield server, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def _load(url: str, out: io.BytesIO | None, *phases: Phase) -> Load:
    return Load(url, "m", Scenario("x", "", phases), Shape(words=8, output_tokens=4), 1, out, lambda load: None)


async def test_every_request_is_finished_or_failed(server: tuple[Server, str]) -> None:
    """A refusal, a cut stream and one without its end are counted by kind, retried after a pause, and written out."""
    fake, url = server
    fake.faults = ["503", "cut", "undone"]
    out = io.BytesIO()
    load = _load(url, out, Phase(1.5, users=1))
    await load.run()
    tally = load.tallies[0]
    assert tally.errors == {"HTTP 503: no workers": 1, "cut": 2}
    assert tally.sent == tally.finished + 3
    assert tally.finished > 0
    assert len(tally.ttft_s) == len(tally.e2e_s) == tally.finished
    assert len(tally.itl_s) == 3 * tally.finished
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(lines) == tally.sent
    assert (lines[0]["status"], lines[0]["first"], lines[0]["chunks"]) == (503, None, 0)
    assert (lines[1]["error"], lines[1]["chunks"]) == ("cut", 2)
    good = next(line for line in lines if line["error"] is None)
    assert good["sent"] < good["first"] < good["last"]
    assert good["id"] == "chatcmpl-x"
    assert good["nvext"]["worker_id"] == {"prefill_worker_id": str(WORKER), "decode_worker_id": str(WORKER - 1)}


async def test_closed_loop_keeps_to_its_users(server: tuple[Server, str]) -> None:
    """Never more requests in flight than users, and a phase with fewer lets the others finish."""
    fake, url = server
    load = _load(url, None, Phase(0.3, users=6), Phase(0.3, users=2), Phase(0.2, users=0))
    await load.run()
    assert fake.most == 6
    assert all(tally.finished == tally.sent for tally in load.tallies)
    assert load.tallies[1].sent > 0
    assert load.tallies[2].sent == 0
    assert load.in_flight == 0


async def test_open_loop_does_not_wait_for_answers(server: tuple[Server, str]) -> None:
    """Arrivals come at their own rate, also while earlier requests are open, and all are accounted for."""
    fake, url = server
    load = _load(url, None, Phase(0.5, rate=400))
    await load.run()
    tally = load.tallies[0]
    assert 120 < tally.sent < 280
    assert tally.finished == tally.sent
    assert fake.most > 1


async def test_interrupted_run_keeps_what_it_measured(server: tuple[Server, str]) -> None:
    """Cancelling ends at once; requests under way are counted as interrupted, not lost."""
    fake, url = server
    load = _load(url, None, Phase(60, users=3))
    task = asyncio.create_task(load.run())
    await asyncio.wait_for(fake.five_answered.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    tally = load.tallies[0]
    assert tally.sent == tally.finished + tally.errors.total()
    assert set(tally.errors) == {"interrupted"}


async def test_a_refused_connection_is_counted(server: tuple[Server, str]) -> None:
    """With nobody listening every attempt is a failure of that kind, and attempts back off."""
    load = _load("http://127.0.0.1:1", None, Phase(0.6, users=1))
    await load.run()
    assert load.tallies[0].errors == {"ClientConnectorError": load.tallies[0].sent}
    assert 1 < load.tallies[0].sent < 6


async def test_discovery_learns_model_and_template(server: tuple[Server, str]) -> None:
    """The model's name and the tokens that its chat template adds come from the server; no server is Unreachable."""
    assert await discover(server[1]) == ("m", 6)
    with pytest.raises(Unreachable, match="no completed chat request"):
        await discover("http://127.0.0.1:1")
