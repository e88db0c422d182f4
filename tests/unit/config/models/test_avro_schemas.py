"""Which Avro schemas are read, what is ignored in them, and that the work for one is bounded by its size.

Independent readers: fastavro for the canonical form, and Avro's own implementation for the fingerprint.
"""

from __future__ import annotations

import json
import re
from typing import Any

import avro.schema
import fastavro
import pytest
from fastavro.schema import to_parsing_canonical_form
from hypothesis import given
from hypothesis import strategies as st

from waybill.config.models.avro_schemas import MAX_LEVELS, MAX_TYPES, PRIMITIVES, read_avro_schema

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,3}", fullmatch=True)


class _Drawn:
    """A schema in which each named type is defined once, and may be named afterwards."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.names: list[str] = []

    def type(self, depth: int) -> Any:
        kind = self.draw(st.sampled_from(["primitive", "name", "fixed", "enum", "array", "map", "union", "record"]))
        if kind == "name" and self.names:
            return self.draw(st.sampled_from(self.names))
        if kind in ("fixed", "enum", "record"):
            return self.named(kind, depth)
        if kind == "primitive" or kind == "name" or depth == 3:
            return self.draw(st.sampled_from(PRIMITIVES))
        if kind == "union":
            return ["null", {"type": "array", "items": self.type(depth + 1)}]
        return {"type": kind, "items" if kind == "array" else "values": self.type(depth + 1)}

    def named(self, kind: str, depth: int) -> dict[str, Any]:
        name, namespace = f"N{len(self.names)}", self.draw(st.sampled_from(["a", "a.b"]))
        self.names.append(f"{namespace}.{name}")
        named = {"type": kind, "name": name, "namespace": namespace}
        if kind == "fixed":
            return named | {"size": self.draw(st.integers(0, 20))}
        if kind == "enum":
            return named | {"symbols": self.draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))}
        count = 0 if depth == 3 else self.draw(st.integers(0, 3))
        return named | {"fields": [{"name": f"f{n}", "type": self.type(depth + 1)} for n in range(count)]}


@st.composite
def schemas(draw: st.DrawFn) -> Any:
    return _Drawn(draw).type(0)


@given(schemas())
def test_the_canonical_form_and_the_fingerprint_are_those_of_other_implementations(schema: Any) -> None:
    text = json.dumps(schema)
    read = read_avro_schema(text)
    assert json.loads(read.canonical_form()) == json.loads(to_parsing_canonical_form(json.loads(text)))
    assert read.canonical_form() == to_parsing_canonical_form(json.loads(text))
    assert read.fingerprint().hex() == fastavro.schema.fingerprint(read.canonical_form(), "CRC-64-AVRO")
    theirs = avro.schema.parse(text)
    assert read.canonical_form() == with_each_fixed_defined_once(theirs.canonical_form)
    if theirs.canonical_form == read.canonical_form():
        assert read.fingerprint() == theirs.fingerprint("CRC-64-AVRO")


def with_each_fixed_defined_once(form: str) -> str:
    """Return a canonical form as Avro's specification defines it.

    Avro 1.12 for Python writes a fixed in full wherever it is named, where the specification writes its name.
    """
    defined = set()

    def define_or_name(fixed: re.Match[str]) -> str:
        if fixed[0] in defined:
            return f'"{fixed[1]}"'
        defined.add(fixed[0])
        return fixed[0]

    return re.sub(r'\{"name":"([^"]+)","type":"fixed","size":\d+\}', define_or_name, form)


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5)
    | st.sampled_from(["record", "array", "map", "enum", "fixed", "error", *PRIMITIVES]),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "name", "namespace", "fields", "items", "values", "symbols", "size", "logicalType",
                         "precision", "scale", "default", "aliases"]), below, max_size=6),
    max_leaves=15,
))  # fmt: skip
def test_json_of_any_shape_is_read_or_refused_with_one_line(document: Any) -> None:
    refusal = ""
    try:
        read_avro_schema(json.dumps(document))
    except ValueError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert len(refusal) < 300


def record(*types: Any, **more: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": f"f{n}", "type": each} for n, each in enumerate(types)],
    } | more


ENUM = {"type": "enum", "name": "E", "symbols": ["A"]}


@pytest.mark.parametrize(
    "schema",
    [
        record({"type": "int", "default": "0"}),
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": "0"}]},
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "int"], "default": 7}]},
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": ENUM, "default": {}}]},
        {"type": "record", "name": "R", "fields": [{"name": "a-b", "type": "int", "aliases": "no list", "order": 7}]},
        {"type": "record", "name": "my-record", "namespace": "1.2", "aliases": 7, "doc": [], "fields": []},
        record({"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 20}),
        record({"type": "bytes", "logicalType": "decimal", "precision": "ten", "scale": -1}),
        record({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}),
        record({"type": "string", "logicalType": 7}),
        record({"type": "enum", "name": "E", "symbols": ["A-B", "", "1", "ä"]}),
        record(ENUM | {"default": "Z"}),
        record({"type": {"type": "int"}}, {"type": ["null", "int"]}),
        record(ENUM, {"type": "E"}),
        record(ENUM, "E", namespace="a.b"),
        record({**ENUM, "namespace": ""}, {**record("E"), "name": "Q"}, namespace="a.b"),
        [ENUM, record("E")],
    ],
)
def test_what_the_reader_of_a_message_need_not_know_is_ignored(schema: Any) -> None:
    assert read_avro_schema(json.dumps(schema)).root


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ({"type": "record", "fields": []}, "is not an Avro schema: a type record has no name"),
        ({"type": "enum", "name": "E"}, "is not an Avro schema: the symbols of E are not a list of texts"),
        (ENUM | {"symbols": ["A", 7]}, "is not an Avro schema: the symbols of E are not a list of texts"),
        (ENUM | {"symbols": ["\ud800"]}, "is not an Avro schema: the symbols of E are not a list of texts"),
        (ENUM | {"symbols": ["A", "A"]}, "is not an Avro schema: E has the same symbol twice"),
        ({"type": "fixed", "name": "F", "size": -1}, "is not an Avro schema: the size of F is -1"),
        ({"type": "fixed", "name": "F", "size": True}, "is not an Avro schema: the size of F is True"),
        ({"type": "fixed", "name": "F", "size": "7"}, "is not an Avro schema: the size of F is 7"),
        ({"type": "fixed", "name": "string", "size": 1}, "is not an Avro schema: a type fixed has the name string"),
        ({"type": "array"}, "is not an Avro schema: an array has no items"),
        ({"type": "map"}, "is not an Avro schema: a map has no values"),
        ({}, "is not an Avro schema: a value is not a type"),
        (7, "is not an Avro schema: 7 is not a type"),
        (None, "is not an Avro schema: None is not a type"),
        (record("nowhere"), "is not an Avro schema: the type nowhere is not defined"),
        (record("x" * 1_000_000), f"is not an Avro schema: the type {'x' * 100}… is not defined"),
        (record(ENUM, ENUM), "is not an Avro schema: it defines the type E twice"),
        (record(fields={}), "is not an Avro schema: the fields of R are not a list"),
        (record(fields=["a"]), "is not an Avro schema: a field of R has no name or no type"),
        (record(fields=[{"name": "a"}]), "is not an Avro schema: a field of R has no name or no type"),
        (record(fields=[{"name": "a", "type": "int"}] * 2), "is not an Avro schema: R has two fields a"),
    ],
)
def test_what_decides_what_bytes_mean_must_be_right(schema: Any, error: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(error)}$"):
        read_avro_schema(json.dumps(schema))


def nested(kind: str, levels: int) -> str:
    if kind == "array":
        return '{"type":"array","items":' * levels + '"int"' + "}" * levels
    if kind == "type":
        return '{"type":' * levels + '"int"' + "}" * levels
    return "".join(
        f'{{"type":"record","name":"R{n}","fields":[{{"name":"f","type":' for n in range(levels)
    ) + '"int"' + "}]}" * levels  # fmt: skip


@pytest.mark.parametrize("kind", ["array", "record", "type"])
def test_nesting_is_limited(kind: str) -> None:
    assert read_avro_schema(nested(kind, MAX_LEVELS)).root
    for levels in (MAX_LEVELS + 2, 250, 600, 5_000, 200_000):
        with pytest.raises(ValueError, match=r"^(nests types more than 150 levels deep|is nested too deeply)$"):
            read_avro_schema(nested(kind, levels))


def test_the_number_of_types_is_limited() -> None:
    with pytest.raises(ValueError, match=r"^has more than 200,000 types$"):
        read_avro_schema(json.dumps(["int"] * MAX_TYPES))


def test_a_number_of_thousands_of_digits_is_no_json() -> None:
    with pytest.raises(ValueError, match=r"^is not JSON: "):
        read_avro_schema('{"type":"fixed","name":"F","size":' + "9" * 10_000 + "}")


def test_schemas_that_are_referred_to_may_contain_the_same_type_but_not_another_of_its_name() -> None:
    first, copy, other = (json.dumps(record(ENUM | {"symbols": symbols}, name=name)) for symbols, name in (
        (["A"], "Q"), (["A"], "P"), (["B"], "P")))  # fmt: skip
    assert set(read_avro_schema(json.dumps(record("P", "Q")), [first, copy]).named) == {"E", "P", "Q", "R"}
    with pytest.raises(ValueError, match="the type E has another definition in a schema that is referred to"):
        read_avro_schema(json.dumps(record("P", "Q")), [first, other])


def test_an_unusual_union_of_records_takes_no_time_that_grows_with_the_path() -> None:
    names = [f"R{n}" for n in range(40)]
    union = [{"type": "record", "name": name, "fields": []} for name in names]
    for each in union:
        each["fields"] = [{"name": "x", "type": names}]
    # Each record names all of them, so all are defined first.
    text = json.dumps(record(*names))
    with pytest.raises(ValueError, match="R1 is not defined"):
        read_avro_schema(json.dumps(union))
    chain = [
        json.dumps({"type": "record", "name": name, "fields": [{"name": "x", "type": ["null", *names[:n]]}]})
        for n, name in enumerate(names)
    ]
    schema = read_avro_schema(text, chain)
    assert schema.missing_field(("f39", *["x"] * 39, "y")) == ["x"]
    assert schema.missing_field(("f39", *["x"] * 39)) is None


def test_fastavro_refuses_what_is_ignored_here() -> None:
    """If this fails, fastavro has become lenient, and may read the schemas again."""
    with pytest.raises(fastavro.schema.SchemaParseException):
        fastavro.parse_schema(record(fields=[{"name": "a", "type": "int", "default": "0"}]))
