from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest

from app.charts import bands
from app.charts.cache import kv_hit
from app.charts.control import smoothed
from app.charts.frame import label, with_gaps
from app.charts.latency import itl, ttft
from app.charts.load import choose, throughput, workers
from app.charts.lost import lost
from app.charts.poa import poa
from app.theme import DARK, LIGHT

NOON_MS = 1_767_268_800_000  # 2026-01-01 12:00 UTC
EMPTY = pd.DataFrame({"ts": pd.Series([], dtype="datetime64[us]")})
FIGURES = [poa, ttft, itl, kv_hit, lost, throughput, workers]


def signals(*rows: dict[str, Any]) -> pd.DataFrame:
    base: dict[str, Any] = {"regime": "below", "inflight": 8.0, "poa_withheld": None, "ttft_p99_prometheus_s": None}
    frame = pd.DataFrame([base | row for row in rows])
    frame["ts"] = pd.to_datetime([NOON_MS + 1000 * i for i in range(len(rows))], unit="ms").astype("datetime64[us]")
    return frame


def trace(figure: go.Figure, name: str) -> Any:
    return next(t for t in figure.data if t.name == name)


@pytest.mark.parametrize("draw", FIGURES)
@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_an_empty_frame_says_no_data(draw: Callable[..., go.Figure], theme: Any) -> None:
    """A figure of nothing is a figure that says so."""
    assert [a.text for a in draw(EMPTY, theme=theme).layout.annotations] == ["no data"]


@pytest.mark.parametrize(
    ("draw", "title"),
    [
        (poa, "PoA-hat (×, log)"),
        (ttft, "TTFT (s, log)"),
        (itl, "ITL (ms)"),
        (kv_hit, "KV hit rate (%)"),
        (workers, "requests in flight"),
        (lost, "lost (s a request)"),
    ],
)
def test_axes_carry_units(draw: Callable[..., go.Figure], title: str) -> None:
    """Each axis names its quantity and unit, and time is UTC."""
    layout = draw(EMPTY).layout
    assert layout.yaxis.title.text == title
    assert (layout.xaxis.title.text, layout.xaxis.type) == ("time (UTC)", "date")


def test_quantities_that_span_decades_are_on_log_axes() -> None:
    """PoA-hat and TTFT are drawn on log axes, ITL and hits are not."""
    assert [f(EMPTY).layout.yaxis.type for f in (poa, ttft, itl, kv_hit)] == ["log", "log", None, None]


def test_times_are_unix_milliseconds_across_midnight() -> None:
    """Points stand at real UTC times, so that midnight is not a wrap."""
    frame = signals({"ttft_p99_s": 0.1}, {"ttft_p99_s": 0.2})
    frame["ts"] = pd.to_datetime(["2025-12-31 23:59:59", "2026-01-01 00:00:00"]).astype("datetime64[us]")
    midnight = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
    assert list(trace(ttft(frame), "P99").x) == [midnight - 1000, midnight]


def test_withheld_poa_is_hollow_and_not_solid() -> None:
    """A withheld second is drawn by the hollow trace only, with its reason."""
    frame = signals({"poa_hat": 1.02}, {"poa_hat": 40.0, "poa_withheld": "3 finished < 8"}, {"poa_hat": None})
    figure = poa(frame)
    assert list(trace(figure, "calibrated").y) == [1.02, None, None]
    assert list(trace(figure, "withheld").y) == [None, 40.0, None]
    assert trace(figure, "withheld").text[1] == "3 finished < 8"


def test_poa_carries_its_interval_and_its_kin() -> None:
    """Calibrated, TTFT and frozen are traces of their own, and the interval is drawn around the calibrated one."""
    figure = poa(signals({"poa_hat": 2.0, "poa_low": 1.5, "poa_high": 2.25, "poa_ttft": 30.0, "poa_frozen": 170.0}))
    assert (trace(figure, "TTFT alone").y[0], trace(figure, "frozen").y[0]) == (30.0, 170.0)
    error = trace(figure, "calibrated").error_y
    assert (error.array[0], error.arrayminus[0]) == (0.25, 0.5)


def test_lost_seconds_are_per_finished_request_and_none_of_none() -> None:
    """A part is divided by the requests it was lost over; without any there is no point, and an unknown part is no zero."""
    figure = lost(signals({"prefill_queue_s": 30.0, "cache_miss_s": None, "poa_n": 20}, {"prefill_queue_s": 0.0, "poa_n": 0}))
    assert list(trace(figure, "prefill queue").y) == [1.5, None]
    assert list(trace(figure, "cache misses").y) == [None, None]


