"""Every way to write without the right to, against the whole line: none applies, and each is in the log and in the audit trail."""

import asyncio
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import nats
import pytest
from playwright.sync_api import Page, WebSocketRoute, expect
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import connect

from controller import bus
from controller.protocol import Intent
from tests.collectors.playback import play
from tests.conftest import CAPTURES, NatsServer, sign_in
from tests.e2e.conftest import Line, eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """collect, control and dash on a NATS server of their own, where a recorded cluster was heard for a moment."""
    folder = tmp_path_factory.mktemp("refused")
    server, config = NatsServer(folder / "jetstream"), folder / "poascope.toml"
    server.start()
    config.write_text(f'nats_url = "{server.url}"\n')
    cluster: Any = SimpleNamespace(files=SimpleNamespace(config=config), state=SimpleNamespace(nats_url=server.url))
    line = Line(cluster, folder)
    for name in ("collect", "control", "dash"):
        line.start(name)

    def heard() -> list[dict[str, Any]]:
        asyncio.run(play(server.url, CAPTURES / "cap-0.9.0-1p2d.jsonl.gz", 1.0))
        return line.rows("deployments")

    try:
        eventually(lambda: httpx.get(f"{line.api}/healthz").status_code == 200, 120)
        eventually(heard, 120)
        eventually(lambda: httpx.get(f"{line.dash}/_stcore/health").status_code == 200, 120)
        yield line
    finally:
        line.close()
        server.kill()


def told(line: Line, since: float, *words: str) -> list[dict[str, Any]]:
    """Refusals of the audit trail whose reason has all the words."""
    rows = line.rows("decisions", **{"from": since - 1})
    return [row for row in rows if row["kind"] == "refusal" and all(word in (row["why"] or "") for word in words)]


def logged(line: Line, process: str, *words: str) -> bool:
    text = (line.folder / f"{process}.log").read_text(errors="replace").splitlines()
    return any("refus" in row.lower() and all(word in row for word in words) for row in text)


def stored(line: Line) -> bus.Stored[Intent]:
    with ThreadPoolExecutor(1) as thread:  # playwright may have the loop of this one
        return thread.submit(bus.call, line.cluster.state.nats_url, lambda b: b.intent("dynamo")).result()


def put(line: Line, **changes: Any) -> bus.Submitted:
    """An intent by our own writer, which follows what is there."""
    fields = {"mode": "freeze", "reason": "e2e", "operator": "ann", "idempotency_key": str(time.time_ns()), "expires_at": time.time() + 600}
    wanted = Intent(**{"expected_revision": stored(line).revision, **fields, **changes})
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(bus.call, line.cluster.state.nats_url, lambda b: b.put_intent("dynamo", wanted, time.time())).result()


async def raw(line: Line, payload: bytes) -> None:
    """Write to the bucket past every writer of ours, as whoever may reach an open NATS server can."""
    client = await nats.connect(line.cluster.state.nats_url)
    await client.jetstream().publish("$KV.poascope.dynamo.intent", payload)
    await client.close()


def test_wrong_tokens_and_then_a_lock(line: Line) -> None:
    """A wrong token is refused and told; after a few, right and wrong ones alike wait, longer each time."""
    since = time.time()
    answers = [httpx.post(f"{line.dash}/operator", data={"token": f"ann:{n}", "deployment": "dynamo"}) for n in range(5)]
    assert [answer.status_code for answer in answers][:3] == [401] * 3
    assert 429 in {answer.status_code for answer in answers}
    assert not any(answer.cookies for answer in answers)
    eventually(lambda: told(line, since, "wrong operator token", "127.0.0.1"))
    assert logged(line, "dash", "wrong operator token")

    def right() -> bool:
        return httpx.post(f"{line.dash}/operator", data={"token": line.token}).status_code == 303

    assert eventually(right)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_the_apis_take_nothing(line: Line, method: str) -> None:
    """The read API and the page's own routes only answer questions."""
    since = time.time()
    for base, path, process in ((line.api, "/query/decisions", "collect"), (line.dash, "/live", "dash")):
        assert httpx.request(method, f"{base}{path}", json={"mode": "auto"}).status_code == 405
        eventually(lambda path=path: told(line, since, f"{method} {path}"))
        assert logged(line, process, f"{method} {path}")


