"""Measure the CPU time of the worst messages that we know, for each parser, by their size.

    python bench/parser_growth.py [--megabytes 1 2 4 8] [--case WORDS] [--repeats N]

Each message is parsed alone, in a process of its own, after a small one of its kind has compiled what is compiled. The
script prints CPU seconds, the growth of the process in MB at the largest size, and the reason for quarantine, if any.
The column `growth` is the factor for twice the size, over all sizes; 0 if even the largest took less than 50 ms. The
script ends with status 1 if it is above 2.5.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import random
import resource
import string
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

MOST = 2.5
NOISE_SECONDS = 0.05

Make = Callable[[int], bytes]


@dataclass(frozen=True)
class Case:
    """A kind of message, and the parser that reads it."""

    name: str
    parser: Mapping[str, Any]
    make: Make
    """Returns a message of about so many bytes."""
    columns: Mapping[str, str] = field(default_factory=dict)


AT = {"field": "t", "format": "epoch_ms"}
JSON = {"name": "json", "event_time": AT}
MSGPACK = {"name": "msgpack", "event_time": AT}
REGEX = {"name": "regex", "event_time": AT, "pattern": r"^(?P<t>[0-9]+) (?P<a>.*?)(?P<b>(?:x+x+)+y)?$"}
DELIMITED = {"name": "delimited", "event_time": AT, "columns": ["t", "a", "b"]}


def json_with(make: Callable[[int], str]) -> Make:
    return lambda size: f'{{"t":1,"a":{make(size)}}}'.encode()


def repeated(text: str, before: str = "", after: str = "") -> Callable[[int], str]:
    return lambda size: before + text * (size // len(text)) + after


def listed(item: str) -> Callable[[int], str]:
    return lambda size: "[" + ",".join([item] * (size // (len(item) + 1))) + "]"


def unique_keys(size: int) -> str:
    return "{" + ",".join(f'"{number:x}":{{}}' for number in range(size // 11)) + "}"


def deep(size: int) -> str:
    return "[" * 990 + '"' + "x" * size + '"' + "]" * 990


def packed(make: Make) -> Make:
    return lambda size: b"\x82\xa1t\x01\xa1a" + make(size)


def items(item: bytes, first: bytes = b"\xdd") -> Make:
    """Return a MessagePack array (or map, if each item is a key with its value) of equal items."""
    return lambda size: first + struct.pack(">I", size // len(item)) + item * (size // len(item))


def colliding_keys(size: int) -> bytes:
    """Return a map whose keys are arrays of -1 and -2, which have one hash in Python."""
    bits = random.Random(1)
    count = size // 24
    keys = (b"\xdc\x00\x14" + bytes(bits.choice((0xFF, 0xFE)) for _ in range(20)) + b"\xc0" for _ in range(count))
    return b"\xdf" + struct.pack(">I", count) + b"".join(keys)


def text_keys(size: int) -> bytes:
    count = size // 8
    return b"\xdf" + struct.pack(">I", count) + b"".join(b"\xa6%06x\xc0" % number for number in range(count))


@cache
def protobuf() -> Mapping[str, Any]:
    """Return the parser of a type that holds itself, a `Struct`, maps, and 200 more fields."""
    from google.protobuf import descriptor_pb2, struct_pb2

    kinds = descriptor_pb2.FieldDescriptorProto
    structs = descriptor_pb2.FileDescriptorProto()
    struct_pb2.DESCRIPTOR.CopyToProto(structs)
    event = descriptor_pb2.DescriptorProto(name="Event")

    def add(name: str, number: int, kind: int, **more: Any) -> None:
        event.field.add(name=name, number=number, type=kind, **({"label": kinds.LABEL_OPTIONAL} | more))

    add("t", 1, kinds.TYPE_INT64)
    add("a", 2, kinds.TYPE_MESSAGE, type_name=".a.Event", label=kinds.LABEL_REPEATED)
    add("doc", 3, kinds.TYPE_MESSAGE, type_name=".google.protobuf.Struct")
    add("one", 4, kinds.TYPE_MESSAGE, type_name=".a.Event")
    add("numbers", 5, kinds.TYPE_INT32, label=kinds.LABEL_REPEATED)
    add("map", 6, kinds.TYPE_MESSAGE, type_name=".a.Event.MapEntry", label=kinds.LABEL_REPEATED)
    for number in range(200):
        add(f"f{number}", 100 + number, kinds.TYPE_INT32)
    entry = event.nested_type.add(name="MapEntry", options=descriptor_pb2.MessageOptions(map_entry=True))
    for number, (name, kind) in enumerate((("key", kinds.TYPE_INT64), ("value", kinds.TYPE_INT32)), start=1):
        entry.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    file = descriptor_pb2.FileDescriptorProto(
        name="event.proto", package="a", syntax="proto2", dependency=[structs.name], message_type=[event]
    )
    path = Path(tempfile.gettempdir()) / f"waybill-growth-{os.getpid()}.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[structs, file]).SerializeToString())
    return {"name": "protobuf", "descriptor_set": str(path), "message": "a.Event", "event_time": AT}


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def fields(one: bytes) -> Make:
    return lambda size: b"\x08\x01" + one * (size // len(one))


def inside(tag: bytes, one: bytes) -> Make:
    def make(size: int) -> bytes:
        content = one * (size // len(one))
        return b"\x08\x01" + tag + varint(len(content)) + content

    return make


def map_entries(size: int) -> bytes:
    count = size // 9
    return b"\x08\x01" + b"".join(b"\x32\x07\x08" + varint(number + (1 << 21)) + b"\x10\x00" for number in range(count))


def nested(size: int) -> bytes:
    content = b"\x12\x00" * (size // 2)
    for _ in range(90):
        content = b"\x22" + varint(len(content)) + content
    return b"\x08\x01" + content


def text(make: Callable[[int], str]) -> Make:
    return lambda size: make(size).encode()


def cases() -> list[Case]:
    hexadecimal = "".join(random.Random(1).choices(string.hexdigits, k=1000))
    return [
        Case("json, digits in a text (P2)", JSON, json_with(repeated("1", '"', '"'))),
        Case("json, digits in a text, a column (P2)", JSON, json_with(repeated("1", '"', '"')), {"b": "string"}),
        Case("json, hexadecimal text", JSON, json_with(repeated(hexadecimal, '"', '"')), {"b": "string"}),
        Case("json, numbers with exponents", JSON, json_with(listed("1e111")), {"b": "string"}),
        Case("json, escapes", JSON, json_with(repeated("\\u00e9", '"', '"')), {"a": "string"}),
        Case("json, empty objects, column json", JSON, json_with(listed("{}")), {"a": "json"}),
        Case("json, unique keys, column json", JSON, json_with(unique_keys), {"a": "json"}),
        Case("json, one key again and again", JSON, json_with(repeated('"k":{},', "{", '"k":1}')), {"a": "json"}),
        Case("json, fractions, column json", JSON, json_with(listed("1.10")), {"a": "json"}),
        Case("json, 300 digits, column json", JSON, json_with(listed("1" * 300)), {"a": "json"}),
        Case("json, fractions, list<decimal>", JSON, json_with(listed("1.1")), {"a": "list<decimal(9,2)>"}),
        Case("json, a decimal of many digits", JSON, json_with(repeated("1", "1.")), {"a": "decimal(9,2)"}),
        Case("json, whole floats, list<long>", JSON, json_with(listed("1.0")), {"a": "list<long>"}),
        Case("json, wrong elements, list<string>", JSON, json_with(listed("1")), {"a": "list<string>"}),
        Case("json, 990 levels around a text", JSON, json_with(deep), {"a": "string"}),
        Case("msgpack, nils", MSGPACK, packed(items(b"\xc0"))),
        Case("msgpack, empty maps, column json", MSGPACK, packed(items(b"\x80")), {"a": "json"}),
        Case("msgpack, keys that collide", MSGPACK, packed(colliding_keys)),
        Case("msgpack, text keys, column json", MSGPACK, packed(text_keys), {"a": "json"}),
        Case(
            "msgpack, NaN, column json", MSGPACK, packed(items(struct.pack(">Bd", 0xCB, float("nan")))), {"a": "json"}
        ),
        Case("protobuf, unknown fields", protobuf(), fields(b"\x60\x01"), {"a": "json"}),
        Case("protobuf, unknown groups", protobuf(), fields(b"\x63\x64"), {"a": "json"}),
        Case("protobuf, empty messages, column json", protobuf(), fields(b"\x12\x00"), {"a": "json"}),
        Case("protobuf, one message merged", protobuf(), fields(b"\x22\x02\x12\x00"), {"one": "json"}),
        Case("protobuf, 90 levels, column json", protobuf(), nested, {"one": "json"}),
        Case("protobuf, packed numbers, column json", protobuf(), inside(b"\x2a", b"\x01"), {"numbers": "json"}),
        Case("protobuf, map, column json", protobuf(), map_entries, {"map": "json"}),
        Case("protobuf, Struct", protobuf(), inside(b"\x1a", b"\x0a\x05\x0a\x01a\x12\x00"), {"doc": "json"}),
        Case("delimited, quotes", DELIMITED, text(repeated('""', '1,"', '",b'))),
        Case("delimited, a quote that is not closed", DELIMITED, text(repeated('a"', '1,"'))),
        Case("delimited, delimiters", DELIMITED, text(repeated(",", "1"))),
        Case("delimited, quotes and delimiters", DELIMITED, text(repeated('"",', "1,"))),
        Case("delimited, line breaks", DELIMITED, text(repeated("\n", "1,a,b", "x"))),
        Case("delimited, columns", DELIMITED, text(repeated("9", "1,", ",b")), {"a": "double", "b": "json"}),
        Case("regex, nested repetition", REGEX, text(repeated("x", "1 "))),
        Case("regex, digits", REGEX, text(repeated("1")), {"a": "decimal(9,2)"}),
    ]


def measure(case: Case, size: int) -> tuple[float, float, str]:
    """Return CPU seconds, MB, and the reason for quarantine, of one message in a child process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with os.fdopen(writer, "wb") as out:
            pickle.dump(_measure_here(case, size), out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as found:
        result: tuple[float, float, str] = pickle.load(found)
    os.waitpid(child, 0)
    return result


def _measure_here(case: Case, size: int) -> tuple[float, float, str]:
    import pyarrow as pa
    from pydantic import TypeAdapter

    from waybill.config.models import ParserConfig
    from waybill.config.models.columns import Column
    from waybill.parsers import build_parser

    columns = {name: Column.model_validate(kind) for name, kind in case.columns.items()}
    config: ParserConfig = TypeAdapter(ParserConfig).validate_python(case.parser)
    parser = build_parser(config, columns)

    def batch(value: bytes) -> Any:
        return pa.record_batch({"offset": pa.array([0], pa.int64()), "value": pa.array([value], pa.binary())})

    parser.parse(batch(case.make(3_000)))
    messages = batch(case.make(size))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    parsed = parser.parse(messages)
    seconds = time.process_time() - start
    megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return seconds, megabytes, (parsed.error.to_pylist()[0] or "")[:90]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--megabytes", type=int, nargs="+", default=[1, 2, 4, 8])
    arguments.add_argument("--case", default="")
    arguments.add_argument("--repeats", type=int, default=1, help="the best counts")
    given = arguments.parse_args()
    failures = 0
    print(f"{'CPU s at MB':42}" + "".join(f"{size:>8}" for size in given.megabytes) + f"{'growth':>8}{'MB':>7}")
    for case in cases():
        if given.case not in case.name:
            continue
        found = [min(measure(case, size << 20) for _ in range(given.repeats)) for size in given.megabytes]
        times = [seconds for seconds, _, _ in found]
        doublings = math.log2(given.megabytes[-1] / given.megabytes[0])
        growth = (times[-1] / times[0]) ** (1 / doublings) if times[-1] > NOISE_SECONDS else 0
        failures += growth > MOST
        print(
            f"{case.name:42}" + "".join(f"{seconds:8.3f}" for seconds in times)
            + f"{growth:8.2f}{found[-1][1]:7.0f}  {found[-1][2]}",
            flush=True,
        )  # fmt: skip
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
