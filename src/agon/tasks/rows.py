"""Rows of a data set, from the hub or from local files, with errors that name the row.

A row keeps where it stands, so that every complaint about it can name file, row and field.
Only the columns that are asked for are read where the format allows it: some data sets are
nearly all text that nobody here needs.

What this module does not do: know any data set's meaning, split, or drop rows.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agon.errors import DataError, Unreachable
from agon.hub import hub_fault

SUFFIXES = (".jsonl", ".json", ".parquet", ".jsonl.gz")
_SUBFOLDERS = (".", "data", "main")


@dataclass(frozen=True, slots=True)
class Row:
    """One row and where it stands.

    Attributes:
        source: File or hub split that it comes from.
        number: Its position there, from 1 (the line of a JSON Lines file).
        fields: Its columns.
        remedy: What to do about a faulty row, for error messages.
    """

    source: str
    number: int
    fields: Mapping[str, Any]
    remedy: str

    def fault(self, field: str, wrong: str) -> DataError:
        """The error about one field of this row: `wrong` says what was got and expected."""
        where = f"{self.source}, row {self.number}, field '{field}'"
        return DataError(f"{where}: {wrong}. {self.remedy}")

    def text(self, field: str) -> str:
        """A field that must be text and not blank, stripped.

        Raises:
            DataError: The field is missing, not text, blank, or not valid Unicode.
        """
        if field not in self.fields:
            columns = ", ".join(map(str, self.fields)) or "none"
            raise self.fault(field, f"missing; the row has the columns {columns}")
        value = self.fields[field]
        if not isinstance(value, str):
            raise self.fault(field, f"got {type(value).__name__}, expected text")
        if not value.strip():
            raise self.fault(field, "empty, expected text")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise self.fault(field, "holds half a character (a lone surrogate), expected text")
        return value.strip()

    def plain_text(self, field: str) -> str:
        """A field that is text, or a number or truth value taken as its JSON text.

        Raises:
            DataError: As `text`.
        """
        value = self.fields.get(field)
        if isinstance(value, bool | int | float):
            return json.dumps(value)
        return self.text(field)

    def number_field(self, field: str) -> float:
        """A field that must be a finite number.

        Raises:
            DataError: The field is missing, not a number, or not finite.
        """
        value = self.fields.get(field)
        if isinstance(value, bool) or not isinstance(value, int | float):
            got = "missing" if field not in self.fields else f"got {type(value).__name__}"
            raise self.fault(field, f"{got}, expected a number")
        if not abs(value) < float("inf"):
            raise self.fault(field, f"got {value}, expected a finite number")
        return float(value)


@dataclass(frozen=True, slots=True)
class HubSplit:
    """One split of a hub data set.

    Attributes:
        name: Repository on the hub.
        config: Configuration of the data set; None takes its default.
        split: Name of the split.
        stream: Whether to stream the needed columns instead of downloading and caching all of
            them; for data sets stored as Parquet that are mostly text that nobody needs.
    """

    name: str
    config: str | None
    split: str
    stream: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.split})"


def read_hub(hub: HubSplit, columns: tuple[str, ...]) -> Iterator[Row]:
    """The rows of a hub split; with the named columns alone where it is streamed.

    Raises:
        DataError: The hub cannot be reached, or does not serve the data set.
    """
    import datasets

    _probe_hub(hub)
    remedy = f"Point task.path at a mended local copy of {hub.name}."
    try:
        options = {"streaming": True, "columns": list(columns)} if hub.stream else {}
        rows = datasets.load_dataset(hub.name, hub.config, split=hub.split, **options)
        for number, fields in enumerate(rows, start=1):
            yield Row(str(hub), number, fields, remedy)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{hub} could not be loaded from the hub ({type(error).__name__}: {error}). Try again, "
            f"or point task.path at a local copy of {hub.name}."
        ) from error


def _probe_hub(hub: HubSplit) -> None:
    fault = hub_fault()
    if fault is not None:
        raise Unreachable(
            f"{hub} could not be loaded: {fault}. Connect to it, or point task.path at a local "
            f"copy of {hub.name}."
        )


def data_path(path: str) -> Path:
    """The file or folder that `task.path` names.

    Raises:
        DataError: There is nothing there.
    """
    found = Path(path).expanduser()
    if not found.exists():
        raise DataError(
            f"task.path: {path!r} does not exist. Give a .jsonl, .json or .parquet file, or a "
            "folder with the data set's files, or leave task.path out to ask the hub."
        )
    return found


def split_files(folder: Path, split: str) -> list[Path]:
    """The files of one split in a folder: `train.jsonl`, or `data/train-00000-of-00010.parquet`.

    Raises:
        DataError: There are none.
    """
    pattern = re.compile(rf"{split}([-_.].*)?", re.IGNORECASE)
    files = [
        file
        for subfolder in _SUBFOLDERS
        for file in sorted((folder / subfolder).glob("*"))
        if _format(file) in SUFFIXES and pattern.fullmatch(file.stem) and file.is_file()
    ]
    if not files:
        present = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
        raise DataError(
            f"task.path: the folder {folder} has no file of the {split} split; it holds {present}. "
            f"Name one {split}.jsonl, {split}.json or {split}.parquet, or point task.path at "
            "another folder or file."
        )
    return files


def read_files(files: Iterable[Path], columns: tuple[str, ...]) -> Iterator[Row]:
    """The rows of local files, one file after the other.

    Raises:
        DataError: A file cannot be read in the format that its name says.
    """
    readers = {".jsonl": _jsonl, ".jsonl.gz": _jsonl, ".json": _json, ".parquet": _parquet}
    for file in files:
        if _format(file) not in readers:
            raise DataError(
                f"task.path: {file} is of no known format. Expected a file ending in "
                f"{', '.join(SUFFIXES)}."
            )
        for number, fields in readers[_format(file)](file, columns):
            if not isinstance(fields, dict):
                raise DataError(
                    f"{file}, row {number}: got {type(fields).__name__}, expected an object with "
                    f"the fields {', '.join(columns)}. Mend or remove the row."
                )
            yield Row(str(file), number, fields, "Mend or remove the row.")


def _format(file: Path) -> str:
    return ".jsonl.gz" if file.name.endswith(".jsonl.gz") else file.suffix


def _jsonl(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, Any]]:
    opened = gzip.open if file.suffix == ".gz" else open
    try:
        with opened(file, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _decode(file, number, line)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise _unreadable(file, error) from error


def _decode(file: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise DataError(
            f"{file}, row {number}: not a JSON object ({error}). Mend or remove the row."
        ) from error


def _json(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, Any]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error
    if not isinstance(content, list):
        raise DataError(
            f"{file}: got {type(content).__name__}, expected a list of objects. Write it as a "
            "list, or as JSON Lines in a file that ends in .jsonl."
        )
    yield from enumerate(content, start=1)


def _parquet(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, Any]]:
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    try:
        table = pyarrow.parquet.ParquetFile(file)
        present = [column for column in columns if column in table.schema_arrow.names]
        number = 0
        for batch in table.iter_batches(columns=present):
            for fields in batch.to_pylist():
                number += 1
                yield number, fields
    except (OSError, pyarrow.ArrowException) as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: Exception) -> DataError:
    return DataError(
        f"task.path: {file} cannot be read ({type(error).__name__}: {error}). Check that it is "
        "complete and that its name ends in its format."
    )
