import pyarrow as pa

from app.charts.waterfall import waterfall
from app.theme import DARK, LIGHT
from queries.life import life
from tests.queries.test_life import AROUND, ASKED, EVENTS


def test_one_bar_a_stage_where_it_lies() -> None:
    """Bars start where the stage before ended, carry their seconds, and the stage nobody reports says so instead of having a bar."""
    figure = waterfall(life(ASKED, AROUND, EVENTS), slo_s=2.0, theme=DARK)
    bars = {bar.name: bar for bar in figure.data}
    assert list(bars) == ["router", "prefill queue", "prefill", "transfer", "first step", "decode"]
    assert bars["router"].x[0] is None and any("not reported" in a.text for a in figure.layout.annotations)
    assert bars["prefill"].base[0] == 1.0 and bars["prefill"].x[0] == 1.0 and bars["prefill"].text[0] == "1.00 s"
    assert bars["transfer"].text[0] == "100 ms" and figure.layout.xaxis.title.text == "since it was routed (s)"
    assert (figure.layout.shapes[0].x0, figure.layout.shapes[0].label.text) == (2.0, "SLO 2 s")


def test_no_request_is_a_sentence_and_names_are_text() -> None:
    """Without a request the figure says so; nothing from outside is markup."""
    assert "No request" in waterfall(None, theme=LIGHT).layout.annotations[0].text
    hostile = life(ASKED | {"request_id": "<img src=x>"}, AROUND.slice(0, 0), pa.table({}))
    assert "<img" not in waterfall(hostile).to_json()
