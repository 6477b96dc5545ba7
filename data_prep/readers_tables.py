"""Readers of tables: Parquet by row groups, Arrow IPC files and streams by record batches.

Every row is a document or a rejection. A damaged row group, batch or stream yields its rows before the damage and one
rejection for the rest of it. What a file says about itself is checked before it is followed, because a wrong offset
that is read unchecked ends the process.
"""

from typing import Any

from data_prep.records import Damaged, Fields, InputFile, Records, Rejected, Stored, open_file

_BATCH_BYTES = 4 << 20  # of text turned into Python objects at once
_MAX_ROWS = 4096
_BUFFER = 1 << 20  # of a column's stored bytes; without it a whole row group is held
_ARROW_FILE = b"ARROW1"
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"


def read_parquet(file: InputFile, fields: Fields, start: int, stop: int | None) -> Records:
    """The rows of row groups [start, stop). A row's place is its number in the file."""
    with open_file(file) as stream:
        parquet = _open_parquet(stream)
        groups = [parquet.metadata.row_group(number) for number in range(parquet.num_row_groups)]
        row = sum(group.num_rows for group in groups[:start])
        for number in range(start, len(groups) if stop is None else min(stop, len(groups))):
            yield from _read_group(stream, parquet, number, groups[number], fields, file, row)
            row += groups[number].num_rows


def _read_group(
    stream: Stored, parquet: Any, number: int, group: Any, fields: Fields, file: InputFile, row: int
) -> Records:
    """The rows of one row group, from `row` on; where it is damaged, a rejection in place of the rest of it."""
    present = [name for name in dict.fromkeys(fields) if name in parquet.schema_arrow.names]
    if fields.text not in present:
        yield from (Rejected("no_text_field", f"{file.name}:{row + k}") for k in range(group.num_rows))
        return
    rows = max(1, min(_MAX_ROWS, _BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)))
    try:
        for batch in parquet.iter_batches(batch_size=rows, row_groups=[number], columns=present):
            for record in batch_records(batch, fields, file, row):
                yield record
                row += 1
    except Exception:  # pyarrow has no one error for what is wrong with a file
        stream.raise_failure()
        yield Rejected("damaged_archive", f"{file.name}:{row}")


def parquet_groups(file: InputFile) -> list[int]:
    """The stored size of each row group. Damaged when the file has no readable footer."""
    with open_file(file) as stream:
        metadata = _open_parquet(stream).metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return [sum(group.column(k).total_compressed_size for k in range(group.num_columns)) for group in groups]


def _open_parquet(stream: Stored) -> Any:
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER, page_checksum_verification=True)
    except Exception:
        stream.raise_failure()
        raise Damaged("damaged_archive", 0) from None


def read_arrow(file: InputFile, fields: Fields, start: int, stop: int | None) -> Records:
    """The rows of record batches [start, stop). A row's place is BATCH.ROW."""
    with open_file(file) as stream:
        if not _is_file(stream):
            yield from _read_stream(stream, fields, file)
            return
        reader = _open_arrow(stream)
        last = reader.num_record_batches if stop is None else min(stop, reader.num_record_batches)
        for number in range(start, last):
            try:
                yield from batch_records(reader.get_batch(number), fields, file, 0, f"{number}.")
            except Exception:
                stream.raise_failure()
                yield Rejected("damaged_archive", f"{file.name}:{number}")


def _read_stream(stream: Stored, fields: Fields, file: InputFile) -> Records:
    """All batches of an IPC stream. Without its end mark it may have been cut anywhere, so a missing one is damage."""
    import pyarrow as pa

    number = 0
    try:
        for batch in pa.ipc.open_stream(pa.PythonFile(stream, "r")):
            yield from batch_records(batch, fields, file, 0, f"{number}.")
            number += 1
        ended = stream.tell()
        stream.seek(-len(_STREAM_END), 2)
        whole = stream.read(len(_STREAM_END)) == _STREAM_END and stream.tell() == ended
    except Exception:
        stream.raise_failure()
        whole = False
    if not whole:
        yield Rejected("damaged_archive", f"{file.name}:{number}")


def arrow_batches(file: InputFile) -> int:
    """How many record batches can be read on their own: 0 for a stream, which has to be read from its beginning."""
    with open_file(file) as stream:
        return int(_open_arrow(stream).num_record_batches) if _is_file(stream) else 0


def _is_file(stream: Stored) -> bool:
    magic = stream.read(len(_ARROW_FILE))
    stream.seek(0)
    return magic == _ARROW_FILE


def _open_arrow(stream: Stored) -> Any:
    import pyarrow as pa

    try:
        return pa.ipc.open_file(pa.PythonFile(stream, "r"))
    except Exception:
        stream.raise_failure()
        raise Damaged("damaged_archive", 0) from None


def batch_records(batch: Any, fields: Fields, file: InputFile, first: int, prefix: str = "") -> Records:
    """The rows of a record batch, in slices of a few megabytes; a row's place is its number from `first` on."""
    rows = max(1, min(_MAX_ROWS, _BATCH_BYTES * batch.num_rows // max(1, batch.nbytes)))
    for at in range(0, batch.num_rows, rows):
        yield from _rows(batch.slice(at, rows), fields, file, first + at, prefix)


def _rows(batch: Any, fields: Fields, file: InputFile, first: int, prefix: str) -> Records:
    topic = file.topic
    names = [name for name in dict.fromkeys(fields) if name is not None]
    columns = [_values(batch, name) for name in names]
    for row, values in enumerate(zip(*columns, strict=True), first):
        where = f"{file.name}:{prefix}{row}"
        record = dict(zip(names, values, strict=True))
        try:
            for name, value in record.items():
                if type(value) is bytes:
                    record[name] = value.decode("utf-8")
        except UnicodeDecodeError:
            yield Rejected("not_utf8", where)
            continue
        yield fields.document(record, where, topic)


def _values(batch: Any, name: str) -> list[Any]:
    """A column as Python values, strings as bytes: Arrow does not promise that they are UTF-8."""
    import pyarrow as pa
    from pyarrow import types

    index = batch.schema.get_field_index(name)
    if index < 0:
        return [None] * int(batch.num_rows)
    column = batch.column(index)
    if types.is_string(column.type):
        column = column.view(pa.binary())
    elif types.is_large_string(column.type):
        column = column.view(pa.large_binary())
    elif types.is_string_view(column.type):
        column = column.view(pa.binary_view())
    column.validate(full=True)
    return list(column.to_pylist())
