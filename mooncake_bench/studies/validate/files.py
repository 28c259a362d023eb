"""The folder of measurements: which files it holds, and their lines with names for every fault."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO, cast

from mooncake_bench.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray


@dataclass(frozen=True)
class Line:
    """One line of a table."""

    file: str
    number: int
    values: Mapping[str, str]

    def text(self, key: str) -> str:
        """A value as it stands. Raises SetupError where the table has no such column."""
        if key not in self.values:
            known = ", ".join(self.values)
            raise SetupError(f"{self.file}, line {self.number}: no column {key!r}; expected it beside: {known}")
        return self.values[key] or ""

    def number_of(self, key: str) -> float:
        """A finite number. Raises SetupError for anything else."""
        text = self.text(key)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise SetupError(f"{self.file}, line {self.number}, column {key!r}: found {text!r}, expected a number")
        return value

    def positive(self, key: str) -> float:
        """A number above 0. Raises SetupError for anything else."""
        value = self.number_of(key)
        if value <= 0:
            found = f"found {self.text(key)!r}, expected a number above 0"
            raise SetupError(f"{self.file}, line {self.number}, column {key!r}: {found}")
        return value


class Measurements:
    """Tables below ``folder`` (None: there is none). Raises SetupError when the folder is not one."""

    def __init__(self, folder: Path | None) -> None:
        if folder is not None and not folder.is_dir():
            raise SetupError(f"--measurements {str(folder)!r}: is not a folder; give the one that holds the tables")
        self.folder = folder
        self._read: dict[str, list[Line]] = {}
        self._columns: dict[tuple[str, tuple[str, ...]], dict[str, NDArray[Any]]] = {}

    def absent(self, files: Sequence[str]) -> list[str]:
        """Those of ``files`` (relative paths) that are not there."""
        return [name for name in files if self.folder is None or not (self.folder / name).is_file()]

    def lines(self, name: str) -> list[Line]:
        """The lines of a .csv or .csv.gz file, read once. Raises SetupError where it cannot be, or holds none."""
        if name not in self._read:
            self._read[name] = self._lines(name)
        return self._read[name]

    @cached_property
    def figures(self) -> list[Line]:
        """The papers' digitised figures."""
        return self.lines(FIGURES)

    def curve(self, figure: str, setting: str, series: str, *, least: int = 1) -> list[tuple[float, float]]:
        """(x, value) of one curve of a digitised figure. Raises SetupError where it has fewer than ``least`` points."""
        wanted = (figure, setting, series)
        found = [
            (line.number_of("x"), line.positive("value"))
            for line in self.figures
            if tuple(line.text(key) for key in ("figure", "setting", "series")) == wanted
        ]
        if len(found) < least:
            where = f"figure {figure!r}, setting {setting!r}, series {series!r}"
            raise SetupError(f"{FIGURES}: {where}: found {len(found)} points, expected at least {least}")
        return found

    def enough(self, name: str, least: int) -> list[Line]:
        """The lines of a file. Raises SetupError where it holds fewer than ``least``."""
        found = self.lines(name)
        if len(found) < least:
            raise SetupError(f"{name}: found {len(found)} lines of data, expected at least {least}")
        return found

    def columns(self, name: str, wanted: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Columns of a .parquet file, read once each. Raises SetupError where it cannot be, or lacks one."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        key = (name, tuple(wanted))
        if key not in self._columns:
            path = self._path(name)
            try:
                lacking = [column for column in wanted if column not in pq.read_schema(path).names]
                table = pq.read_table(path, columns=[column for column in wanted if column not in lacking])
            except (OSError, pa.ArrowException) as error:
                raise SetupError(f"{name}: cannot be read: {str(error).splitlines()[0]}") from None
            if lacking or not len(table):
                found = f"no column {lacking[0]!r}" if lacking else "no row"
                raise SetupError(f"{name}: found {found}, expected rows with the columns {', '.join(wanted)}")
            self._columns[key] = {column: table[column].to_numpy() for column in wanted}
        return self._columns[key]

    def _path(self, name: str) -> Path:
        if self.folder is None:
            raise SetupError(f"{name}: no folder of measurements; give it with --measurements")
        return self.folder / name

    def _lines(self, name: str) -> list[Line]:
        path = self._path(name)
        try:
            with _opened(path) as stream:
                reader = csv.DictReader(stream, restkey="(more)")
                lines = [Line(name, reader.line_num, row) for row in reader]
        except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
            raise SetupError(f"{path}: cannot be read: {error}") from None
        if not lines:
            raise SetupError(f"{path}: holds no line of data; expected a table with a header")
        return lines


def _opened(path: Path) -> TextIO:
    """A file as text, unpacked where its name ends in .gz."""
    if path.suffix == ".gz":
        return cast("TextIO", gzip.open(path, "rt", encoding="utf-8", newline=""))
    return path.open(encoding="utf-8", newline="")


FIGURES = "mooncake/paper_figures_digitized.csv"
