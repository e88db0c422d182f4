"""The section `columns:` of a stream."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from waybill.base.errors import ConfigError
from waybill.config.models import Column, ColumnKind, ColumnType, ParseSettings, Stream, WrongType, load_config
from waybill.config.models.reference import json_schema

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
    ("written", "expected"),
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
def test_column_types_are_read_and_written(tmp_path: Path, written: str, expected: ColumnType) -> None:
    column = load(tmp_path, f"a: {written}").columns["a"]
    assert column == load(tmp_path, f"a: {{type: '{written}'}}").columns["a"] == Column(type=expected)
    assert str(expected) == written.replace(" ", "")


def test_a_columns_field_is_its_name_unless_configured(tmp_path: Path) -> None:
    columns = load(
        tmp_path, "{a: int, b: {type: timestamp, field: time.sent, format: epoch_ms}, c: {type: int, field: [d.e]}}"
    ).columns
    assert {name: column.path(name) for name, column in columns.items()} == {
        "a": ("a",),
        "b": ("time", "sent"),
        "c": ("d.e",),
    }


@pytest.mark.parametrize("written", ["null", "'null'", "~"])
def test_wrong_type_accepts_yamls_null(tmp_path: Path, written: str) -> None:
    assert load(tmp_path, f"a: {{type: int, wrong_type: {written}}}").columns["a"].wrong_type is WrongType.NULL


def test_parse_settings_survive_a_dump_to_json(tmp_path: Path) -> None:
    settings = load(
        tmp_path, "{a: {type: int, wrong_type: null}, b: {type: timestamp, format: epoch_s}, c: 'decimal(5,2)'}"
    ).parse_settings
    assert ParseSettings.model_validate(json.loads(json.dumps(settings.model_dump(mode="json")))) == settings


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ("Carrier: string", "line 9: streams.s.columns.Carrier: must be a lower-case letter or _"),
        ("offset: long", "line 9: streams.s.columns.offset: 'offset' is one of Waybill's own columns (topic, "),
        ("_file: string", "'_file' is reserved by Iceberg"),
        ("a: varchar", "streams.s.columns.a: must be boolean, int, long,"),
        ("a: 7", "must be a section with the keys type, field, format, wrong_type"),
        ("a: {field: b}", "streams.s.columns.a.type: is required but missing"),
        ("a: decimal", "decimal needs a precision and a scale"),
        ("a: decimal(39,1)", "decimal(P,S) has 1 to 38 digits"),
        ("a: decimal(3,4)", "decimal(P,S) has 1 to 38 digits"),
        ("a: int(3,1)", "int has no precision and scale"),
        ("a: list<int", "or list<…> of one of these"),
        ("a: list<list<int>>", "or list<…> of one of these"),
        ("a: {type: decimal(5,2)}", "between braces, a comma needs quotes"),
        ("a: {type: int, format: epoch_s}", "a.format: applies to timestamps only, and the type is int"),
        ("a: {type: int, wrong_type: drop}", "columns.a.wrong_type: must be 'quarantine' or 'null'"),
        ("a: {type: int, feild: b}", "unknown key; did you mean 'field'?"),
    ],
)
def test_an_invalid_column_is_refused(tmp_path: Path, columns: str, error: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, columns)
    assert error in str(refused.value)


@pytest.mark.parametrize(
    ("parser", "columns", "error"),
    [
        ("name: raw", "a: int", "line 8: streams.s.columns: the parser raw does not read values"),
        (REGEX, "a: int", "columns.a: must be one of the groups of the pattern: t, size"),
        (REGEX, "a: {type: int, field: b}", "line 9: streams.s.columns.a.field: must be one of the groups"),
        (REGEX, "size: list<int>", "streams.s.columns.size: a text field cannot be a list"),
        (DELIMITED, "a: int", "columns.a: must be one of the columns: t, size"),
        (PYTHON, "a: {type: int, field: b}", "columns.a.field: has no effect with the parser python"),
        (PYTHON, "a: {type: int, wrong_type: null}", "columns.a.wrong_type: has no effect with the parser python"),
    ],
)
def test_a_column_that_the_parser_cannot_return_is_refused(
    tmp_path: Path, parser: str, columns: str, error: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, columns, parser)
    assert error in str(refused.value)


@pytest.mark.parametrize("parser", [JSON, REGEX, DELIMITED, PYTHON])
def test_a_column_that_the_parser_can_return_is_accepted(tmp_path: Path, parser: str) -> None:
    assert set(load(tmp_path, "size: int", parser).columns) == {"size"}


def test_json_schema_accepts_both_forms_of_a_column() -> None:
    schema = json.loads(json_schema())
    column = jsonschema.Draft202012Validator({"$ref": "#/$defs/Column", "$defs": schema["$defs"]})
    for right in ("string", "decimal(12,2)", "list<int>", {"type": "int", "field": "a.b", "wrong_type": None}):
        column.validate(right)
    for wrong in (7, "STRING", {"field": "a"}, {"type": "int", "x": 1}):
        assert not column.is_valid(wrong)
