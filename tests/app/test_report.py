"""A report opens offline and tells what happened; text from outside stays text."""

import errno
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import sync_playwright
from typer.testing import CliRunner

from poascope.cli import cli
from store import Store
from tests.app.conftest import HOSTILE, stamp

BROWSER = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
BEGIN = 1_767_225_600.0  # 2026-01-01


def put(store: Store, table: str, rows: list[dict[str, object]]) -> None:
    with store.cursor() as cursor:
        schema = cursor.sql(f"SELECT * FROM {table} LIMIT 0").to_arrow_table().schema
    store.append(table, pa.Table.from_pylist(rows, schema=schema))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Half an hour of a deployment whose every name is hostile, saturated for five minutes of it."""
    folder = tmp_path_factory.mktemp("report")
    with Store.open(folder / "s.duckdb") as store:
        seconds = [
            {
                "ts": stamp(BEGIN + i), "deployment": HOSTILE, "inflight": 9.0, "ttft_p99_s": 16.2 if i == 700 else 0.1, "poa_hat": 1.2,
                "regime": "saturated" if 600 <= i < 900 else "below", "finished_per_s": 2.0, "arrivals_per_s": 2.0,
            }
            for i in range(1800)
        ]  # fmt: skip
        put(store, "signals", seconds)
        put(
            store,
            "requests",
            [
                {
                    "deployment": HOSTILE, "request_id": f"</script><script>window.pwned=1</script>{i}", "arrived_at": stamp(BEGIN + i),
                    "first_token_at": stamp(BEGIN + i + i / 100), "decode_worker": 2**64 - 1 - i, "outcome": "finished",
                }
                for i in range(1000)
            ],
        )  # fmt: skip
        put(
            store,
            "decisions",
            [{"ts": stamp(BEGIN + 800), "deployment": HOSTILE, "kind": "intent", "actor": HOSTILE, "why": "</td><img src=x>"}],
        )
        put(store, "gaps", [{"source": "nats", "kind": "down", "from": stamp(BEGIN + 5), "to": stamp(BEGIN + 9)}])
    out = folder / "r.html"
    made = CliRunner().invoke(cli, ["report", "--store", str(folder / "s.duckdb"), "--out", str(out), "--to", str(BEGIN + 1800)])
    assert made.exit_code == 0, made.output
    yield out


def test_half_an_hour_is_small_and_tells_the_story(report: Path) -> None:
    """Under 10 MB; the sentence has the requests, the peak and its time, the time in saturation, the override and the gap."""
    text = report.read_text()
    assert len(text) < 10e6
    told = re.search(r"<p class=lead>(.*?)</p>", text)
    assert told and "1000 requests arrived; TTFT P99 peaked at 16.2 s at 00:11:40" in told[1]
    assert "saturated for 300 s" in told[1] and "one override by a person" in told[1] and "1 gaps" in told[1]
    assert str(2**64 - 1000) in text, "the slowest request's worker, to the last digit"
    assert "src=" not in text.split("<script>")[0].replace("src=x", "") and "http://" not in text.split("<script>")[0]


@pytest.mark.real
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_draws_it_offline(report: Path, scheme: str) -> None:
    """Offline, under its own policy, every chart is drawn in the reader's colours, without an error and without running a name."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path="/usr/bin/chromium", args=BROWSER)
        page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
        page.context.set_offline(True)
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(report.as_uri())
        page.wait_for_function(
            "document.querySelectorAll('.plot .main-svg').length >= document.querySelectorAll('.plot').length * 2", timeout=60_000
        )
        assert said == [] and page.evaluate("window.pwned") is None
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(246, 246, 243)", "dark": "rgb(16, 20, 23)"}[scheme]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        browser.close()


def test_what_cannot_be_reported_is_said(report: Path, tmp_path: Path) -> None:
    """An unknown deployment, an empty span, a file in the way: exit code and sentence of their kind, and no file."""
    store = str(report.parent / "s.duckdb")
    for args, code, says in (
        (["--deployment", "nobody"], 2, "nobody - not in"),
        (["--from", "2030-01-01", "--to", "2030-01-02"], 1, "holds nothing of"),
        (["--from", "2030-01-01", "--to", "2029-01-01"], 2, "must span more than nothing"),
    ):
        told = CliRunner().invoke(cli, ["report", "--store", store, "--out", str(tmp_path / "x.html"), *args])
        assert (told.exit_code, says in " ".join(told.output.split())) == (code, True), told.output[-400:]
        assert not (tmp_path / "x.html").exists()
    told = CliRunner().invoke(cli, ["report", "--store", store, "--out", str(report)])
    assert (told.exit_code, "exists" in told.output) == (2, True)


def test_half_a_report_is_none(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up while it is written leaves no file that looks like a report, and the next try is not told that there is one."""
    out = tmp_path / "r.html"

    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:1000])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    told = CliRunner().invoke(cli, ["report", "--store", str(report.parent / "s.duckdb"), "--out", str(out)])
    assert (told.exit_code, "No space left" in told.output) == (1, True), told.output[-400:]
    assert list(tmp_path.iterdir()) == []
