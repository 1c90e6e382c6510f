"""Writes Parquet files that take the least space, however long writing them takes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from orchestrator.files.places import Place
from orchestrator.results.tables import ROWS_AT_ONCE

ENCODINGS = {
    pa.float64(): ("BYTE_STREAM_SPLIT",),
    pa.int32(): ("DELTA_BINARY_PACKED",),
    pa.int64(): ("DELTA_BINARY_PACKED",),
}
"""The encodings of numbers that other Parquet readers know, too."""


def write_smallest(place: Place, table: pa.Table) -> None:
    """Writes each column with the encoding in which it takes the least space."""
    few, encodings = [], {}
    for field in table.schema:
        column = table.select([field.name])
        sizes = {"dictionary": len(_written(column, use_dictionary=True))}
        for encoding in ("PLAIN", *ENCODINGS.get(field.type, ())):
            how = {"use_dictionary": False, "column_encoding": {field.name: encoding}}
            sizes[encoding] = len(_written(column, **how))
        smallest = min(sizes, key=sizes.__getitem__)
        if smallest == "dictionary":
            few.append(field.name)
        else:
            encodings[field.name] = smallest
    place.write(_written(table, use_dictionary=few, column_encoding=encodings))


def _written(table: pa.Table, **encodings: Any) -> pa.Buffer:
    buffer = pa.BufferOutputStream()
    with pq.ParquetWriter(
        buffer, table.schema, compression="zstd", compression_level=22, write_page_checksum=True,
        # The spans of trials are all that is ever read of the statistics. Arrow's own schema says
        # nothing that Parquet's does not say.
        write_statistics=["trial"], store_schema=False, **encodings,
    ) as writer:  # fmt: skip
        if notes := table.schema.metadata:
            writer.add_key_value_metadata(notes)
        writer.write_table(table, row_group_size=ROWS_AT_ONCE)
    return buffer.getvalue()
