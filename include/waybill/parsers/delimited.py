"""Messages that are one record each of delimited text (CSV, TSV).

What a record is, Python's `csv` says, in its strict mode: quotes around a field may hold delimiters and line breaks, a
quote within them is doubled, a quote elsewhere is text, and line breaks at the end of the message do not count. A
message is never more than one record, nor part of one. Records without quotes and line breaks are split by Arrow; those
that a pattern knows for well-formed are read by Arrow's CSV reader; the rest is read one by one.
"""

from __future__ import annotations

import csv
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from waybill.config import Columns, DelimitedParser
from waybill.parsers.column_texts import TextColumns
from waybill.parsers.protocol import Parsed, Reason, reason
from waybill.parsers.texts import NO_TEXT, decode_utf8, read_fields, spread

__all__ = ["DelimitedMessages"]

# A field of a megabyte is no fault. The limit is the process's, so it is only ever raised.
csv.field_size_limit(max(csv.field_size_limit(), 2**31 - 1))

_MOST_COLUMNS = 500
"""Beyond, the pattern is too large for RE2."""
_LINE_BREAKS = "\r\n"
_Text = TypeVar("_Text", str, pa.Array)


class _Fields(NamedTuple):
    """Strings, each null where it is not known."""

    texts: tuple[pa.Array, ...]
    """Of the fields that are wanted, the event time's first."""
    error: pa.Array


class DelimitedMessages:
    """The parser `delimited`: event time, message id and typed columns by column."""

    name = "delimited"

    def __init__(self, config: DelimitedParser, columns: Columns) -> None:
        self._delimiter, self._quote = config.delimiter, config.quote
        self._special = _LINE_BREAKS + (config.quote or "")
        self._format = config.event_time.format
        self._columns = len(config.columns)
        self._well_formed = _well_formed(config.delimiter, config.quote, self._columns)
        self._typed = TextColumns(columns)
        self._time_name = ".".join(config.event_time.field)
        self._id_name = None if config.message_id is None else ".".join(config.message_id)
        names = (self._time_name, *(() if self._id_name is None else (self._id_name,)), *self._typed.fields())
        # A field may be more than one of them.
        self._wanted = {name: config.columns.index(name) for name in names}

    def parse(self, messages: pa.RecordBatch) -> Parsed:
        """See `Parser.parse`."""
        texts, error = decode_utf8(messages.column("value"))
        trimmed = pc.utf8_rtrim(texts, _LINE_BREAKS)
        fields = self._split_or_read(texts, trimmed) if _holds(trimmed, self._special) else self._split(trimmed)
        error = pc.coalesce(error, fields.error)
        texts = dict(zip(self._wanted, fields.texts, strict=True))
        parsed = read_fields(
            texts[self._time_name],
            None if self._id_name is None else texts[self._id_name],
            error,
            time_name=self._time_name,
            written=self._format,
        )
        return self._typed.add_to(parsed, texts)

    def _split_or_read(self, texts: pa.Array, trimmed: pa.Array) -> _Fields:
        special = pc.match_substring_regex(trimmed, f"[{_in_class(self._special)}]")
        plain = self._split(pc.if_else(special, NO_TEXT, trimmed))
        special = pc.fill_null(special, False)
        quoted, rest = pc.if_else(special, trimmed, NO_TEXT), pc.if_else(special, texts, NO_TEXT)
        bulk = self._read_well_formed(quoted)
        if bulk is not None:
            rest = pc.if_else(bulk.texts[0].is_valid(), NO_TEXT, rest)
            plain = _either(plain, bulk)
        return _either(plain, self._read(rest))

    def _read_well_formed(self, texts: pa.Array) -> _Fields | None:
        """Records that are as a pattern has it, all in one go; None if that cannot be done."""
        if self._well_formed is None:
            return None
        right = pc.fill_null(pc.match_substring_regex(texts, self._well_formed), False)
        lines = pc.binary_join_element_wise(texts.filter(right), "", "\n")
        # The CSV reader drops a byte order mark, and `csv` does not.
        if not len(lines) or lines[0].as_py().startswith("\ufeff"):
            return None
        try:
            table = self._read_lines(lines)
        except pa.ArrowException:  # no message may end a run: they are read one by one then
            return None
        if table.num_rows != len(lines):
            return None
        found = (table.column(str(at)).combine_chunks() for at in self._wanted.values())
        return _Fields(tuple(spread(field, right) for field in found), pa.nulls(len(texts), pa.string()))

    def _read_lines(self, lines: pa.Array) -> pa.Table:
        start, *_, end = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset : lines.offset + len(lines) + 1]
        data = lines.buffers()[2].slice(start, end - start)
        wanted = {str(at): pa.string() for at in self._wanted.values()}
        return pyarrow.csv.read_csv(
            pa.BufferReader(data),
            # In one block: a record never ends where a block does.
            pyarrow.csv.ReadOptions(
                use_threads=False, block_size=len(data) + 1, column_names=[str(n) for n in range(self._columns)]
            ),
            pyarrow.csv.ParseOptions(
                delimiter=self._delimiter, quote_char=self._quote, newlines_in_values=True, ignore_empty_lines=False
            ),
            pyarrow.csv.ConvertOptions(include_columns=list(wanted), column_types=wanted),
        )

    def _split(self, texts: pa.Array) -> _Fields:
        """Records in which every delimiter divides fields."""
        fields = pc.split_pattern(texts, self._delimiter)
        counts = pc.list_value_length(fields)
        right = pc.equal(counts, self._columns)
        if pc.all(right, skip_nulls=False).as_py():
            return _Fields(self._take(fields), pa.nulls(len(texts), pa.string()))
        error = pc.binary_join_element_wise(*_wrong_count(counts.cast(pa.string()), self._columns), "")
        right = pc.fill_null(right, False)
        found = self._take(fields.filter(right))
        return _Fields(tuple(spread(field, right) for field in found), pc.if_else(right, NO_TEXT, error))

    def _take(self, fields: pa.Array) -> tuple[pa.Array, ...]:
        return tuple(pc.list_element(fields, at) for at in self._wanted.values())

    def _read(self, texts: pa.Array) -> _Fields:
        """Any records, one by one."""
        found: list[list[str | None]] = [[None] * len(texts) for _ in self._wanted]
        errors: list[str | None] = [None] * len(texts)
        for row, text in enumerate(texts.to_pylist()):
            if text is None:
                continue
            try:
                fields = self._read_record(text)
            except csv.Error as fault:
                errors[row] = reason(Reason.NOT_DELIMITED, _explain(str(fault)))
                continue
            if len(fields) != self._columns:
                errors[row] = "".join(_wrong_count(str(len(fields)), self._columns))
                continue
            for field, at in zip(found, self._wanted.values(), strict=True):
                field[row] = fields[at]
        return _Fields(tuple(pa.array(field, pa.string()) for field in found), pa.array(errors, pa.string()))

    def _read_record(self, text: str) -> list[str]:
        delimiter, quote = self._delimiter, self._quote
        if quote is None:
            lines = csv.reader((text,), strict=True, delimiter=delimiter, quotechar=None, quoting=csv.QUOTE_NONE)
        else:
            lines = csv.reader((text,), strict=True, delimiter=delimiter, quotechar=quote)
        return next(lines, None) or [""]


