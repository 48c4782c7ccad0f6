import http.server
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from testbed.gateway import HANDLER_ID, caddy_config, read_access_log
from tests.conftest import free_port, wait_for_port


class Upstream(http.server.BaseHTTPRequestHandler):
    """Says which port it is, and the request id it was given; /cut promises more than it sends."""

    protocol_version = "HTTP/1.1"
    served: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        body = f"{self.server.server_address[1]} {self.headers['X-Dynamo-Request-Id']}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + (100 if self.path == "/cut" else 0)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def upstreams() -> Iterator[list[int]]:
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream) for _ in range(2)]
    threads = [threading.Thread(target=server.serve_forever) for server in servers]
    for thread in threads:
        thread.start()
    yield [server.server_address[1] for server in servers]
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("by", ["file", "admin"])
def test_new_requests_follow_the_upstreams_and_the_log_says_where_each_went(by: str, upstreams: list[int], tmp_path: Path) -> None:
    """Rewriting the file, or PATCH on the handler's id, moves new requests; the log has upstream and request id, also of a cut answer."""
    port, admin = free_port(), free_port()
    log, config, file = tmp_path / "access.jsonl", tmp_path / "caddy.json", tmp_path / "upstream"
    first = f"127.0.0.1:{upstreams[0]}"
    file.write_text(first)
    made = caddy_config(port=port, admin_port=admin, upstream=file if by == "file" else first, access_log=log)
    config.write_text(json.dumps(made))
    program = Path(sys.executable).parent / "caddy"
    caddy = subprocess.Popen([program, "run", "--config", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(port)
        # Caddy drops idle connections when its configuration changes, so each request brings its own.
        headers = {"Connection": "close"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, trust_env=False) as client:
            answers = [client.get("/first").text.split()]
            second = f"127.0.0.1:{upstreams[1]}"
            if by == "file":
                file.write_text(second)
            else:
                moved = httpx.patch(f"http://127.0.0.1:{admin}/id/{HANDLER_ID}/upstreams", json=[{"dial": second}], trust_env=False)
                assert moved.status_code == 200
            answers.append(client.get("/second").text.split())
            with pytest.raises(httpx.RemoteProtocolError):
                client.get("/cut")
        deadline = time.monotonic() + 10
        while len(lines := list(read_access_log(log))) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        caddy.terminate()
        caddy.wait()
    assert [answer[0] for answer in answers] == [str(p) for p in upstreams]
    assert [line.upstream for line in lines] == [f"127.0.0.1:{p}" for p in (upstreams[0], upstreams[1], upstreams[1])]
    assert [line.request_id for line in lines[:2]] == [answer[1] for answer in answers]
    assert [line.path for line in lines] == ["/first", "/second", "/cut"]
    assert lines[2].duration_s is None
    assert all(line.status == 200 and line.duration_s for line in lines[:2])
