"""The page as one would first write it: the same figures in `st.plotly_chart`, in a fragment that reruns each second. For bench/live.py."""

import io
import os
import time

import httpx
import pandas as pd
import pyarrow as pa
import streamlit as st

from app.page import Given
from app.panels import LIVE
from app.payload import figures
from app.status import Objectives
from app.theme import LIGHT

API = os.environ["BENCH_API"]


@st.cache_data(ttl=0.9)
def frame(name: str, step_s: float | None = None) -> pd.DataFrame:
    """The last five minutes of a query, read once a second for all sessions."""
    params = {"from": str(time.time() - 300)} | ({"step_s": str(step_s)} if step_s else {})
    table = pa.ipc.open_stream(io.BytesIO(httpx.get(f"{API}/query/{name}", params=params).content)).read_all()
    for index, field in enumerate(table.schema):
        if field.type == pa.uint64():
            table = table.set_column(index, field.name, table.column(index).cast(pa.string()))
    return table.to_pandas()


@st.fragment(run_every=1)
def charts() -> None:
    signals = frame("signals")
    drawn = figures(LIVE, Given({"signals": signals, "worker_inflight": frame("worker_inflight", 1.0)}, Objectives(1.0, 0.05), LIGHT))
    newest = float(signals["ts"].iloc[-1].timestamp() * 1000)
    columns = st.columns(2)
    for index, (key, figure) in enumerate(drawn.items()):
        figure.update_layout(meta={"bench_newest": newest}, height=240)
        columns[index % 2].plotly_chart(figure, key=key)


st.set_page_config(layout="wide")
charts()
