import io
from collections import Counter

from rich.console import Console

from testbed.report import Tally, as_data, error_lines, quantiles, table
from testbed.scenario import Phase


def _tallies() -> list[Tally]:
    busy = Tally(Phase(10, users=4), 10.0, sent=5, finished=3, ttft_s=[0.1, 0.2, 1.5], e2e_s=[1, 2, 3], itl_s=[0.02, 0.02])
    busy.errors = Counter({"HTTP 503: busy": 1, "cut": 1})
    return [busy, Tally(Phase(5, rate=2))]


def test_quantiles_of_nothing_are_none() -> None:
    """No values give None, never zero; with values, linear interpolation."""
    assert quantiles([]) == (None, None, None)
    assert quantiles([1.0, 2.0, 3.0])[0] == 2.0


def test_data_have_a_row_for_each_phase() -> None:
    """Everything that was sent is either finished or failed, and a phase without answers has null quantiles."""
    first, second = as_data(_tallies())
    assert first["sent"] == first["finished"] + first["failed"] == 5
    assert first["ttft_p50_s"] == 0.2
    assert first["errors"] == {"HTTP 503: busy": 1, "cut": 1}
    assert (second["ttft_p99_s"], second["finished_per_s"], second["rate_per_s"]) == (None, None, 2)


def test_table_fits_eighty_columns() -> None:
    """Every number stays readable at 80 columns with the twenty-one phases of the ramp, and failures are listed."""
    out = io.StringIO()
    Console(file=out, width=80).print(table("ramp", _tallies() * 10 + _tallies()[:1]))
    text = out.getvalue()
    assert "…" not in text
    assert "200 ms" in text
    assert "–" in text
    assert error_lines(_tallies()) == ["phase 1: 1 × HTTP 503: busy", "phase 1: 1 × cut"]
