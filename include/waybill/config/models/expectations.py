"""Expectations of Great Expectations in the YAML, and the checks of their names, arguments and columns.

Great Expectations takes seconds to import, so the config is checked against a catalog of its expectations, the file
`expectation_catalog.json`. `waybill.tables.audit.expectation_catalog` makes it from the library that is installed.
"""

from __future__ import annotations

import ast
import difflib
import functools
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from waybill.config.models.base import ValueType, section_error
from waybill.config.models.columns import ColumnKind, ColumnType
from waybill.config.models.enums import Severity
from waybill.config.models.expectation_values import MismatchedValue, typed_arguments

CATALOG_PATH = Path(__file__).with_name("expectation_catalog.json")

_SEVERITY = "severity"
_ROW_CONDITION, _CONDITION_PARSER = "row_condition", "condition_parser"
_PARSERS = ("pandas", "great_expectations")
_COLUMN_CALL = re.compile(r"""col\(\s*["']([^"']*)["']\s*\)""")
_BACKTICKS = re.compile(r"`([^`]*)`")


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One expectation of Great Expectations."""

    arguments: tuple[str, ...]
    required: tuple[str, ...]
    columns: tuple[str, ...]
    """The arguments that contain names of columns."""


@functools.cache
def _catalog_document() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(CATALOG_PATH.read_text(encoding="utf-8"))
    return found


def catalog_version() -> str:
    """Return the version of Great Expectations that the catalog was made of."""
    return str(_catalog_document()["version"])


def expectation_names() -> tuple[str, ...]:
    """Return the names of the expectations that an audit can evaluate."""
    return tuple(_catalog())


@functools.cache
def _catalog() -> Mapping[str, CatalogEntry]:
    """Return the expectations that an audit can evaluate, by name."""
    return {
        name: CatalogEntry(*(tuple(entry[key]) for key in ("arguments", "required", "columns")))
        for name, entry in _catalog_document()["expectations"].items()
    }


@dataclass(frozen=True, slots=True)
class Expectation:
    """An expectation of Great Expectations with its arguments."""

    name: str
    """The name that Great Expectations gives it, such as `expect_column_values_to_be_between`."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    severity: Severity = Severity.WARNING

    def __hash__(self) -> int:
        return hash((self.name, self.severity))

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that the expectation reads, those of its row condition included, each once."""
        return tuple(dict.fromkeys(column for _, column in self._columns_by_argument()))

    def check_columns(self, known: Collection[str]) -> tuple[str, str] | None:
        """Return the argument that names a column that is not in `known`, and the error; None if there is none."""
        for argument, column in self._columns_by_argument():
            if column not in known:
                return argument, f"unknown column {column!r}{_nearest(column, known)} Columns: {', '.join(known)}"
        return None

    def check_values(self, types: Mapping[str, ColumnType]) -> tuple[str, str] | None:
        """Return the argument with a value that cannot be compared with its column, and the error.

        None if there is none.

        `types`: the types of the columns, by name.
        """
        try:
            typed_arguments(self.name, self.arguments, types)
        except MismatchedValue as error:
            return error.argument, str(error)
        condition = self.arguments.get(_ROW_CONDITION)
        if isinstance(condition, str) and self.arguments.get(_CONDITION_PARSER) != "great_expectations":
            for column in _wrongly_compared(condition, types):
                return _ROW_CONDITION, (
                    f"compares the column {column!r}, which is of the type {types[column]}, with a value of another "
                    f"type: write the condition as a section, {{type: comparison, column: {{name: {column}}}, "
                    f"operator: '==', parameter: …}}, whose parameter is converted"
                )
        return None

    def _columns_by_argument(self) -> Iterator[tuple[str, str]]:
        for argument in _catalog()[self.name].columns:
            value = self.arguments.get(argument)
            for column in value if isinstance(value, list | tuple) else [value]:
                if column is not None:
                    yield argument, column
        for column in _condition_columns(self.arguments.get(_ROW_CONDITION), self.arguments.get(_CONDITION_PARSER)):
            yield _ROW_CONDITION, column


class IsExpectation(ValueType):
    """An `Expectation`: a section whose one key is the expectation's name, and optionally `severity`."""

    type_name = "expectation"
    allowed = "`{<name>: {<argument>: <value>, …}, severity: <severity>}`"

    def parse(self, value: Any) -> Expectation:
        """Return the expectation. The error is shown at the key that is wrong."""
        if isinstance(value, Expectation):
            return value
        if not isinstance(value, dict):
            raise ValueError(f"must be {self.allowed.replace('`', '')}")
        found = [key for key in value if key != _SEVERITY]
        if len(found) != 1:
            several = f"has {len(found)} names ({', '.join(map(str, found))})" if found else "has no name"
            raise ValueError(
                f"{several}: an expectation is {self.allowed.replace('`', '')}, each in an item of its own"
            )
        [name] = found
        entry = _find_entry(name)
        arguments = {} if value[name] is None else value[name]
        if not isinstance(arguments, dict):
            raise section_error(name, f"must be a section with the arguments {', '.join(entry.arguments)}")
        _check_arguments(name, entry, arguments)
        return Expectation(name, arguments, _parse_severity(value.get(_SEVERITY, Severity.WARNING)))

    def format(self, value: Expectation) -> dict[str, Any]:
        return {value.name: dict(value.arguments), _SEVERITY: str(value.severity)}

    def json_schema(self) -> JsonSchemaValue:
        severity = {_SEVERITY: {"enum": [str(each) for each in Severity]}}
        by_name = {
            name: {
                "type": ["object", "null"],
                "properties": {argument: {} for argument in entry.arguments},
                "required": list(entry.required),
                "additionalProperties": False,
            }
            for name, entry in _catalog().items()
        }
        return {"type": "object", "properties": {**severity, **by_name}, "additionalProperties": False}


