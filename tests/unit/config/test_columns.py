"""The section `columns:` of a stream."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from waybill.config import Column, ColumnKind, ColumnType, Reading, Stream, WrongType, load_config
from waybill.config.reference import json_schema
from waybill.errors import ConfigError

JSON = "name: json, event_time: {field: t}"
REGEX = "name: regex, pattern: '(?P<t>\\S+) (?P<size>\\d+)', event_time: {field: t}"
DELIMITED = "name: delimited, columns: [t, size], event_time: {field: t}"
PYTHON = "name: python, class: 'waybill.parsers.examples:KeyTime'"


def load(tmp_path: Path, columns: str, parser: str = JSON) -> Stream:
    file = tmp_path / "streams.yaml"
    file.write_text(
        "version: 1\nstorage: {bucket: archive}\nstreams:\n  s:\n    topics: [s]\n    table: a.b\n"
        f"    parser: {{{parser}}}\n    columns:\n      {columns}\n"
    )
    return load_config(file).stream("s")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("boolean", ColumnType(ColumnKind.BOOLEAN)),
        ("int", ColumnType(ColumnKind.INT)),
        ("json", ColumnType(ColumnKind.JSON)),
        ("decimal(12,2)", ColumnType(ColumnKind.DECIMAL, 12, 2)),
        ("decimal( 38 , 38 )", ColumnType(ColumnKind.DECIMAL, 38, 38)),
        ("list<string>", ColumnType(ColumnKind.STRING, is_list=True)),
        ("list<decimal(3,1)>", ColumnType(ColumnKind.DECIMAL, 3, 1, is_list=True)),
    ],
)
def test_types(tmp_path: Path, written: str, meant: ColumnType) -> None:
    column = load(tmp_path, f"a: {written}").columns["a"]
    assert column == load(tmp_path, f"a: {{type: '{written}'}}").columns["a"] == Column(type=meant)
    assert str(meant) == written.replace(" ", "")


def test_a_column_is_the_field_of_its_name_unless_the_config_says_another(tmp_path: Path) -> None:
    columns = load(
        tmp_path, "{a: int, b: {type: timestamp, field: time.sent, format: epoch_ms}, c: {type: int, field: [d.e]}}"
    ).columns
    assert {name: column.path(name) for name, column in columns.items()} == {
        "a": ("a",),
        "b": ("time", "sent"),
        "c": ("d.e",),
    }


@pytest.mark.parametrize("written", ["null", "'null'", "~"])
def test_null_as_yaml_has_it_is_the_word_that_is_meant(tmp_path: Path, written: str) -> None:
    assert load(tmp_path, f"a: {{type: int, wrong_type: {written}}}").columns["a"].wrong_type is WrongType.NULL


def test_what_a_plan_keeps_of_the_columns_is_what_they_were(tmp_path: Path) -> None:
    reading = load(
        tmp_path, "{a: {type: int, wrong_type: null}, b: {type: timestamp, format: epoch_s}, c: 'decimal(5,2)'}"
    ).reading
    assert Reading.model_validate(json.loads(json.dumps(reading.model_dump(mode="json")))) == reading


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ("Carrier: string", "line 9: streams.s.columns.Carrier: must be a lower-case letter or _"),
        ("offset: long", "line 9: streams.s.columns.offset: 'offset' is one of Waybill's own columns: give it another"),
        ("_file: string", "'_file' is reserved by Iceberg"),
        ("a: varchar", "streams.s.columns.a: must be boolean, int, long,"),
        ("a: 7", "must be a section with the keys type, field, format, wrong_type"),
        ("a: {field: b}", "streams.s.columns.a.type: is required and not there"),
        ("a: decimal", "decimal has its precision and scale"),
        ("a: decimal(39,1)", "decimal(P,S) has 1 to 38 digits"),
        ("a: decimal(3,4)", "decimal(P,S) has 1 to 38 digits"),
        ("a: int(3,1)", "int has no figures"),
        ("a: list<int", "or list<…> of one of these"),
        ("a: list<list<int>>", "or list<…> of one of these"),
        ("a: {type: decimal(5,2)}", "between braces, a comma needs quotes"),
        ("a: {type: int, format: epoch_s}", "a.format: says how a timestamp is written, and the type is int"),
        ("a: {type: int, wrong_type: drop}", "columns.a.wrong_type: must be 'quarantine' or 'null'"),
        ("a: {type: int, feild: b}", "there is no such key; did you mean 'field'?"),
    ],
)
def test_what_is_refused(tmp_path: Path, columns: str, fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, columns)
    assert fault in str(refused.value)


@pytest.mark.parametrize(
    ("parser", "columns", "fault"),
    [
        ("name: raw", "a: int", "line 8: streams.s.columns: the parser raw looks into no value"),
        (REGEX, "a: int", "columns.a: must be one of the groups of the pattern: t, size"),
        (REGEX, "a: {type: int, field: b}", "line 9: streams.s.columns.a.field: must be one of the groups"),
        (REGEX, "size: list<int>", "streams.s.columns.size: a field of text is no list"),
        (DELIMITED, "a: int", "columns.a: must be one of the columns: t, size"),
        (PYTHON, "a: {type: int, field: b}", "columns.a.field: means nothing to the parser python"),
        (PYTHON, "a: {type: int, wrong_type: null}", "columns.a.wrong_type: means nothing to the parser python"),
    ],
)
def test_what_a_parser_cannot_fill_is_refused(tmp_path: Path, parser: str, columns: str, fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, columns, parser)
    assert fault in str(refused.value)


@pytest.mark.parametrize("parser", [JSON, REGEX, DELIMITED, PYTHON])
def test_what_a_parser_can_fill_is_taken(tmp_path: Path, parser: str) -> None:
    assert set(load(tmp_path, "size: int", parser).columns) == {"size"}


def test_the_schema_for_editors_knows_both_forms() -> None:
    schema = json.loads(json_schema())
    column = jsonschema.Draft202012Validator({"$ref": "#/$defs/Column", "$defs": schema["$defs"]})
    for right in ("string", "decimal(12,2)", "list<int>", {"type": "int", "field": "a.b", "wrong_type": None}):
        column.validate(right)
    for wrong in (7, "STRING", {"field": "a"}, {"type": "int", "x": 1}):
        assert not column.is_valid(wrong)