def _well_formed(delimiter: str, quote: str | None, columns: int) -> str | None:
    """The pattern of records that Arrow and Python's `csv` read alike; None if Arrow cannot read any."""
    if quote is None or not (delimiter + quote).isascii() or columns > _MOST_COLUMNS:
        return None
    q, special = _in_class(quote), _in_class(delimiter + quote + _LINE_BREAKS)
    field = f"(?:{q}(?:[^{q}]|{q}{q})*{q}|[^{special}]*)"
    return f"^{field}(?:{_in_class(delimiter)}{field}){{{columns - 1}}}$"


def _in_class(characters: str) -> str:
    """As RE2 takes any character, whatever it means in a pattern."""
    return "".join(f"\\x{{{ord(character):x}}}" for character in characters)


def _either(a: _Fields, b: _Fields) -> _Fields:
    texts = tuple(pc.coalesce(first, second) for first, second in zip(a.texts, b.texts, strict=True))
    return _Fields(texts, pc.coalesce(a.error, b.error))


def _holds(texts: pa.Array, characters: str) -> bool:
    """Whether one of the characters is anywhere in the texts: a look at their bytes, without a look at each."""
    if not texts.nbytes or any(ord(character) > 127 for character in characters):
        return True
    offsets, data = (pa.py_buffer(b"") if buffer is None else buffer for buffer in texts.buffers()[1:])
    bounds = np.frombuffer(offsets, np.int32)[[texts.offset, texts.offset + len(texts)]]
    found = np.frombuffer(data, np.uint8)[bounds[0] : bounds[1]]
    return any(bool((found == ord(character)).any()) for character in characters)


def _wrong_count(found: _Text, wanted: int) -> tuple[str, _Text, str]:
    return reason(Reason.WRONG_COLUMN_COUNT, "found "), found, f" columns where {wanted} are expected"


def _explain(fault: str) -> str:
    if fault.startswith("new-line character"):
        return "a line break outside of quotes"
    return "a quote is not closed" if fault == "unexpected end of data" else fault