def test_a_forged_sign_in_from_another_site(line: Line) -> None:
    """A form on another site cannot sign anybody in or out, right token or not."""
    answer = httpx.post(f"{line.dash}/operator", data={"token": line.token}, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403 and not answer.cookies


def test_what_is_not_admissible_in_the_bucket(line: Line) -> None:
    """Whoever writes past our writers is refused by the controller: without an end, and the same intent again."""
    since, before = time.time(), put(line)
    endless = Intent(mode="manual", tau=5, omega=0, reason="x", operator="eve", idempotency_key="raw", expected_revision=before.revision)
    asyncio.run(raw(line, msgspec.json.encode(endless)))
    eventually(lambda: [row for row in told(line, since, "expires_at") if row["actor"] == "eve"])
    asyncio.run(raw(line, msgspec.json.encode(before.asked)))
    eventually(lambda: told(line, since, "expected_revision"))
    assert logged(line, "control", "eve")
    assert not [row for row in line.rows("decisions", **{"from": since}) if row["kind"] == "target" and row["tau"] == 5]
    put(line, mode="auto", expires_at=None)


def test_a_replayed_intent_is_one(line: Line) -> None:
    """The same key again writes nothing; an old revision is refused, and says who came first."""
    first = put(line, reason="once")
    again = put(line, idempotency_key=first.asked.idempotency_key, expires_at=first.asked.expires_at)
    assert (again.revision, again.first) == (first.revision, False)
    since = time.time()
    with pytest.raises(bus.Refused, match="overtaken by ann"):
        put(line, operator="bob", expected_revision=first.revision - 1)
    eventually(lambda: [row for row in told(line, since, "overtaken by ann") if row["actor"] == "bob"])
    assert stored(line).revision == first.revision
    put(line, mode="auto", expires_at=None)


def test_a_stolen_viewer_session_cannot_press(line: Line, page: Page) -> None:
    """With the id of an operator's session, and the very bytes of a press that it had not sent yet, but not the operator's cookie."""
    put(line, reason="to be cancelled")
    since, revision = time.time(), stored(line).revision
    session, pressed, holding = [], list[bytes](), list[bool]()

    def between(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def down(message: str | bytes) -> None:
            if isinstance(message, bytes):
                said = ForwardMsg.FromString(message)
                if said.WhichOneof("type") == "new_session":
                    session.append(said.new_session.initialize.session_id)
            socket.send(message)

        def up(message: str | bytes) -> None:
            if holding and isinstance(message, bytes):
                pressed.append(message)
            else:
                server.send(message)

        socket.on_message(up)
        server.on_message(down)

    page.route_web_socket(re.compile("_stcore/stream"), between)
    sign_in(page, line.dash, line.token)
    page.goto(f"{line.dash}/control")
    cancel = page.get_by_role("button", name="Cancel override")
    expect(cancel).to_be_visible(timeout=60_000)
    holding.append(True)
    cancel.click()
    eventually(lambda: page.wait_for_timeout(100) or pressed)
    page.close()

    def stolen() -> Any:
        origin: Any = line.dash
        protocols: Any = ["streamlit", "none", session[-1]]
        with connect(f"{line.dash.replace('http', 'ws')}/_stcore/stream", subprotocols=protocols, origin=origin) as socket:
            for message in pressed:
                socket.send(message)
            deadline = time.monotonic() + 15
            while time.monotonic() < deadline:
                if rows := told(line, since, "not signed in as an operator"):
                    return rows
                time.sleep(0.3)
        return None

    assert eventually(stolen, 90)
    assert logged(line, "dash", "not signed in as an operator")
    assert stored(line).revision == revision
    put(line, mode="auto", expires_at=None)
