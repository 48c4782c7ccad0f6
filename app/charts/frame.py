"""From a query's rows to what Plotly takes: epoch milliseconds (UTC) and plain numbers, None where there is no data."""

import math
from collections.abc import Sequence

import pandas as pd
import pyarrow as pa

DIGITS = 5  # more than a pixel can show, and half the bytes of a full double


def framed(table: pa.Table) -> pd.DataFrame:
    """A query's rows as a frame, u64 as text: pandas would make floats of ids where one is missing."""
    for index, field in enumerate(table.schema):
        if field.type == pa.uint64():
            table = table.set_column(index, field.name, table.column(index).cast(pa.string()))
    frame: pd.DataFrame = table.to_pandas()
    return frame


def time_ms(frame: pd.DataFrame) -> list[int]:
    """`ts` as Unix milliseconds: Plotly's date axes read them as UTC, and never wrap at midnight."""
    return [int(v) for v in frame["ts"].to_numpy("datetime64[ms]").astype("int64")] if len(frame) else []


def number(value: object, scale: float = 1.0) -> float | None:
    """A number fit to draw, or None for what is not known (NULL, NaN, infinite)."""
    if value is None or value is pd.NA:
        return None
    scaled = float(value) * scale  # type: ignore[arg-type]
    return float(f"{scaled:.{DIGITS}g}") if math.isfinite(scaled) else None


def values(frame: pd.DataFrame, column: str, scale: float = 1.0) -> list[float | None]:
    """A column as numbers, in the unit of the axis."""
    return [number(v, scale) for v in frame[column]] if column in frame else [None] * len(frame)


def where(numbers: Sequence[float | None], keep: Sequence[bool]) -> list[float | None]:
    return [n if k else None for n, k in zip(numbers, keep, strict=True)]


def with_gaps(frame: pd.DataFrame, step_s: float) -> pd.DataFrame:
    """The frame with an empty row wherever more than three steps are missing, so that a line breaks instead of bridging what nobody saw."""
    if len(frame) < 2:
        return frame
    late = frame["ts"].diff() > pd.Timedelta(seconds=3 * step_s)
    if not late.any():
        return frame
    holes = pd.DataFrame({"ts": frame["ts"].shift()[late] + pd.Timedelta(seconds=step_s)})
    return pd.concat([frame, holes]).sort_values("ts", kind="stable", ignore_index=True)


def label(text: str, limit: int = 48) -> str:
    """A name from outside as text in a figure: Plotly reads some HTML, so markup is escaped; long names are cut in the middle."""
    short = text if len(text) <= limit else f"{text[: limit // 2]}…{text[-limit // 2 :]}"
    return short.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
