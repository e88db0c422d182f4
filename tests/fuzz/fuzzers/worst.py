"""For each parser, decoder and codec the messages that cost most for their size, and how the work grows.

Work is the CPU time of the thread: waiting, and the work of others, do not count. The least of several runs counts.
"""

from __future__ import annotations

import gc
import gzip
import hashlib
import io
import json
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
import msgpack

from fuzzers.mutation import varint
from fuzzers.targets import kinesis, parsed, protobuf, registry, text
from fuzzers.targets.records import at_offset
from waybill.archive.formats.text import read_values
from waybill.base.documents import Document
from waybill.base.errors import DamagedObject
from waybill.parsers import Parser, build_parser
from waybill.records.batches import Codec
from waybill.records.batches.decode import decode, decode_offsets
from waybill.records.batches.encode import Record, encode_batch
from waybill.records.batches.framing import check_crc, empty_batch, frames, read_frames
from waybill.services.kinesis.aggregates import MAGIC
from waybill.services.kinesis.answers import RawRecord
from waybill.services.kinesis.messages import encode_records

FLOOR_SECONDS = 0.02
"""Less work than this is too short to compare, and no risk."""
MAX_GROWTH = 2.5
"""Twice the input may take so many times the work."""
_RUNS = 2
_REPEATS = 4

Step = Callable[[], object]
Make = Callable[[int], bytes]
"""Returns a message of about so many bytes."""


@dataclass(frozen=True)
class Worst:
    """One kind of message for one piece of code."""

    subject: str
    """The parser, decoder or codec."""
    kind: str
    prepare: Callable[[int], Step]
    """Returns the step to measure for an input of a size."""
    first_bytes: int = 1 << 14
    last_bytes: int = 1 << 23

    @property
    def name(self) -> str:
        return f"{self.subject}: {self.kind}"


def seconds(step: Step) -> float:
    """Return the CPU time of a step: the least of several runs, of one if it takes long.

    Python's garbage collector is off: a full collection looks through all that the process has imported, at some size.
    """
    best = float("inf")
    gc.disable()
    try:
        for _ in range(_RUNS):
            before = time.thread_time()
            step()
            best = min(best, time.thread_time() - before)
            if best > 1.0:
                break
    finally:
        gc.enable()
    return best


def too_much_growth(worst: Worst, *, last_bytes: int, enough_seconds: float) -> str | None:
    """Return at which size the work grows too fast; None if it does at none.

    The size is doubled up to `last_bytes`, or until a step takes `enough_seconds`. Growth counts over two doublings, so
    that a size at which the processor's cache is full is none; and it is measured again before it counts.
    """
    found: list[tuple[int, Step, float]] = []
    size = worst.first_bytes
    while True:
        step = worst.prepare(size)
        if not found:
            step()  # compiles, imports, fills caches
        found.append((size, step, seconds(step)))
        if len(found) >= 3 and (text := _growth(worst.name, found[-3:])):
            return text
        if size >= min(last_bytes, worst.last_bytes) or (len(found) >= 3 and found[-1][2] > enough_seconds):
            return None
        size *= 2


def _growth(name: str, steps: list[tuple[int, Step, float]]) -> str | None:
    (small, first, before), _, (large, last, after) = steps
    for _ in range(_REPEATS):
        allowed = MAX_GROWTH**2 * max(before, FLOOR_SECONDS / MAX_GROWTH)
        if after <= allowed:
            return None
        if after > 10 * allowed:
            break  # no error of measurement
        # A measurement can only be too long: by other work on the core, and by caches that are cold.
        before, after = max(before, seconds(first)), min(after, seconds(last))
    return f"{name}: {before:.4f} s for {small:,} bytes, {after:.4f} s for {large:,}"


# --- parsers ----------------------------------------------------------------------------------------------------------


def _parsing(parser: Callable[[], Parser], make: Make) -> Callable[[int], Step]:
    def prepare(size: int) -> Step:
        batch, found = parsed.messages([make(size)]), parser()
        return lambda: found.parse(batch)

    return prepare


