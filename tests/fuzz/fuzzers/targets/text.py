"""Messages of the parsers `delimited` and `regex`, compared with Python's `csv` and `re`."""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Sequence

from fuzzers.engine import Target
from fuzzers.mutation import Mutator, text
from fuzzers.targets.parsed import columns_of, parse, parser_config
from waybill.config.models import EventTimeFormat
from waybill.parsers import build_parser
from waybill.parsers.timestamps import BadEventTime, to_microseconds

_FIELDS = ["id", "at", "s"]
_DELIMITED = [
    {"delimiter": ",", "quote": '"'}, {"delimiter": ",", "quote": None}, {"delimiter": "\t", "quote": "'"},
    {"delimiter": "ä", "quote": '"'}, {"delimiter": "|", "quote": "ß"},
]  # fmt: skip
_COLUMNS = columns_of(s="string")
_BOM = "\ufeff"


def _delimited(**keys: object) -> object:
    time = {"field": "at", "format": "epoch_ms"}
    return parser_config(name="delimited", columns=_FIELDS, event_time=time, message_id="id", **keys)


PARSERS = [(build_parser(_delimited(**each), _COLUMNS), each) for each in _DELIMITED]  # type: ignore[arg-type]
_read_time = to_microseconds(EventTimeFormat.EPOCH_MILLISECONDS)


def _make(chance: random.Random) -> bytes:
    """Return the number of a dialect and a record of it."""
    number = chance.randrange(len(_DELIMITED))
    delimiter, quote = str(_DELIMITED[number]["delimiter"]), _DELIMITED[number]["quote"] or '"'
    fields = [_field(chance), chance.choice(["0", "1700000000000", "1.5", "", "x"]), _field(chance)]
    fields += [""] * chance.choice([0] * 9 + [1])
    fields = [f"{quote}{each.replace(quote, quote * 2)}{quote}" if chance.random() < 0.4 else each for each in fields]
    record = delimiter.join(fields)
    if chance.random() < 0.1:
        record = _BOM + record
    record += chance.choice(["", "", "\n", "\r\n", "\r", "\n\n"])
    body = record.encode()
    if chance.random() < 0.4:
        tokens = [each.encode() for each in (delimiter, quote, "\n", "\r", "\0", _BOM, "\u2028", "\x85", " ")]
        body = Mutator([body], [*tokens, b"\xff"]).changed(body, chance)
    return bytes([number]) + body


def _field(chance: random.Random) -> str:
    return chance.choice(["", "a", "x y", _BOM, " ", text(chance)])


def _expected(value: bytes, dialect: dict[str, object]) -> tuple[int, str | None, str] | None:
    """Return the time, the id and the column of a record; None if it goes to quarantine."""
    try:
        # A byte order mark is a sign of some editors and exports, and no part of the first field.
        record = value.decode().removeprefix(_BOM)
    except UnicodeDecodeError:
        return None
    line = record.rstrip("\r\n")
    quote, delimiter = dialect["quote"], str(dialect["delimiter"])
    try:
        if quote is None:
            rows = list(csv.reader([line], strict=True, delimiter=delimiter, quoting=csv.QUOTE_NONE))
        else:
            rows = list(csv.reader([record], strict=True, delimiter=delimiter, quotechar=str(quote)))
    except csv.Error:
        return None
    fields = rows[0] if rows else [""]
    if len(rows) > 1 or len(fields) != len(_FIELDS):
        return None
    try:
        return _read_time(fields[1]), fields[0] or None, fields[2]
    except BadEventTime:
        return None


def _check(inputs: Sequence[bytes]) -> None:
    """Oracle: Python's csv in strict mode, for a record without its byte order mark."""
    for number, (parser, dialect) in enumerate(PARSERS):
        values = [each[1:] for each in inputs if each and each[0] % len(PARSERS) == number]
        if not values:
            continue
        for value, row in zip(values, parse(parser, values, _COLUMNS), strict=True):
            expected = _expected(value, dialect)
            found = None if row["error"] is not None else (row["time"], row["id"], row["s"])
            if expected is not None and found is not None and not expected[2]:
                found, expected = (*found[:2], ""), (*expected[:2], "")  # an empty text may be null
            assert found == expected, f"{dialect}: {value!r}: {row}, expected {expected}"


# --- regex ------------------------------------------------------------------------------------------------------------

_PATTERN = r"^(?P<at>[0-9.]*) (?:id=(?P<id>[^ ]*) )?(?P<s>[a-zA-Zä]+)[ \t]*(?P<n>-?[0-9]{1,3})?$"
_REGEX_COLUMNS = columns_of(s="string")
REGEX_PARSER = build_parser(
    parser_config(name="regex", pattern=_PATTERN, event_time={"field": "at", "format": "epoch_ms"}, message_id="id"),
    _REGEX_COLUMNS,
)
_COMPILED = re.compile(_PATTERN.replace("$", r"\Z"))
_mutate = Mutator(
    [b"1700000000000 id=x text 7", b"1.5 text", b" id= a", b"0 a\t\t-999"],
    [b" ", b"id=", b"\n", b"\r", b"\0", "ä".encode(), b"\xff", "٣".encode(), b"-", b"9" * 50, b"\xed\xa0\x80"],
)


def _check_regex(inputs: Sequence[bytes]) -> None:
    """Oracle: Python's re. The pattern has no construct that RE2 and re read differently."""
    for value, row in zip(inputs, parse(REGEX_PARSER, inputs, _REGEX_COLUMNS), strict=True):
        try:
            match = _COMPILED.search(value.decode())
            expected = None if match is None else (_read_time(match["at"]), match["id"] or None, match["s"])
        except (UnicodeDecodeError, BadEventTime):
            expected = None
        found = None if row["error"] is not None else (row["time"], row["id"], row["s"])
        assert found == expected, f"{value!r}: {row}, expected {expected}"


DELIMITED = Target("delimited", _make, _check)
REGEX = Target("regex", _mutate, _check_regex)
