from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsing import batch, check, parser_config, reasons, times
from pydantic import ValidationError

from waybill.base.errors import ParserBroken
from waybill.config.models import Column
from waybill.parsers import Parsed, build_parser
from waybill.parsers.protocol import EVENT_TIME_TYPE
from waybill.records.batches.message_rows import MESSAGE_SCHEMA

MODULE = """
import pyarrow as pa
from waybill.parsers import Parsed

class Answers:
    name = "answers"

    def __init__(self, what):
        if what == "two lines":
            raise RuntimeError("one\\ntwo")
        self.what = what

    def parse(self, messages):
        if self.what == "raises":
            raise KeyError("at")
        times = pa.array([1] * len(messages), pa.timestamp("us", tz="UTC"))
        none = pa.nulls(len(messages), pa.string())
        return {
            "right": Parsed(times, none, none),
            "plain tuple": (times, none, none),
            "nothing": None,
            "a list": Parsed(times.to_pylist(), none, none),
            "milliseconds": Parsed(times.cast(pa.timestamp("ms", tz="UTC"), safe=False), none, none),
            "one short": Parsed(times, none[1:], none),
            "no time": Parsed(pa.nulls(len(messages), times.type), none, none),
            "year 0": Parsed(pa.array([-(2**62)] * len(messages)).cast(times.type), none, none),
            "columns": Parsed(times, none, none, {"n": pa.array(range(len(messages)), pa.int32()), "other": none}),
            "columns of another type": Parsed(times, none, none, {"n": pa.array(range(len(messages)))}),
            "columns one short": Parsed(times, none, none, {"n": pa.nulls(1, pa.int32())}),
            "a list of columns": Parsed(times, none, none, [none]),
            "a time in year 0": Parsed(times, none, none, {"n": pa.array([-(2**62)] * len(messages)).cast(times.type)}),
        }[self.what]

class Outer:
    class Inner(Answers):
        def __init__(self):
            super().__init__("right")

class Nameless(Answers):
    name = None
"""


@pytest.fixture(scope="module", autouse=True)
def somebodys_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A package of somebody else's, on the path."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "somebodys_parsers.py").write_text(MODULE)
    (folder / "somebodys_broken_module.py").write_text("import json\n1 / 0\n")
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))
    sys.modules.pop("somebodys_parsers", None)


def parse(what: str, *values: bytes, **columns: str) -> Parsed:
    config = parser_config(name="python", **{"class": "somebodys_parsers:Answers", "options": {"what": what}})
    parser = build_parser(config, {name: Column.model_validate(kind) for name, kind in columns.items()})
    assert parser.name == "answers"
    return parser.parse(batch(*values))


@pytest.mark.parametrize("what", ["right", "plain tuple"])
def test_the_configured_class_parses_messages(what: str) -> None:
    parsed = parse(what, b"a", b"b")
    check(parsed, 2)
    assert times(parsed) == [1, 1]


def test_a_nested_class_without_options_parses_messages() -> None:
    parser = build_parser(parser_config(name="python", **{"class": "somebodys_parsers:Outer.Inner"}))
    assert times(parser.parse(batch(b"a"))) == [1]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raises", "raised KeyError: 'at'"),
        ("nothing", "returned a NoneType, not a Parsed"),
        ("a list", "returned list as event_time, not an array of timestamp[us, tz=UTC]"),
        ("milliseconds", "returned timestamp[ms, tz=UTC] as event_time, not an array of timestamp[us, tz=UTC]"),
        ("one short", "returned 1 values of message_id for 2 messages"),
        ("no time", "returned neither an event time nor an error for a message"),
        ("year 0", "returned an event time that is not between the years 1 and 9999"),
    ],
)
def test_an_invalid_result_raises_parser_broken(what: str, message: str) -> None:
    with pytest.raises(ParserBroken) as raised:
        parse(what, b"a", b"b")
    assert str(raised.value).startswith(f"parser somebodys_parsers:Answers {message}: nothing of this run is committed")
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_a_class_returns_the_configured_columns() -> None:
    parsed = parse("columns", b"a", b"b", n="int")
    assert {name: column.to_pylist() for name, column in parsed.columns.items()} == {"n": [0, 1]}


@pytest.mark.parametrize(
    ("what", "kind", "message"),
    [
        ("right", "int", "returned no column 'n', which the config has"),
        ("plain tuple", "int", "returned no column 'n', which the config has"),
        ("columns of another type", "int", "returned int64 as column 'n', not an array of int32"),
        ("columns one short", "int", "returned 1 values of column 'n' for 2 messages"),
        ("a list of columns", "int", "returned a list as columns, not a mapping"),
        ("a time in year 0", "timestamp", "returned a time in column 'n' that is not between the years 1 and 9999"),
    ],
)
def test_invalid_columns_raise_parser_broken(what: str, kind: str, message: str) -> None:
    with pytest.raises(ParserBroken) as raised:
        parse(what, b"a", b"b", n=kind)
    assert str(raised.value).startswith(f"parser somebodys_parsers:Answers {message}: nothing of this run is committed")


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("somebodys_broken_module:Parser", {}, "cannot be imported: ZeroDivisionError: division by zero"),
        ("somebodys_parsers:Outer.Other", {}, "the module somebodys_parsers has no Outer.Other"),
        ("somebodys_parsers:Answers", {}, "rejects its options: TypeError: "),
        ("somebodys_parsers:Answers", {"what": "two lines"}, "rejects its options: RuntimeError: one two"),
        ("somebodys_parsers:Nameless", {"what": "right"}, "is not a parser: it has no name"),
    ],
)
def test_loading_refuses_a_class_that_is_not_a_parser(path: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        parser_config(name="python", **{"class": path, "options": options})
    (error,) = raised.value.errors()
    assert message in error["msg"]
    assert "\n" not in error["msg"]


@given(
    st.lists(st.one_of(st.none(), st.binary(max_size=3), st.from_regex(rb"\A[0-9]{9,14}:?"))), st.sampled_from([10, 13])
)
def test_the_example_parser_follows_the_interface(keys: list[bytes | None], digits: int) -> None:
    config = parser_config(
        name="python", **{"class": "waybill.parsers.examples:KeyTime", "options": {"digits": digits}}
    )
    messages = pa.RecordBatch.from_pylist(
        [{"offset": n, "timestamp": 0, "key": key, "value": b"", "headers": []} for n, key in enumerate(keys)],
        schema=MESSAGE_SCHEMA,
    )
    parsed = build_parser(config).parse(messages)
    check(parsed, len(keys))
    assert parsed.event_time.type == EVENT_TIME_TYPE
    for key, time, why in zip(keys, times(parsed), reasons(parsed), strict=True):
        head, colon, _ = (key or b"").partition(b":")
        if colon and len(head) == digits and all(48 <= byte <= 57 for byte in head):
            assert time == int(head) * 10 ** (16 - digits)
        else:
            assert why == "no_key_time"