def test_unknown_is_a_hole_and_never_zero() -> None:
    """NULL and NaN become None in every trace."""
    frame = signals({"ttft_p99_s": None, "kv_hit_ratio": float("nan")})
    assert list(trace(ttft(frame), "P99").y) == [None]
    assert list(trace(ttft(frame), "P99 Prometheus").y) == [None]
    assert list(trace(kv_hit(frame), "KV hit rate").y) == [None]


def test_the_slo_is_a_line_in_the_unit_of_the_axis() -> None:
    """The objective lies where the axis says: seconds for TTFT, milliseconds for ITL; without one there is no line."""
    assert [s.y0 for s in ttft(EMPTY, slo_s=1.5).layout.shapes if s.name == "slo"] == [1.5]
    assert [s.y0 for s in itl(EMPTY, slo_s=0.05).layout.shapes if s.name == "slo"] == [50.0]
    assert not ttft(EMPTY).layout.shapes


def test_regimes_are_bands_behind_every_time_chart() -> None:
    """Equal regimes are one band, and silence is told apart from a regime."""
    frame = signals({}, {"regime": "saturated"}, {"regime": "saturated"}, {"regime": None}, {"inflight": 0.0})
    assert [s[0] for s in bands.spans(frame)] == ["below", "saturated", "unknown", "no requests"]
    assert bands.spans(frame)[1] == ("saturated", NOON_MS + 1000, NOON_MS + 3000)
    for draw in (poa, ttft, itl, kv_hit, throughput):
        assert next(s.name for s in draw(frame).layout.shapes if s.name.startswith("band:")) == "band:below"
    assert workers(EMPTY, frame).layout.shapes[0].layer == "below"


def test_missing_seconds_break_lines_and_bands() -> None:
    """What nobody saw is not bridged."""
    frame = signals({"ttft_p99_s": 0.1}, {"ttft_p99_s": 0.2})
    frame.loc[1, "ts"] += pd.Timedelta(seconds=30)
    gapped = with_gaps(frame, 1)
    assert list(trace(ttft(gapped), "P99").y) == [0.1, None, 0.2]
    assert len(bands.spans(gapped)) == 2


def test_figures_of_the_newest_rows_are_what_a_figure_lacks() -> None:
    """Each point comes from one row: appending by uid gives the whole figure."""
    rows = [{"ttft_p99_s": 0.1 * i, "poa_hat": 1.0 + i, "poa_withheld": "x" if i % 2 else None} for i in range(1, 7)]
    frame = signals(*rows)
    for draw in (poa, ttft, throughput):
        whole, old, new = draw(frame), draw(frame.iloc[:4]), draw(frame.iloc[4:])
        for w, o, n in zip(whole.data, old.data, new.data, strict=True):
            assert w.uid == o.uid == n.uid
            assert list(w.y) == [*o.y, *n.y]


def test_worker_ids_stay_text_and_apart() -> None:
    """Two u64 beyond 2^63 that differ in the last digit are two lines, told apart by name and exact on hover."""
    rows = [
        {"ts": pd.Timestamp("2026-01-01"), "role": role, "component": c, "worker_id": w, "dp_rank": 0, "inflight": n}
        for role, c, w, n in [
            ("prefill", "prefill", "16882743587675780000", 3),
            ("decode", "backend", "16882743587675780001", 4),
            ("decode", "backend", "16882743587675780002", 5),
        ]
    ]
    figure = workers(pd.DataFrame(rows))
    assert sorted(t.name for t in figure.data) == ["decode …780001", "decode …780002", "prefill …780000"]
    assert any("16882743587675780001" in t.hovertemplate for t in figure.data)
    prefill = trace(figure, "prefill …780000")
    assert prefill.line.dash == "solid"
    assert prefill.line.color in LIGHT.prefill
    assert all(t.line.dash != "solid" and t.line.color in LIGHT.decode for t in figure.data if t is not prefill)


def test_names_from_outside_are_text() -> None:
    """Markup is escaped, since Plotly reads some HTML, and long names are cut."""
    assert label("<img src=x onerror=alert(1)>") == "&lt;img src=x onerror=alert(1)&gt;"
    assert len(label("x" * 10_000)) < 60


