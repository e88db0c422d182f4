"""The forms of DAGs that people trigger, built from the declarations of the operations."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param

from waybill.config.models import Config
from waybill.interfaces.operations.declaration import TIME_PATTERN, DagForm, Kind, Parameter

_TYPES = {Kind.TEXTS: "array", Kind.NUMBER: "integer", Kind.FLAG: "boolean"}


def form_params(form: DagForm, config: Config) -> dict[str, Param]:
    """Return the fields of a form, which offers the streams of the config. Airflow refuses other values."""
    return {each.name: form_param(each, sorted(config.streams)) for each in form.parameters}


def form_param(parameter: Parameter, streams: list[str]) -> Param:
    """Return the field of a parameter."""
    schema: dict[str, Any] = {"title": parameter.title, **_constraints(parameter, streams)}
    kind = _TYPES.get(parameter.kind, "string")
    schema["type"] = kind if parameter.is_required or parameter.kind is Kind.FLAG else ["null", kind]
    if parameter.name == "accept_failed_checks" and kind == "string":
        schema["type"].append("boolean")  # the type that the form of `backfill` accepts under this name
    if parameter.description:
        schema["description"] = parameter.description
    if parameter.kind in (Kind.FLAG, Kind.TEXTS):
        schema["default"] = False if parameter.kind is Kind.FLAG else []
    elif parameter.default is not None or not parameter.is_required:
        schema["default"] = parameter.default
    return Param(**schema)


def _constraints(parameter: Parameter, streams: list[str]) -> dict[str, Any]:
    """Return the constraints of JSON Schema on a value, besides its type."""
    match parameter.kind:
        case Kind.STREAM:
            return {"enum": streams if parameter.is_required else [None, *streams]}
        case Kind.TIME:
            # `format` only chooses the form's field: without an optional library it checks nothing. `pattern` does.
            return {"format": "date-time", "pattern": TIME_PATTERN}
        case Kind.TEXTS:
            return {"items": {"type": "string"}, **_given(minItems=parameter.at_least)}
        case Kind.NUMBER:
            return _given(minimum=parameter.at_least, maximum=parameter.at_most)
        case Kind.TEXT if parameter.choices:
            return {"enum": list(parameter.choices)}
        case Kind.TEXT if parameter.pattern:
            return {"pattern": parameter.pattern}
        case Kind.TEXT if parameter.is_required:
            return {"minLength": 1}
    return {}


def _given(**constraints: int | None) -> dict[str, int]:
    return {name: value for name, value in constraints.items() if value is not None}
