import json

import pyarrow as pa

from queries.render import csv_chunks, json_chunks

MIDNIGHT_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
IDS = [2**64 - 1, None, 16882743587675780001]
ROWS = pa.table(
    {
        "ts": pa.array([MIDNIGHT_US + 1, None, MIDNIGHT_US], pa.timestamp("us")),
        "worker_id": pa.array(IDS, pa.uint64()),
        "name": ['a"b,<img onerror=x>', None, "τ\nω"],
        "value": [0.1, float("inf"), None],
        "le": pa.array([[0.5, float("inf")], None, []], pa.list_(pa.float64())),
        "hashes": pa.array([[2**64 - 1], None, [1]], pa.list_(pa.uint64())),
    }
)


def test_json_keeps_ids_as_text_and_no_data_as_null() -> None:
    """u64 are text, times ISO-8601 with Z, infinite bounds as Prometheus spells them, however the rows are batched."""
    for size in (1, 10):
        document = json.loads(b"".join(json_chunks(ROWS.schema, ROWS.to_batches(size))))
        assert document["columns"] == ROWS.column_names
        assert document["rows"] == [
            ["2026-01-01T00:00:00.000001Z", "18446744073709551615", 'a"b,<img onerror=x>', 0.1, [0.5, "+Inf"], ["18446744073709551615"]],
            [None, None, None, "+Inf", None, None],
            ["2026-01-01T00:00:00.000000Z", "16882743587675780001", "τ\nω", None, [], ["1"]],
        ]
    assert json.loads(b"".join(json_chunks(ROWS.schema, []))) == {"columns": ROWS.column_names, "rows": []}


def test_csv_is_one_header_and_the_same_bytes_each_time() -> None:
    """u64 are written in full, NULL is empty, lists are JSON in one field, and batches leave no trace."""
    whole = b"".join(csv_chunks(ROWS.schema, ROWS.to_batches(10)))
    assert whole == b"".join(csv_chunks(ROWS.schema, ROWS.to_batches(1)))
    assert whole.decode() == (
        "ts,worker_id,name,value,le,hashes\n"
        '2026-01-01T00:00:00.000001Z,18446744073709551615,"a""b,<img onerror=x>",0.1,"[0.5,""+Inf""]","[""18446744073709551615""]"\n'
        ",,,+Inf,,\n"
        '2026-01-01T00:00:00.000000Z,16882743587675780001,"τ\nω",,[],"[""1""]"\n'
    )
    assert b"".join(csv_chunks(ROWS.schema, [])) == b"ts,worker_id,name,value,le,hashes\n"