def test_a_quantity_keeps_its_colour() -> None:
    """TTFT P99 has the theme's one colour for it, in light and in dark."""
    for theme in (LIGHT, DARK):
        assert trace(ttft(EMPTY, theme=theme), "P99").line.color == theme.colour["ttft_p99"]
    assert LIGHT.colour.keys() == DARK.colour.keys()


def decision(**given: object) -> dict[str, object]:
    base = {"ts": pd.Timestamp("2026-01-01T12:00:00"), "mode": "manual", "from_tau": 0.0, "from_omega": 1.0, "tau": 0.7, "omega": 1.0}
    return base | {"actor": "ann", "why": "spike", "error": None, "replica": None} | given


def test_decisions_are_marks_with_who_and_why() -> None:
    """All but targets that moved nothing and plain acknowledgements; what changed nothing has a sign and no line."""
    kinds = ["intent", "target", "ack", "hold", "refusal", "dry run"]
    frame = pd.DataFrame([decision(kind=kind) for kind in kinds] + [decision(kind="target", tau=0.0), decision(kind="ack", error="no")])
    marks = bands.marks(frame)
    assert [m["name"] for m in marks] == [f"mark:{k}" for k in ("intent", "target", "hold", "refusal", "dry run", "ack")]
    assert [m["y1"] > 0 for m in marks] == [True, True, False, False, False, True]
    assert marks[0]["hover"] == "12:00:00 ann: intent, manual τ 0.7 ω 1<br>spike"


def test_a_long_or_hostile_reason_is_wrapped_text() -> None:
    """No line on hover is longer than 64 characters before escaping, the whole is cut, and markup is shown."""
    frame = pd.DataFrame([decision(kind="intent", actor="<b>x</b>", why="<img src=x> " + "word " * 500)])
    (mark,) = bands.marks(frame)
    assert "<b>" not in mark["hover"] and "&lt;img src=x&gt;" in mark["hover"]
    lines = mark["hover"].split("<br>")
    assert 3 < len(lines) < 9 and lines[-1].endswith("…")


def test_an_override_in_force_is_a_strip() -> None:
    """From the second its mode is there to the second it is not any more; auto and unknown are none."""
    frame = signals(*({"mode": mode} for mode in ("auto", "manual", "manual", "freeze", None, "auto")))
    assert [(s["name"], s["x0"] - NOON_MS, s["x1"] - NOON_MS) for s in bands.overrides(frame)] == [
        ("over:manual", 1000, 3000),
        ("over:freeze", 3000, 4000),
    ]


def test_of_many_workers_the_busiest_have_lines_and_the_rest_a_sum() -> None:
    """Twelve lines by peak, one for all others with their number; what follows keeps them, and a newcomer joins the others."""

    def frame(second: int, loads: dict[int, float]) -> pd.DataFrame:
        ts = pd.to_datetime([NOON_MS + 1000 * second] * len(loads), unit="ms").astype("datetime64[us]")
        same = {"role": "decode", "component": "backend", "dp_rank": 0}
        return pd.DataFrame({"ts": ts, "worker_id": [str(w) for w in loads], "inflight": list(loads.values())} | same)

    first = frame(0, {w: float(w) for w in range(20)})
    lines = choose(first)
    drawn = {t.name: list(t.y) for t in workers(first, lines=lines).data}
    assert len(drawn) == 13
    assert drawn["others (8 workers)"] == [sum(range(8))]
    assert "decode 19" in drawn and "decode 7" not in drawn
    later = frame(1, {w: float(20 - w) for w in range(21)})
    after = choose(later, lines)
    assert after.own == lines.own
    assert {t.name: list(t.y) for t in workers(later, lines=after).data}["others (9 workers)"] == [sum(range(13, 21)) + 0]


def test_the_loop_is_shown_against_its_thresholds() -> None:
    """θ of the preset are level lines; where thresholds are learnt there are none, and nothing is drawn in their place."""
    frame = pd.DataFrame({"ts": pd.to_datetime([0, 1], unit="s"), "ttft_p99_censored_s": [0.1, 3.0], "ttft_ewma_s": [0.1, 1.0]})
    drawn = {trace.uid: list(trace.y) for trace in smoothed(frame, theta_s=(0.3, 2.0)).data}
    assert (drawn["transition"], drawn["saturated"], drawn["ewma"]) == ([0.3, 0.3], [2.0, 2.0], [0.1, 1.0])
    assert {trace.uid for trace in smoothed(frame).data} == {"p99", "ewma"}
