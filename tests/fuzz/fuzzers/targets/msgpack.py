"""Messages of the parser `msgpack`, compared with the package msgpack in pure Python's types."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from typing import Any

import msgpack

from fuzzers.engine import Target
from fuzzers.mutation import Mutator, edge, text
from fuzzers.targets.parsed import columns_of, parse, parser_config
from waybill.config.models import EventTimeFormat
from waybill.parsers import build_parser
from waybill.parsers.timestamps import BadEventTime, to_microseconds

_COLUMNS = columns_of(l="long", d="double", s="string", b="boolean", j="json", n="decimal(38,9)", y="binary")
_PARSER = build_parser(
    parser_config(name="msgpack", event_time={"field": "at", "format": "epoch_ms"}, message_id="id"), _COLUMNS
)
_read_time = to_microseconds(EventTimeFormat.EPOCH_MILLISECONDS)
_tokens = [
    bytes([byte]) for byte in (0x80, 0x81, 0x8F, 0x90, 0x91, 0x9F, 0xA0, 0xC0, 0xC1, 0xC4, 0xC7, 0xCA, 0xCB, 0xCF)
]
_tokens += [
    b"\xd3",
    b"\xd6\xff\0\0\0\1",
    b"\xd7\xff\0\0\0\1\0\0\0\1",
    b"\xc7\x0c\xff" + b"\xff" * 12,
    b"\xdd\xff\xff\xff\xff",
]
_tokens += [
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\x91" * 50,
    b"\xa2at\1",
    b"\xa2id\xa1x",
    b"\xff",
    b"\xcb\x7f\xf8" + b"\0" * 6,
]
_mutate = Mutator([msgpack.packb({"at": 1, "id": "x", "j": {"a": [1, None]}})], _tokens)


def _make(chance: random.Random) -> bytes:
    document = {
        "at": chance.choice([1, "2", 1.5, edge(chance) % 2**63]),
        "id": chance.choice(["x", 7, None, "", 1.5, b"y"]),
    }
    document |= {name: _value(chance, 0) for name in "ldsbjny" if chance.random() < 0.6}
    found = msgpack.packb(document)
    return found if chance.random() < 0.4 else _mutate.changed(found, chance)


def _value(chance: random.Random, depth: int) -> Any:
    match chance.randrange(9 if depth < 3 else 6):
        case 0:
            return chance.choice([None, True, False])
        case 1:
            return chance.choice([edge(chance) % 2**63, -abs(edge(chance)) % -(2**63), 2**64 - 1])
        case 2:
            return chance.choice([0.0, -0.0, 1.5, float("nan"), float("inf"), 1e300, 5.0])
        case 3 | 4:
            return text(chance)
        case 5:
            return chance.choice([b"", b"\xff", msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 5)])
        case 6:
            return [_value(chance, depth + 1) for _ in range(chance.randrange(4))]
        case _:
            return {
                chance.choice(["a", "b", 1, b"k", None]): _value(chance, depth + 1) for _ in range(chance.randrange(3))
            }


def _expected(value: bytes) -> dict[str, Any] | None:
    """Return the document; None if the package refuses the bytes, or its reading may differ."""
    try:
        found = msgpack.unpackb(value, raw=False, strict_map_key=False, timestamp=0, object_pairs_hook=_pairs)
    except Exception:  # it raises whatever its extensions and hashing raise
        return None
    return found if type(found) is dict else None


def _pairs(found: list[tuple[Any, Any]]) -> dict[Any, Any]:
    if any(type(key) in (bool, float) for key, _ in found):
        raise ValueError("1, 1.0 and True are one key in Python")
    return dict(found)


def _check(inputs: Sequence[bytes]) -> None:
    """Oracle: msgpack-python. A message that both read has the same time, id and columns."""
    for value, row in zip(inputs, parse(_PARSER, inputs, _COLUMNS), strict=True):
        document = _expected(value)
        if document is None:
            continue
        if row["error"] is None:
            _compare(document, row, value)
        elif row["error"].startswith(("not_msgpack", "not_a_map")):
            # Only an extension may be unreadable: a timestamp that Python cannot hold, in any place of the message.
            assert b"\xff" in value or b"\xc1" in value or max(map(_depth, [document])) > 100, (value, row["error"])


def _compare(document: dict[str, Any], row: dict[str, Any], value: bytes) -> None:
    at = document.get("at")
    if isinstance(at, int | float | str):
        try:
            assert row["time"] == _read_time(at), value
        except BadEventTime as error:
            raise AssertionError(f"{value!r} has no time, and is in the table") from error
    found = document.get("id")
    assert row["id"] == (str(found) if found not in (None, "") else None), value
    for name in "ldsby":
        given = document.get(name)
        assert row[name] == given or given != given, (name, row[name], given, value)
    assert row["n"] is None or type(document["n"]) in (int, float, str), (value, row)
    if row["j"] is not None:
        _compare_json(document["j"], json.loads(row["j"], parse_constant=_no_number), value)


def _no_number(name: str) -> Any:
    raise AssertionError(f"a JSON text holds {name}")


def _compare_json(given: Any, found: Any, value: bytes) -> None:
    if isinstance(given, dict):
        assert isinstance(found, dict), value
        for key, each in given.items():
            if isinstance(key, str):
                _compare_json(each, found[key], value)
    elif isinstance(given, list):
        assert len(found) == len(given), value
        for one, other in zip(given, found, strict=True):
            _compare_json(one, other, value)
    elif isinstance(given, float) and not math.isfinite(given):
        assert found is None, value  # JSON has no NaN and no infinity (user guide)
    elif isinstance(given, int | float | str) or given is None:
        assert found == given, (given, found, value)


def _depth(value: Any) -> int:
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, below), default=0)


MSGPACK = Target("msgpack", _make, _check)