def _json(unit: str, around: str = '{"t":1,"id":"x","a":@}') -> Make:
    """Return what makes a message in which `@` is replaced by as many units as fit."""
    return lambda size: around.replace("@", unit * (size // len(unit.encode()) or 1)).encode()


_JSON: dict[str, Make] = {
    "digits in a text": _json("1", '{"t":1,"a":"@"}'),
    "digits of a number": _json("1"),
    "digits of a fraction": _json("1", '{"t":1,"n":0.@}'),
    "digits of a text for a decimal": _json("1", '{"t":1,"n":"@"}'),
    "digits of an id": _json("1", '{"t":1,"id":@}'),
    "digits of a time": _json("1", '{"t":"@"}'),
    "zeros before an exponent": _json("0", '{"t":1,"a":[0.@1e5]}'),
    "numbers": _json("1e5,", '{"t":1,"a":[@0]}'),
    "huge numbers in a text": _json("1e999 ", '{"t":1,"a":"@"}'),
    "escaped quotes": _json('\\"', '{"t":1,"id":"@"}'),
    "backslashes": _json("\\\\", '{"t":1,"id":"@"}'),
    "escapes": _json("\\u00e9", '{"t":1,"s":"@"}'),
    "characters": _json("ä", '{"t":1,"s":"@"}'),
    "a text without an end": _json("x", '{"t":1,"s":"@'),
    "brackets": _json("["),
    "pairs of brackets": _json("[],", '{"t":1,"a":[@0]}'),
    "nesting at the limit": _json("[" * 900 + "]" * 900 + ",", '{"t":1,"j":[@0]}'),
    "fields": lambda n: b'{"t":1' + b"".join(b',"f%07d":1' % i for i in range(n // 13)) + b"}",
    "the same field": _json(',"t":1', '{"t":1@}'),
    "fields in a column": lambda n: b'{"t":1,"j":{"a":1' + b"".join(b',"f%07d":1' % i for i in range(n // 13)) + b"}}",
    "items in a column": _json("1,", '{"t":1,"i":[@1]}'),
    "wrong items in a column": _json("{},", '{"t":1,"i":[@1]}'),
    "long integers in a column": _json("12345678901234567890123,", '{"t":1,"j":[@1]}'),
    "spaces": _json(" ", '{"t":1,@"a":1}'),
    "bytes that are not UTF-8": lambda n: b'{"t":1,"s":"' + b"\xff" * n + b'"}',
}
_MSGPACK: dict[str, Make] = {
    "fields": lambda n: msgpack.packb({"t": 1, **{f"f{i:07d}": 1 for i in range(n // 10)}}),
    "integers as keys": lambda n: msgpack.packb({"t": 1, "j": {i << 33: 1 for i in range(n // 10)}}),
    "lists": lambda n: msgpack.packb({"t": 1, "j": [[]] * n}),
    "nesting": lambda n: b"\x82\xa1t\x01\xa1j" + b"\x91" * n + b"\xc0",
    "nesting at the limit": lambda n: b"\x82\xa1t\x01\xa1j\xdd" + struct.pack(">I", n // 500 or 1)
    + (b"\x91" * 499 + b"\xc0") * (n // 500 or 1),
    "a text": lambda n: msgpack.packb({"t": 1, "s": "ä" * (n // 2)}),
    "extensions": lambda n: msgpack.packb({"t": 1, "j": [msgpack.ExtType(5, b"")] * (n // 3)}),
    "timestamps": lambda n: msgpack.packb({"t": 1, "j": [msgpack.Timestamp(1, 0)] * (n // 6)}),
    "bytes in a column": lambda n: msgpack.packb({"t": 1, "j": b"x" * n}),
    "digits of a text for a decimal": lambda n: msgpack.packb({"t": 1, "n": "1" * n}),
}  # fmt: skip
_DELIMITED: dict[str, Make] = {
    "delimiters": lambda n: b"," * n,
    "a long field": lambda n: b"a,1," + b"x" * n,
    "quotes": lambda n: b'a,1,"' + b'""' * (n // 2) + b'"',
    "a quote without an end": lambda n: b'a,1,"' + b"x" * n,
    "quotes without an end": lambda n: b'a,1,"' + b'"",' * (n // 3),
    "line breaks": lambda n: b'a,1,"' + b"\n" * n + b'"',
    "line breaks at the end": lambda n: b"a,1,x" + b"\r\n" * (n // 2),
    "byte order marks": lambda n: "\ufeff".encode() * (n // 3) + b"a,1,x",
    "digits of a time": lambda n: b"a," + b"1" * n + b",x",
}
_REGEX: dict[str, Make] = {
    "digits": lambda n: b"1" * n,
    "spaces": lambda n: b"1 a" + b" " * n,
    "an id": lambda n: b"1 id=" + b"i" * n,
    "nearly a match": lambda n: b"1 " + b"a " * (n // 2),
    "bytes that are not UTF-8": lambda n: b"\xff" * n,
}


def _field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def _fields(number: int, count: int) -> bytes:
    """Return messages, or entries of a map, whose first field is a text of seven digits."""
    return b"".join(_field(number, _field(1, b"%07d" % i)) for i in range(count))


def _nested(size: int) -> bytes:
    content = b""
    while len(content) < min(size, 400):
        content = _field(3, content)
    return _field(7, content) * (size // 400 or 1)


_AT = varint(2 << 3) + b"\1"
_PROTOBUF: dict[str, Make] = {
    "unknown fields": lambda n: _AT + b"\xf8\x07\x01" * (n // 3),
    "the same field": lambda n: _AT * (n // 2),
    "a message in pieces": lambda n: _AT + b"\x3a\x02\x10\x02" * (n // 4),
    "items": lambda n: _AT + b"\x42\x00" * (n // 2),
    "entries of a map": lambda n: _AT + _fields(9, n // 11),
    "the same entry of a map": lambda n: _AT + b"\x4a\x00" * (n // 2),
    "fields of a Struct": lambda n: _AT + _field(11, _fields(1, n // 11)),
    "nesting": lambda n: _AT + _nested(n),
    "groups": lambda n: _AT + b"\xfb\x07" * (n // 2),
    "a text": lambda n: _AT + _field(1, b"x" * n),
    "a varint without an end": lambda n: _AT + b"\xf8\x07" + b"\x80" * n,
}


@cache
def _parser(name: str, *columns: tuple[str, str]) -> Parser:
    config = parsed.parser_config(name=name, event_time={"field": "t", "format": "epoch_ms"}, message_id="id")
    return build_parser(config, parsed.columns_of(**dict(columns)))


_SCALARS = (("s", "string"), ("l", "long"))
_COLUMNS = (("s", "string"), ("j", "json"), ("n", "decimal(38,9)"), ("i", "list<long>"))
_PARSERS: dict[str, tuple[Callable[[], Parser], dict[str, Make]]] = {
    "json": (lambda: _parser("json"), _JSON),
    "json with scalar columns": (lambda: _parser("json", *_SCALARS), _JSON),
    "json with columns": (lambda: _parser("json", *_COLUMNS), _JSON),
    "msgpack": (lambda: _parser("msgpack", *_COLUMNS), _MSGPACK),
    "delimited": (lambda: text.PARSERS[0][0], _DELIMITED),
    "regex": (lambda: text.REGEX_PARSER, _REGEX),
    "protobuf": (protobuf.parser, _PROTOBUF),
}


# --- Avro -------------------------------------------------------------------------------------------------------------

_EMPTY = {"type": "record", "name": "E", "fields": []}
_RECORD = {"type": "record", "name": "I", "fields": [{"name": "a", "type": "int"}]}


def _long(number: int) -> bytes:
    return varint(number << 1)


_AVRO: dict[str, tuple[Any, Make]] = {
    "items": ({"type": "array", "items": "int"}, lambda n: _long(n) + b"\2" * n + b"\0"),
    "records": ({"type": "array", "items": _RECORD}, lambda n: _long(n) + b"\2" * n + b"\0"),
    "items without bytes": ({"type": "array", "items": _EMPTY}, lambda n: _long(1_000) * (n // 2) + b"\0"),
    "blocks": ({"type": "array", "items": "int"}, lambda n: b"\2\2" * (n // 2) + b"\0"),
    "entries of a map": (
        {"type": "map", "values": "int"},
        lambda n: _long(n // 9) + b"".join(b"\x0e%07d\2" % i for i in range(n // 9)) + b"\0",
    ),
    "a text": ("string", lambda n: _long(n) + b"x" * n),
    "bytes": ("bytes", lambda n: _long(n) + b"x" * n),
    "items of a union": ({"type": "array", "items": ["null", "int", "string"]}, lambda n: _long(n) + b"\0" * n + b"\0"),
}


def _record_of(*kinds: Any) -> str:
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(kinds)]
    fields = [{"name": "at", "type": "long"}, {"name": "id", "type": "string"}, *fields]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def _read_schema(schema: str) -> Parser:
    """Return a parser that has asked for the schema with the id 1."""
    with registry.in_memory(lambda _: httpx.Response(200, json={"schema": schema})) as parser:
        parser.parse(parsed.messages([b"\0\0\0\0\1\2\2x"]))
    return parser


_with_schema = cache(_read_schema)


def _nested_records(size: int) -> str:
    """Return a schema of nested pairs of records, each inner one defined once and named twice."""
    # Text around text: Python's `json` does not write what is nested so deeply.
    kind, number = '{"type": "record", "name": "N0", "fields": []}', 0
    while len(kind) < size:
        number += 1
        fields = f'{{"name": "a", "type": {kind}}}, {{"name": "b", "type": "N{number - 1}"}}'
        kind = f'{{"type": "record", "name": "N{number}", "fields": [{fields}]}}'
    return _record_of("NESTED").replace('"NESTED"', kind)


_SCHEMAS: dict[str, Callable[[int], str]] = {
    "nested records": _nested_records,
    "a long union": lambda n: _record_of(
        ["null", *({"type": "fixed", "name": f"F{i}", "size": 1} for i in range(n // 40))]
    ),
    "fields": lambda n: _record_of(*["int"] * (n // 28 or 1)),
}


def _reading_schema(make: Callable[[int], str]) -> Callable[[int], Step]:
    def prepare(size: int) -> Step:
        schema = make(size)
        return lambda: _read_schema(schema)

    return prepare


# --- records and formats ----------------------------------------------------------------------------------------------


def _decoding(codec: Codec, records: Callable[[int], list[Record]]) -> Callable[[int], Step]:
    def prepare(size: int) -> Step:
        data = encode_batch(records(size), codec=codec)

        def step() -> None:
            for _ in decode(data, where="worst", set_aside=True):  # as tasks decode, whatever the limits
                pass
            for _ in decode_offsets(data, where="worst"):
                pass

        return step

    return prepare


_RECORDS: dict[str, Callable[[int], list[Record]]] = {
    "one value": lambda n: [Record(0, 0, None, b"ab" * (n // 2))],
    "headers": lambda n: [Record(0, 0, None, None, (("", None),) * (n // 2))],
    # Every second offset is missing, so that the offsets must be read from the records.
    "records": lambda n: [Record(2 * i, 0, None, None) for i in range(n // 7)],
}


def _framing(size: int) -> Step:
    one = empty_batch(0, 1, leader_epoch=1)
    data = b"".join(at_offset(one, n) for n in range(size // len(one) or 1))

    def step() -> None:
        for frame in frames(data, where="worst"):
            check_crc(frame, "worst")
        for _ in read_frames(io.BytesIO(data), "worst", chunk_bytes=1 << 16):
            pass

    return step


def _unpacking(make: Make) -> Callable[[int], Step]:
    def prepare(size: int) -> Step:
        body = make(size)
        data = MAGIC + body + hashlib.md5(body, usedforsecurity=False).digest()
        record = RawRecord(1, 0, "k", data, "NONE")
        return lambda: encode_records([record], kinesis.SHARD, 0, codec=Codec.NONE)

    return prepare


def _user_record(number: int) -> bytes:
    return _field(1, b"%07d" % number) + _field(3, b"\x08" + varint(number) + b"\x1a\0")


_KPL: dict[str, Make] = {
    "user records": lambda n: _field(1, b"k") + _field(3, b"\x08\0\x1a\0") * (n // 6),
    "partition keys": lambda n: b"".join(map(_user_record, range(n // 18))),
    "tags": lambda n: _field(1, b"k") + _field(3, b"\x08\0\x1a\0" + _field(4, _field(1, b"t")) * (n // 5)),
    "unused keys": lambda n: _field(1, b"k") * (n // 3) + _field(3, b"\x08\0\x1a\0"),
    "no records": lambda n: b"\x22\0" * (n // 2),
}


def _reading_text(delimiter: bytes, unit: bytes, *, compressed: bool = False) -> Callable[[int], Step]:
    def prepare(size: int) -> Step:
        data = unit * (size // len(unit)) + delimiter
        data = gzip.compress(data, 1, mtime=0) if compressed else data

        def step() -> None:
            with suppress(DamagedObject):
                for _ in read_values(io.BytesIO(data), "worst", delimiter, compressed=compressed):
                    pass

        return step

    return prepare


def _document(unit: str) -> Callable[[int], Step]:
    def prepare(size: int) -> Step:
        data = '{"v":1,"a":[' + unit * (size // len(unit)) + "0]}"
        return lambda: Document().read(data, "worst")

    return prepare


def _all() -> Iterator[Worst]:
    for subject, (parser, kinds) in _PARSERS.items():
        for kind, make in kinds.items():
            yield Worst(subject, kind, _parsing(parser, make))
    for kind, (schema, make) in _AVRO.items():
        yield Worst("avro", kind, _parsing(_avro_parser(schema), _framed(make)))
    for kind, make_schema in _SCHEMAS.items():
        yield Worst("avro schema", kind, _reading_schema(make_schema), first_bytes=1 << 9, last_bytes=1 << 17)
    for codec in Codec:
        for kind, records in _RECORDS.items():
            yield Worst(f"decode {codec.name.lower()}", kind, _decoding(codec, records))
    yield Worst("framing", "batches without records", _framing)
    for kind, make in _KPL.items():
        yield Worst("kpl", kind, _unpacking(make))
    yield Worst("text", "delimiters", _reading_text(b"\n", b"\n"))
    yield Worst("text", "nearly delimiters", _reading_text(b"aba", b"ab"))
    yield Worst("text", "one message", _reading_text(b"\n", b"x"))
    yield Worst("text with gzip", "one message", _reading_text(b"\n", b"x", compressed=True))
    yield Worst("stored documents", "numbers", _document("1e5,"))
    yield Worst("stored documents", "brackets", _document("[],"))


def _avro_parser(schema: Any) -> Callable[[], Parser]:
    return lambda: _with_schema(_record_of(schema))


def _framed(make: Make) -> Make:
    return lambda size: b"\0\0\0\0\1\2\2x" + make(size)


CASES: dict[str, Worst] = {each.name: each for each in _all()}
