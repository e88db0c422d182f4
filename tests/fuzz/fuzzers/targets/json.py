"""Messages of the parser `json`, compared with Python's own `json`, which keeps digits as text."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from fuzzers.engine import Target
from fuzzers.mutation import EDGES, Mutator, text
from fuzzers.targets.parsed import columns_of, parse, parser_config
from waybill.config.models import EventTimeFormat
from waybill.parsers import build_parser
from waybill.parsers.timestamps import BadEventTime, to_microseconds

_CONFIG = parser_config(name="json", event_time={"field": "a.at", "format": "epoch_ms"}, message_id="id")
_COLUMNS = columns_of(l="long", d="double", s="string", b="boolean", j="json", n="decimal(38,9)", i="list<long>")
_MAX_DEPTH = 400
"""Deeper messages are not compared: the limits of orjson and of Python's json differ."""

_BASE = [
    '{"a":{"at":1700000000000},"id":"x","l":1,"d":1.5,"s":"t","b":true,"j":{"k":[1,null]},"n":"1.5","i":[1,2]}',
    '{"a":{"at":"1700000000000.5"},"id":12345678901234567890123}',
    ' {"id" : 7 , "a" : { "at" : 1 } , "j" : "\\u00e9\\ud83d\\ude00" }\n',
    '{"a":{"at":-1},"id":1.5,"n":0.1234567890123456789,"j":{"id":12345678901234567890123}}',
    '{"a":{"at":1e3},"id":null,"l":5.0,"s":""}',
]
_TOKENS = ['"', "\\", "{", "}", "[", "]", ",", ":", "null", "true", "NaN", "Infinity", "-0", "1e400", "1e-400", "0.1"]
_TOKENS += ["\\ud800", "\\u0000", "\\ud83d\\ude00", "[[[[[[[[", "1" * 19, "9" * 30, "1" * 400, '"id":', '"a":{"at":2}']
_TOKENS += ["-", "+1", "01", "\ufeff", "\x00", "\x1f", " ", "\t", "\u2028", "1E5", "18446744073709551615", ".5", "5."]
_mutate = Mutator([each.encode() for each in _BASE], [*(each.encode() for each in _TOKENS), b"\xff", b"\xed\xa0\x80"])


def _make(chance: random.Random) -> bytes:
    if chance.random() < 0.5:
        return _mutate(chance)
    document = {
        "a": {"at": chance.choice([1, "2", 1.5, _number(chance), text(chance)])},
        "id": _value(chance, 0),
        **{name: _value(chance, 0) for name in "ldsbjni" if chance.random() < 0.7},
    }
    written = json.dumps(document, ensure_ascii=chance.random() < 0.5).encode()
    return written if chance.random() < 0.7 else _mutate.changed(written, chance)


def _number(chance: random.Random) -> Any:
    edge = chance.choice(EDGES) + chance.choice([-1, 0, 1])
    return chance.choice([edge, -edge, edge * 10**20, edge / 1000, float(edge), 1e-7, 1e300])


def _value(chance: random.Random, depth: int) -> Any:
    match chance.randrange(9 if depth < 3 else 6):
        case 0:
            return None
        case 1:
            return chance.random() < 0.5
        case 2 | 3:
            return _number(chance)
        case 4 | 5:
            return text(chance)
        case 6:
            return [_value(chance, depth + 1) for _ in range(chance.randrange(4))]
        case _:
            return {text(chance, 4): _value(chance, depth + 1) for _ in range(chance.randrange(4))}


class _Text(str):
    """A number as it is written."""

    __slots__ = ()


class _Refused(ValueError):
    """JSON that the parser must refuse."""


