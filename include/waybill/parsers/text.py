"""The parsers of text: `delimited` reads one record of delimited text (CSV, TSV), `regex` the groups of a pattern.

RE2 matches the pattern in Arrow. Its time is proportional to the length of the text, for any pattern, so no message can
stop a run.

The syntax of a delimited record is that of Python's `csv` in strict mode: a field in quotes may contain delimiters and
line breaks, a quote in such a field is doubled, a quote elsewhere is plain text, and line breaks at the end of the
message are ignored. Arrow splits records without quotes and line breaks. Arrow's CSV reader reads records that match a
pattern of well-formed records. `csv` reads the others one by one.
"""

from __future__ import annotations

import csv
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from waybill.config.models import Columns, DelimitedParser, EventTimeFormat, RegexParser
from waybill.parsers.column_texts import NO_TEXT, TextColumns, scatter
from waybill.parsers.protocol import Parsed, Reason, reason
from waybill.parsers.timestamps import convert_times

# A field of a megabyte is allowed. The limit is global in the process, so it is never lowered.
csv.field_size_limit(max(csv.field_size_limit(), 2**31 - 1))

_MAX_PATTERN_COLUMNS = 500
"""The pattern of a record with more columns is too large for RE2."""
_LINE_BREAKS = "\r\n"
_BYTE_ORDER_MARK = "\ufeff"
_Text = TypeVar("_Text", str, pa.Array)