class IsExpectationList(ValueType):
    """Describes a tuple of expectations; each is an `IsExpectation`, so each error names its own line."""

    type_name = "list of expectations"
    allowed = f"each {IsExpectation.allowed}"

    def parse(self, value: Any) -> Any:
        """Return the value unchanged: its items are parsed one by one."""
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_refuse_no_list, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(schema)


def _refuse_no_list(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of expectations, each with `-` before its name")
    return value


def _find_entry(name: Any) -> CatalogEntry:
    entry = _catalog().get(name)
    if entry is not None:
        return entry
    why = _catalog_document()["unsupported"].get(name)
    if why is not None:
        raise section_error(str(name), f"{name} {why}")
    raise section_error(
        str(name), f"Great Expectations {catalog_version()} has no expectation {name!r}{_nearest(name, _catalog())}"
    )


def _parse_severity(value: Any) -> Severity:
    if value not in set(Severity):
        raise section_error(_SEVERITY, f"must be {_joined([*Severity])}")
    return Severity(value)


def _check_arguments(name: str, entry: CatalogEntry, arguments: Mapping[str, Any]) -> None:
    for argument in arguments:
        if argument == _SEVERITY:
            raise section_error((name, argument), f"belongs beside {name}, not among its arguments")
        if argument not in entry.arguments:
            known = f"Arguments: {', '.join(entry.arguments)}"
            raise section_error((name, str(argument)), f"unknown argument{_nearest(argument, entry.arguments)} {known}")
    missing = [argument for argument in entry.required if arguments.get(argument) is None]
    if missing:
        raise section_error(name, f"needs the argument {missing[0]}")
    for argument in entry.columns:
        _check_column_argument(name, argument, arguments.get(argument))
    mostly = arguments.get("mostly", 1)
    if isinstance(mostly, bool) or not isinstance(mostly, int | float) or not 0 <= mostly <= 1:
        raise section_error((name, "mostly"), "must be a number from 0 to 1")
    _check_condition(name, arguments)


def _check_column_argument(name: str, argument: str, value: Any) -> None:
    if argument in ("column_list", "column_set"):
        if value is not None and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            raise section_error((name, argument), "must be a list of columns")
    elif value is not None and not isinstance(value, str):
        raise section_error((name, argument), "must be the name of a column")


def _check_condition(name: str, arguments: Mapping[str, Any]) -> None:
    condition, parser = arguments.get(_ROW_CONDITION), arguments.get(_CONDITION_PARSER)
    if parser is not None and parser not in _PARSERS:
        raise section_error((name, _CONDITION_PARSER), f"must be {_joined(_PARSERS)}")
    if parser is not None and not isinstance(condition, str):
        raise section_error((name, _CONDITION_PARSER), f"has no effect without a {_ROW_CONDITION} that is a text")
    try:
        list(_condition_columns(condition, parser))
    except ValueError as error:
        raise section_error((name, _ROW_CONDITION), str(error)) from None


# --- row conditions ---------------------------------------------------------------------------------------------------


def _condition_columns(condition: Any, parser: str | None) -> Iterator[str]:
    """Yield the columns that a row condition reads. Raise `ValueError` if it is none."""
    if condition is None:
        return
    if isinstance(condition, dict):
        yield from _section_columns(condition)
    elif not isinstance(condition, str) or not condition.strip():
        raise ValueError(
            "must be a text such as 'carrier == \"AA\"', or a condition of Great Expectations as a section"
        )
    elif parser == "great_expectations":
        found = _COLUMN_CALL.findall(condition)
        if not found:
            raise ValueError('must name a column as col("…"): col("carrier") == "AA"')
        yield from found
    else:
        yield from _query_columns(condition)


def _section_columns(condition: Mapping[str, Any]) -> Iterator[str]:
    """Yield the columns of a condition in the form in which Great Expectations stores it as JSON."""
    match condition:
        case {"type": "and" | "or", "conditions": [*conditions]}:
            for each in conditions:
                if not isinstance(each, dict):
                    raise ValueError("its conditions must be sections with a type")
                yield from _section_columns(each)
        case {"type": "comparison", "column": {"name": str(column)}, "operator": str(), "parameter": _}:
            yield column
        case {"type": "nullity", "column": {"name": str(column)}, "is_null": bool()}:
            yield column
        case _:
            raise ValueError(
                "must have the form {type: comparison, column: {name: …}, operator: '==', parameter: …}, "
                "{type: nullity, column: {name: …}, is_null: …}, or {type: and, conditions: […]} (or `or`)"
            )


def _query_columns(text: str) -> Iterator[str]:
    """Yield the columns that an expression for `DataFrame.query` reads."""
    if "@" in text:
        raise ValueError("must not contain @: there are no variables")
    try:
        tree = ast.parse(_BACKTICKS.sub(r"\1", text.strip()), mode="eval")
    except (SyntaxError, ValueError, RecursionError) as error:
        reason = getattr(error, "msg", None) or str(error)
        raise ValueError(f"is not an expression of pandas ({reason}): 'carrier == \"AA\" and delay > 5'") from None
    functions = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and id(node) not in functions:
            yield node.id


_LITERALS: Mapping[ColumnKind, tuple[type, ...]] = {
    ColumnKind.BOOLEAN: (bool,),
    **dict.fromkeys((ColumnKind.INT, ColumnKind.LONG, ColumnKind.DOUBLE, ColumnKind.DECIMAL), (int, float)),
    ColumnKind.FLOAT: (int,),
    **dict.fromkeys((ColumnKind.STRING, ColumnKind.JSON), (str,)),
    ColumnKind.BINARY: (bytes,),
}
"""The literals of Python that a column of a type can be equal to. There are none for dates and times."""


def _wrongly_compared(text: str, types: Mapping[str, ColumnType]) -> Iterator[str]:
    """Yield the columns that an expression for `DataFrame.query` compares with literals of another type.

    pandas compares them nevertheless, and then selects no row.
    """
    for node in ast.walk(ast.parse(_BACKTICKS.sub(r"\1", text.strip()), mode="eval")):
        if not isinstance(node, ast.Compare):
            continue
        operands = [node.left, *node.comparators]
        named = [each.id for each in operands if isinstance(each, ast.Name) and each.id in types]
        values = [value for each in operands for value in _literals(each)]
        for column in named:
            kind = types[column]
            allowed = () if kind.is_list else _LITERALS.get(kind.kind, ())
            long = kind.kind is ColumnKind.DECIMAL and kind.precision > 15 and any(isinstance(v, float) for v in values)
            if long or any(type(value) not in allowed for value in values if value is not None):
                yield column


def _literals(node: ast.expr) -> Iterator[Any]:
    if isinstance(node, ast.Constant):
        yield node.value
    elif isinstance(node, ast.UnaryOp):
        yield from _literals(node.operand)
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        for each in node.elts:
            yield from _literals(each)


# --- texts ------------------------------------------------------------------------------------------------------------


def _nearest(name: Any, known: Collection[str]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"; did you mean {near[0]!r}?" if near else "."


def _joined(words: Collection[str]) -> str:
    *first, last = map(str, words)
    return f"{', '.join(first)} or {last}"
