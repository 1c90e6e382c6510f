"""Tables that a program iterates over row by row and that a notebook displays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import pyarrow as pa

from orchestrator.results.tables import column_from

if TYPE_CHECKING:
    import pandas as pd

Row = TypeVar("Row")

MOST_ROWS = 60


class Table(Sequence[Row], Generic[Row]):
    """Rows of one kind. `to_pandas()` and `to_arrow()` make columns of their fields."""

    def __init__(
        self,
        rows: Sequence[Row],
        to_columns: Callable[[Row], Mapping[str, Any]],
        caption: str = "",
        shown: Sequence[str] = (),
    ) -> None:
        self._rows, self._to_columns, self._shown = rows, to_columns, shown
        self.caption = caption
        """The answer that the table gives, in words."""

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Table[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Table[Row]:
        if isinstance(index, slice):
            return Table(self._rows[index], self._to_columns, self.caption, self._shown)
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def to_arrow(self) -> pa.Table:
        """An Arrow table. Each part of a nested field gets its own column, such as
        `params.learning_rate`."""
        flat = [dict(_flat(self._to_columns(row))) for row in self._rows]
        names = dict.fromkeys(name for row in flat for name in row)
        return pa.table({name: column_from([row.get(name) for row in flat]) for name in names})

    def to_pandas(self) -> pd.DataFrame:
        return self.to_arrow().to_pandas()

    def __repr__(self) -> str:
        said = f"{self.caption}\n" if self.caption else ""
        table = self._to_be_shown()
        if table.empty:  # pandas would print "Empty DataFrame" and more
            return said + "no rows"
        return said + str(table.to_string(index=False, na_rep="", max_rows=MOST_ROWS))

    def _repr_html_(self) -> str:
        said = f"<p>{escape(self.caption)}</p>".replace("\n", "<br>") if self.caption else ""
        table = self._to_be_shown().to_html(index=False, na_rep="", max_rows=MOST_ROWS)
        return said + str(table)

    def _to_be_shown(self) -> pd.DataFrame:
        """The columns that `shown` names, with the parts of nested ones, or all if it names
        none."""
        table = self.to_pandas().dropna(axis="columns", how="all")
        for name, column in table.items():
            # Pandas prints None for a missing value, unless the column holds numbers.
            table[name] = column if column.dtype.kind in "biuf" else column.fillna("")
        names = [
            name
            for wanted in self._shown
            for name in table
            if name == wanted or name.startswith(f"{wanted}.")
        ]
        return table[names] if names else table


class ArrowTable(Table[dict[str, Any]]):
    """A table that is stored in columns. Its rows are dictionaries, made when one is read."""

    def __init__(self, columns: pa.Table, caption: str = "") -> None:
        self._columns, self._to_columns = columns, dict
        self.caption, self._shown = caption, ()

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:  # type: ignore[override]
        rows: list[dict[str, Any]] = self._columns.to_pylist()
        return rows

    def __len__(self) -> int:
        return int(self._columns.num_rows)

    def to_arrow(self) -> pa.Table:
        return self._columns


def _flat(fields: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value