def decode_utf8(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return binary values as strings, and errors for those that are not UTF-8. In each row one of the two is null.

    A byte order mark before a text is no part of it: some editors and libraries write one.
    """
    texts, errors = _decode(values)
    marked = pc.starts_with(texts, _BYTE_ORDER_MARK)
    if pc.any(marked).as_py():
        texts = pc.if_else(marked, pc.utf8_slice_codeunits(texts, 1), texts)
    return texts, errors


def _decode(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    try:
        return values.cast(pa.string()), pa.nulls(len(values), pa.string())
    except pa.ArrowInvalid:  # one value is not UTF-8, and Arrow does not report which one
        pass
    texts: list[str | None] = []
    errors: list[str | None] = []
    for value in values.to_pylist():
        try:
            texts.append(value.decode())
            errors.append(None)
        except UnicodeDecodeError as error:
            texts.append(None)
            errors.append(reason(Reason.NOT_UTF8, f"{error.reason} at byte {error.start}"))
    return pa.array(texts, pa.string()), pa.array(errors, pa.string())


def parse_fields(
    times: pa.Array, ids: pa.Array | None, error: pa.Array, *, time_name: str, time_format: EventTimeFormat
) -> Parsed:
    """Return event times, ids and errors of messages from the texts of two fields. The arrays have one length.

    `times`: an empty text is a missing time. `ids`: an empty text is a missing id; None if no field has ids. `error`:
    earlier errors; the texts of a message with an error are ignored.
    """
    missing = pa.scalar(reason(Reason.EVENT_TIME_MISSING, f"field {time_name} is empty"))
    empty = pc.fill_null(pc.equal(times, ""), True)
    error = pc.coalesce(error, pc.if_else(empty, missing, NO_TEXT))
    ids = pa.nulls(len(times), pa.string()) if ids is None else pc.if_else(pc.equal(ids, ""), NO_TEXT, ids)
    if error.null_count == len(error):
        event_time, errors = convert_times(times, time_format)
        return Parsed(event_time, ids, _with_errors(error, errors))
    present = error.is_null()
    event_time, errors = convert_times(times.filter(present), time_format)
    new_errors = _with_errors(pa.nulls(len(event_time), pa.string()), errors)
    return Parsed(scatter(event_time, present), ids, pc.coalesce(error, scatter(new_errors, present)))


def _with_errors(error: pa.Array, errors: list[tuple[int, str]]) -> pa.Array:
    if not errors:
        return error
    texts = error.to_pylist()
    for index, message in errors:
        texts[index] = message
    return pa.array(texts, pa.string())


class _TextFields(NamedTuple):
    """The texts of the fields of a batch, and errors; each text is null if it is not known."""

    texts: tuple[pa.Array, ...]
    """An array of strings for each field to read, the event time's first."""
    error: pa.Array


class DelimitedMessages:
    """The parser `delimited`: event time, message id and typed columns are columns of the record."""

    name = "delimited"

    def __init__(self, config: DelimitedParser, columns: Columns) -> None:
        self._delimiter, self._quote = config.delimiter, config.quote
        self._special = _LINE_BREAKS + (config.quote or "")
        self._time_format = config.event_time.format
        self._columns = len(config.columns)
        self._well_formed = _well_formed(config.delimiter, config.quote, self._columns)
        self._typed = TextColumns(columns)
        self._time_name = ".".join(config.event_time.field)
        self._id_name = None if config.message_id is None else ".".join(config.message_id)
        names = (self._time_name, *(() if self._id_name is None else (self._id_name,)), *self._typed.fields())
        # One field may be used more than once.
        self._positions = {name: config.columns.index(name) for name in names}

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`."""
        texts, error = decode_utf8(messages.column("value"))
        trimmed = pc.utf8_rtrim(texts, _LINE_BREAKS)
        fields = self._split_or_read(texts, trimmed) if _holds(trimmed, self._special) else self._split(trimmed)
        error = pc.coalesce(error, fields.error)
        texts = dict(zip(self._positions, fields.texts, strict=True))
        parsed = parse_fields(
            texts[self._time_name],
            None if self._id_name is None else texts[self._id_name],
            error,
            time_name=self._time_name,
            time_format=self._time_format,
        )
        return self._typed.add_to(parsed, texts)

    def _split_or_read(self, texts: pa.Array, trimmed: pa.Array) -> _TextFields:
        special = pc.match_substring_regex(trimmed, f"[{_in_class(self._special)}]")
        plain = self._split(pc.if_else(special, NO_TEXT, trimmed))
        special = pc.fill_null(special, False)
        quoted, rest = pc.if_else(special, trimmed, NO_TEXT), pc.if_else(special, texts, NO_TEXT)
        bulk = self._read_well_formed(quoted)
        if bulk is not None:
            rest = pc.if_else(bulk.texts[0].is_valid(), NO_TEXT, rest)
            plain = _either(plain, bulk)
        return _either(plain, self._read(rest))

    def _read_well_formed(self, texts: pa.Array) -> _TextFields | None:
        """Read the records that match the pattern of well-formed records as one batch; None if that is not possible."""
        if self._well_formed is None:
            return None
        matching = pc.fill_null(pc.match_substring_regex(texts, self._well_formed), False)
        lines = pc.binary_join_element_wise(texts.filter(matching), "", "\n")
        # Arrow's CSV reader removes a byte order mark, and `csv` does not.
        if not len(lines) or lines[0].as_py().startswith("\ufeff"):
            return None
        try:
            table = self._read_lines(lines)
        except pa.ArrowException:  # no message may end a run, so all of them are read one by one
            return None
        if table.num_rows != len(lines):
            return None
        found = (table.column(str(at)).combine_chunks() for at in self._positions.values())
        return _TextFields(tuple(scatter(field, matching) for field in found), pa.nulls(len(texts), pa.string()))

    def _read_lines(self, lines: pa.Array) -> pa.Table:
        start, *_, end = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset : lines.offset + len(lines) + 1]
        data = lines.buffers()[2].slice(start, end - start)
        types = {str(at): pa.string() for at in self._positions.values()}
        return pyarrow.csv.read_csv(
            pa.BufferReader(data),
            # One block, so that no record crosses the end of a block.
            pyarrow.csv.ReadOptions(
                use_threads=False, block_size=len(data) + 1, column_names=[str(n) for n in range(self._columns)]
            ),
            pyarrow.csv.ParseOptions(
                delimiter=self._delimiter, quote_char=self._quote, newlines_in_values=True, ignore_empty_lines=False
            ),
            pyarrow.csv.ConvertOptions(include_columns=list(types), column_types=types),
        )

    def _split(self, texts: pa.Array) -> _TextFields:
        """Split records in which every delimiter separates fields."""
        fields = pc.split_pattern(texts, self._delimiter)
        counts = pc.list_value_length(fields)
        complete = pc.equal(counts, self._columns)
        if pc.all(complete, skip_nulls=False).as_py():
            return _TextFields(self._take(fields), pa.nulls(len(texts), pa.string()))
        error = pc.binary_join_element_wise(*_wrong_count(counts.cast(pa.string()), self._columns), "")
        complete = pc.fill_null(complete, False)
        found = self._take(fields.filter(complete))
        return _TextFields(tuple(scatter(field, complete) for field in found), pc.if_else(complete, NO_TEXT, error))

    def _take(self, fields: pa.Array) -> tuple[pa.Array, ...]:
        return tuple(pc.list_element(fields, at) for at in self._positions.values())

    def _read(self, texts: pa.Array) -> _TextFields:
        """Read any records, one by one."""
        found: list[list[str | None]] = [[None] * len(texts) for _ in self._positions]
        errors: list[str | None] = [None] * len(texts)
        for row, text in enumerate(texts.to_pylist()):
            if text is None:
                continue
            try:
                fields = self._read_record(text)
            except csv.Error as error:
                errors[row] = reason(Reason.NOT_DELIMITED, _explain(str(error)))
                continue
            if len(fields) != self._columns:
                errors[row] = "".join(_wrong_count(str(len(fields)), self._columns))
                continue
            for field, at in zip(found, self._positions.values(), strict=True):
                field[row] = fields[at]
        return _TextFields(tuple(pa.array(field, pa.string()) for field in found), pa.array(errors, pa.string()))

    def _read_record(self, text: str) -> list[str]:
        delimiter, quote = self._delimiter, self._quote
        if quote is None:
            lines = csv.reader((text,), strict=True, delimiter=delimiter, quotechar=None, quoting=csv.QUOTE_NONE)
        else:
            lines = csv.reader((text,), strict=True, delimiter=delimiter, quotechar=quote)
        return next(lines, None) or [""]


def _well_formed(delimiter: str, quote: str | None, columns: int) -> str | None:
    """Return the pattern of records that Arrow and Python's `csv` read alike; None if Arrow cannot read any."""
    if quote is None or not (delimiter + quote).isascii() or columns > _MAX_PATTERN_COLUMNS:
        return None
    q, special = _in_class(quote), _in_class(delimiter + quote + _LINE_BREAKS)
    field = f"(?:{q}(?:[^{q}]|{q}{q})*{q}|[^{special}]*)"
    return f"^{field}(?:{_in_class(delimiter)}{field}){{{columns - 1}}}$"


def _in_class(characters: str) -> str:
    """Return the characters for a character class of RE2, each as its code."""
    return "".join(f"\\x{{{ord(character):x}}}" for character in characters)


def _either(a: _TextFields, b: _TextFields) -> _TextFields:
    texts = tuple(pc.coalesce(first, second) for first, second in zip(a.texts, b.texts, strict=True))
    return _TextFields(texts, pc.coalesce(a.error, b.error))


def _holds(texts: pa.Array, characters: str) -> bool:
    """Return whether one of the characters may be in one of the texts, by a scan of the bytes of the whole array."""
    if not texts.nbytes or any(ord(character) > 127 for character in characters):
        return True
    offsets, data = (pa.py_buffer(b"") if buffer is None else buffer for buffer in texts.buffers()[1:])
    bounds = np.frombuffer(offsets, np.int32)[[texts.offset, texts.offset + len(texts)]]
    found = np.frombuffer(data, np.uint8)[bounds[0] : bounds[1]]
    return any(bool((found == ord(character)).any()) for character in characters)


def _wrong_count(found: _Text, expected: int) -> tuple[str, _Text, str]:
    return reason(Reason.WRONG_COLUMN_COUNT, "found "), found, f" columns where {expected} are expected"


def _explain(error: str) -> str:
    """Return an error of `csv` in words that do not depend on how it reads."""
    if error.startswith("new-line character"):
        return "a line break outside of quotes"
    return "a quote is not closed" if error == "unexpected end of data" else error


_NOT_MATCHED = reason(Reason.PATTERN_NOT_FOUND, "the pattern is found nowhere in the message")


class RegexMessages:
    """The parser `regex`: event time, message id and columns are named groups of the pattern's first match."""

    name = "regex"

    def __init__(self, config: RegexParser, columns: Columns) -> None:
        self._columns = TextColumns(columns)
        self._pattern = config.pattern
        self._time_format = config.event_time.format
        self._time = ".".join(config.event_time.field)
        self._id = None if config.message_id is None else ".".join(config.message_id)

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`."""
        texts, error = decode_utf8(messages.column("value"))
        groups = pc.extract_regex(texts, self._pattern)
        error = pc.coalesce(error, pc.if_else(groups.is_valid(), NO_TEXT, pa.scalar(_NOT_MATCHED)))
        times = pc.struct_field(groups, self._time)
        ids = None if self._id is None else pc.struct_field(groups, self._id)
        parsed = parse_fields(times, ids, error, time_name=self._time, time_format=self._time_format)
        return self._columns.add_to(parsed, {name: pc.struct_field(groups, name) for name in self._columns.fields()})
