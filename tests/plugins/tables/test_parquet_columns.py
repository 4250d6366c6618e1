from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge_data.plugins.tables import parquet_table
from tests.tables import opened


def test_columns_that_are_not_read_tell_as_many_values_as_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow up to 22 takes the number of rows to read from the first columns, whichever are asked for."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"number": [1, 2, 3], "texts": [["a"], ["b", "c"], []], "words": ["x", "y", "z"]}), path)
    made: list[Any] = []

    def noted(*given: Any) -> Any:
        made.append(small_file(*given))
        return made[-1]

    small_file = parquet_table.small_file
    monkeypatch.setattr(parquet_table, "small_file", noted)
    records = opened(path).records
    rows = [dict(records.reader().read(index).parts) for index in range(3)]
    assert [row["words"] for row in rows] == ["x", "y", "z"] and made
    for file in made:
        chunks = file.metadata.row_group(0)
        values = [chunks.column(number).num_values for number in range(chunks.num_columns)]
        assert min(values) >= 3, values
