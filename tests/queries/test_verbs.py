import json
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
import uvicorn
from typer.testing import CliRunner, Result

from collectors.api import application, listen
from poascope.cli import cli
from store import Store

IDS = [16882743587675780000, 16882743587675780001, 2**64 - 1]


def invoke(*args: object) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in args])


def fill(store: Store) -> None:
    n = len(IDS)
    ts = pa.array([i * 1_000_000 for i in range(n)], pa.timestamp("us"))
    common = {"ts": ts, "deployment": ["d"] * n, "component": ["c"] * n}
    store.append("workers", pa.table({**common, "source": ["events"] * n, "worker_id": pa.array(IDS, pa.uint64())}))
    hashes = pa.array([[i, 1] for i in IDS], pa.list_(pa.uint64()))
    store.append(
        "kv_events",
        pa.table(
            {
                **common,
                "worker_id": pa.array(IDS, pa.uint64()),
                "event_id": pa.array(IDS, pa.uint64()),
                "kind": ["stored"] * n,
                "block_hashes": hashes,
            }
        ),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "s.duckdb") as store:
        fill(store)
    return tmp_path / "s.duckdb"


@pytest.fixture
def url() -> Iterator[str]:
    with Store.open(":memory:") as store, listen("127.0.0.1", 0, "") as listener:
        fill(store)
        server = uvicorn.Server(uvicorn.Config(application(store, dict, dict, "secret"), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def test_a_file_and_a_running_collector_print_the_same_bytes(path: Path, url: str) -> None:
    """csv and json of equal rows are equal to the byte, whether read from a closed file or over HTTP, with every digit of an id."""
    for form in ("csv", "json"):
        by_file = invoke("query", "workers", "--store", path, "--format", form, "--param", "from=1")
        by_url = invoke("query", "workers", "--url", url, "--api-token", "secret", "--format", form, "--param", "from=1")
        assert (by_file.exit_code, by_file.stdout) == (0, by_url.stdout)
        assert str(IDS[1]) in by_file.stdout
        assert str(IDS[0]) not in by_file.stdout


@pytest.mark.parametrize("live", [False, True])
def test_a_bundle_holds_the_slice_and_proves_itself(
    path: Path, url: str, tmp_path: Path, live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export opens like a store and holds the slice alone; its checksums are those of the queries' output; no secret is in it."""
    monkeypatch.setenv("NATS_SERVER", "nats://me:secret@nats:4222")
    monkeypatch.setenv("POASCOPE_SCRAPE", "http://frontend:8000,http://me:secret@worker:8081")
    out = tmp_path / "bundle.duckdb"
    source = ("--url", url) if live else ("--store", path)
    made = invoke("export", *source, "--api-token", "secret", "--from", "1970-01-01T00:00:01Z", "--to", "2", "--out", out, "--json")
    assert made.exit_code == 0, made.output
    tables = json.loads(made.stdout)["tables"]
    assert tables["kv_events"]["rows"] == 1
    apart = {"game_loads", "incidents", "signals_rollups", "worker_rollups", "latency_rollups"}  # no query prints these as they are
    for name, about in tables.items():
        if name in apart:
            continue
        printed = invoke("query", name, "--store", out).stdout
        assert sha256(printed.encode()).hexdigest() == about["sha256"], name
    assert invoke("query", "workers", "--store", out).stdout.count(str(IDS[1])) == 1
    with duckdb.connect(str(out), read_only=True) as bundle:
        manifest = dict(bundle.execute("SELECT key, value FROM manifest").fetchall())
    assert {"poascope", "schema", "settings", "span", "tables"} <= set(manifest)
    assert "secret" not in "".join(manifest.values())
    assert "nats://nats:4222" in manifest["settings"] and "http://worker:8081" in manifest["settings"]
    again = invoke("export", *source, "--api-token", "secret", "--out", out)
    assert (again.exit_code, "exists" in again.output) == (2, True)
    assert not list(tmp_path.glob("*.part*"))


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("query", "signals"), 2, "--store FILE (closed) or --url URL"),
        (("query", "signals", "--store", "absent.duckdb"), 1, "absent.duckdb - no such file"),
        (("query", "signals", "--url", "http://127.0.0.1:9"), 3, "is `poascope collect` running there?"),
        (("query", "signals", "--url", "127.0.0.1"), 2, "not an HTTP address"),
        (("query", "signals", "--url", "http://["), 2, "not an HTTP address"),
        (("query", "signals", "--url", "http://a:99999"), 2, "not an HTTP address"),
        (("query", "signals", "--store", "x", "--format", "xml"), 2, "must be csv or json"),
        (("query", "signals", "--store", "x", "--param", "from"), 2, "must be k=v"),
        (("export", "--store", "x", "--out", "y", "--from", "noon"), 2, "not a time"),
        (("export", "--store", "x", "--out", "y", "--from", "2026-11-30", "--to", "2026-11-29"), 2, "one before the other"),
    ],
)
def test_what_cannot_be_answered_exits_with_its_kind(args: tuple[str, ...], code: int, says: str) -> None:
    """1 failed, 2 usage, 3 unreachable, each with a sentence that says what to do."""
    result = invoke(*args)
    assert (result.exit_code, says in result.output) == (code, True), result.output


def test_what_is_no_collector_is_said_to_be_none(url: str) -> None:
    """A page that answers 200 with HTML is an error and prints nothing; a name is one piece of the path, whatever is in it."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None:
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        result = invoke("query", "signals", "--url", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()
    assert (result.exit_code, result.stdout) == (1, "")
    assert "not as a collector does" in result.output
    escaped = invoke("query", "signals?x=1#", "--url", url, "--api-token", "secret")
    assert (escaped.exit_code, "signals?x=1# - no such query" in escaped.output) == (2, True), escaped.output


def test_refusals_of_a_collector_are_passed_on(url: str) -> None:
    """A wrong query, parameter or token over HTTP is a usage error in the collector's own words."""
    for args, says in [
        (("nonsense", "--api-token", "secret"), "no such query; known:"),
        (("signals", "--api-token", "secret", "--param", "x=1"), "x - no such parameter; known: deployment"),
        (("signals", "--api-token", "wrong"), "api_token"),
    ]:
        result = invoke("query", *args, "--url", url)
        assert (result.exit_code, says in result.output) == (2, True), result.output
