"""A table that never breaks a number or a name, at any width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

_GAP = 2  # blanks between columns
_LONG = 30  # characters; longer cells are texts, which may fold


class _WholeTable(Table):
    """Columns without room continue in a further table, which repeats the first column. Long texts fold at
    their blanks."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lengths = [_measure(console, column) for column in self.columns]
        for column, (_, longest) in zip(self.columns, lengths, strict=True):
            column.no_wrap = longest <= _LONG
        needed = [longest if longest <= _LONG else max(word, _LONG) for word, longest in lengths]
        blocks: list[list[int]] = [[]]
        for index, width in enumerate(needed):
            used = sum(needed[each] + _GAP for each in {0, *blocks[-1]}) + width
            if blocks[-1][1:] and used > options.max_width:
                blocks.append([0])
            blocks[-1].append(index)
        if len(blocks) == 1:
            yield from super().__rich_console__(console, options)
            return
        for number, block in enumerate(blocks):
            part = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
            part.columns = [replace(self.columns[index], _index=place) for place, index in enumerate(block)]
            part.rows = self.rows
            if number:
                yield Text()
            yield part


def _measure(console: Console, column: Column) -> tuple[int, int]:
    """The lengths of the longest word and of the longest cell of a column."""
    endless = console.options.update(max_width=1 << 16)
    cells = [Measurement.get(console, endless, cell) for cell in (column.header, *column.cells)]
    return max(cell.minimum for cell in cells), max(cell.maximum for cell in cells)


def make_table(*columns: str, numbers: Sequence[str] = ()) -> Table:
    """An empty table without frames; the columns in `numbers` are aligned to the right."""
    table = _WholeTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return table