def _read(value: bytes) -> Any:
    """Return a document with its numbers as text. Raise `ValueError` or `RecursionError` if it must be refused."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        for key, below in found:
            _check_text(key)
            _check(below)
        return dict(found)

    document = json.loads(value.decode(), parse_int=_number_text, parse_float=_number_text, parse_constant=_refuse,
                          object_pairs_hook=pairs)  # fmt: skip
    _check(document)
    return document


def _number_text(written: str) -> _Text:
    if float(written) in (float("inf"), float("-inf")):
        raise _Refused("beyond a float")
    return _Text(written)


def _refuse(name: str) -> Any:
    raise _Refused(name)


def _check(value: Any) -> None:
    if type(value) is str:
        _check_text(value)
    elif type(value) is list:
        for each in value:
            _check(each)


def _check_text(value: str) -> None:
    value.encode()  # UnicodeEncodeError, a ValueError, for a lone surrogate


def _depth(value: bytes) -> int:
    return value.count(b"[") + value.count(b"{")


def _expected(value: bytes) -> dict[str, Any] | None:
    """Return the time, the id and the document of a message; None if it goes to quarantine for one of these."""
    try:
        document = _read(value)
    except (ValueError, RecursionError):
        return None
    if type(document) is not dict:
        return None
    at = document.get("a")
    at = at.get("at") if type(at) is dict else None
    found = document.get("id")
    if at is None or not (found is None or type(found) in (str, _Text)):
        return None
    try:
        time = to_microseconds(EventTimeFormat.EPOCH_MILLISECONDS)(_python(at) if type(at) is _Text else at)
    except BadEventTime:
        return None
    return {"time": time, "id": str(found) if found else None, "document": document}


def _python(written: str) -> int | float:
    """Return a number as orjson reads it: an integer that 64 bits hold, else a float."""
    if not set(written) & set(".eE") and -(1 << 63) <= int(Decimal(written)) < 1 << 64:
        return int(written)
    return float(written)


def _check_plain(values: Sequence[bytes]) -> None:
    """Oracle: Python's json with digits as text. The conversion of times has a target of its own, `times`."""
    for value, row in zip(values, parse(_PLAIN, values), strict=True):
        if _depth(value) > _MAX_DEPTH:
            continue
        expected = _expected(value)
        assert (row["error"] is None) == (expected is not None), f"{value!r}: {row['error']}, expected {expected}"
        if expected is not None:
            assert row["time"] == expected["time"], value
            assert row["id"] == expected["id"] or _same_zero(row["id"], expected["id"]), (value, row["id"])


def _same_zero(one: str | None, other: str | None) -> bool:
    """Whether both are an integer zero: no reader keeps the sign of `-0`."""
    return {one, other} <= {"0", "-0"}


def _check_columns(values: Sequence[bytes]) -> None:
    """Oracle: Python's json; a value is right if its column holds it, and the message of any other is in quarantine."""
    for value, row in zip(values, parse(_TYPED, values, _COLUMNS), strict=True):
        if _depth(value) > _MAX_DEPTH:
            continue
        expected = _expected(value)
        if expected is None:
            assert row["error"] is not None, value
        elif row["error"] is None:
            for name in _COLUMNS:
                _check_column(name, expected["document"].get(name), row[name], value)
        else:
            assert row["error"].startswith("column_wrong_type"), (value, row["error"])


def _check_column(name: str, given: Any, found: Any, value: bytes) -> None:
    shown = (name, given, found, value)
    if given is None:
        assert found is None, shown
    elif name == "j":
        assert _same(given, json.loads(found, parse_int=_Text, parse_float=_Text)), shown
    elif name == "s":
        assert type(given) is str, shown
        assert found == given, shown
    elif name == "b":
        assert found is given, shown
    elif name == "i":
        assert len(found) == len(given), shown
        assert all((a is None and b is None) or a == Decimal(b) for a, b in zip(found, given, strict=True)), shown
    elif name == "d":
        assert found == float(given), shown
    else:
        assert Decimal(found) == Decimal(given), shown


def _same(given: Any, found: Any) -> bool:
    """Whether two documents are equal: integers by their digits, others as floats."""
    if type(given) is _Text and type(found) is _Text:
        if set(given) & set(".eE"):
            return float(given) == float(found)
        return Decimal(given) == Decimal(found)
    if type(given) is not type(found):
        return False
    if type(given) is dict:
        return given.keys() == found.keys() and all(_same(each, found[key]) for key, each in given.items())
    if type(given) is list:
        return len(given) == len(found) and all(map(_same, given, found))
    return bool(given == found)


_PLAIN = build_parser(_CONFIG)
_TYPED = build_parser(_CONFIG, _COLUMNS)

JSON = Target("json", _make, _check_plain)
JSON_COLUMNS = Target("json_columns", _make, _check_columns)
