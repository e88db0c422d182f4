"""Convert pydantic's errors about a YAML file to lines with file, line, key, the allowed values and the found value."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from waybill.config.models import document

_SHOWN_CHARACTERS = 80


def describe_all(path: Path, root: document.Node, model: type[BaseModel], error: ValidationError) -> list[str]:
    """Return the errors in the file at `path`, which was validated as `model`, as lines, each once."""
    return list(dict.fromkeys(describe(path, root, model, each) for each in error.errors(include_url=False)))


def describe(path: Path, root: document.Node, model: type[BaseModel], error: Any) -> str:
    """Return one of pydantic's errors as one line."""
    kind, context = str(error["type"]), error.get("ctx", {})
    missing = kind == "missing"
    node, line, keys = _locate(root, (*error["loc"], *context.get("at", ())))
    if missing:
        keys = (*keys, error["loc"][-1])
    where = f"{path}, line {line}: {'.'.join(str(key) for key in keys) or 'the file'}"
    if missing:
        return f"{where}: is required but missing"
    if kind == "extra_forbidden":
        return f"{where}: unknown key{_suggestion(model, root, keys)}"
    found = "" if kind == "overlap" else f" (found: {_shorten(node)})"
    return f"{where}: {_message(model, root, kind, error, keys)}{found}"


def find_line(root: document.Node, location: Iterable[str | int]) -> int:
    """Return the line of the value at a location."""
    return _locate(root, location)[1]


def _locate(root: document.Node, location: Iterable[str | int]) -> tuple[document.Node, int, tuple[str | int, ...]]:
    """Return the node at a pydantic location, its line, and the keys that lead to it.

    Pydantic adds the tags of union members and the names of validators to a location. They are not keys of the file,
    so they are skipped.
    """
    node: document.Node = root
    line, keys = root.line, tuple[str | int, ...]()
    for part in location:
        if isinstance(node, document.Mapping) and isinstance(part, str) and part in node.items:
            line, node = node.key_lines[part], node.items[part]
        elif isinstance(node, document.SequenceNode) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            line = node.line
        else:
            continue
        keys = (*keys, part)
    return node, line, keys


def _message(whole: type[BaseModel], root: document.Node, kind: str, error: Any, keys: tuple[str | int, ...]) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    if kind in {"model_type", "model_attributes_type", "dict_type"}:
        model = _model_at(whole, root, keys)
        return f"must be a section with the keys {', '.join(_keys_of(model))}" if model else "must be a section"
    if kind == "too_short":
        return "must have at least one entry"
    if kind in {"enum", "literal_error"}:
        return message.replace("Input should be", "must be", 1)
    return message


def _suggestion(whole: type[BaseModel], root: document.Node, keys: tuple[str | int, ...]) -> str:
    """Return the nearest known key, if one is similar, and all known keys of the section."""
    model = _model_at(whole, root, keys[:-1])
    if model is None:
        return ""
    near = difflib.get_close_matches(str(keys[-1]).lower().replace("-", "_"), _keys_of(model), n=1)
    nearest = f"; did you mean {near[0]!r}?" if near else "."
    return f"{nearest} Known keys: {', '.join(_keys_of(model))}"


def _keys_of(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(whole: type[BaseModel], root: document.Node, keys: tuple[str | int, ...]) -> type[BaseModel] | None:
    """Return the model of the section at `keys`; None if it has none."""
    model: type[BaseModel] | None = whole
    node: document.Node | None = root
    steps = iter(keys)
    for key in steps:
        field = model.model_fields.get(str(key)) if model else None
        if field is None:
            return None
        node = child(node, key)
        model = _model_by_name(list(_models_in(field.annotation)), node)
        if model and getattr(field.annotation, "__origin__", None) is dict:
            node = child(node, next(steps, None))  # skips the name of the entry
    return model


def child(node: document.Node | None, key: str | int | None) -> document.Node | None:
    """Return the value of a key, if the node is a mapping that has it."""
    return node.items.get(str(key)) if isinstance(node, document.Mapping) else None


def _model_by_name(models: list[type[BaseModel]], node: document.Node | None) -> type[BaseModel] | None:
    """Return the one of several models, such as the parsers', that has the section's `name`; else the first."""
    name = child(node, "name")
    if isinstance(name, document.Scalar):
        for model in models:
            field = model.model_fields.get("name")
            if field is not None and name.value in get_args(field.annotation):
                return model
    return next(iter(models), None)


def _models_in(annotation: Any) -> Iterable[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _shorten(node: document.Node) -> str:
    """Return a value as the file writes it, cut to `_SHOWN_CHARACTERS`."""
    if isinstance(node, document.Scalar):
        text = "nothing" if node.value is None else json.dumps(node.value, ensure_ascii=False, default=str)
    else:  # an alias may stand for a million values, so only the part that is shown is formatted
        text = _outline(node)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _outline(node: document.Mapping | document.SequenceNode) -> str:
    if isinstance(node, document.Mapping):
        return f"a section with the keys {', '.join(node.items)}" if node.items else "an empty section"
    if not node.items:
        return "an empty list"
    shown = [_shorten(i) if isinstance(i, document.Scalar) else "…" for i in node.items[:_SHOWN_CHARACTERS]]
    return f"[{', '.join(shown)}]"
