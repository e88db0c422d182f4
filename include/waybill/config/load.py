"""From a YAML file to a `Config`, or to an error that names file, line, key, value and what is allowed."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from waybill.config import document
from waybill.config.embedded_file import DIRECTORY
from waybill.config.root import Config
from waybill.errors import ConfigError

__all__ = ["CONFIG_VARIABLE", "DEFAULT_PATH", "MAX_FILE_BYTES", "config_path", "load_config"]

CONFIG_VARIABLE = "WAYBILL_CONFIG"
DEFAULT_PATH = Path(__file__).parents[2] / "config" / "streams.yaml"

MAX_FILE_BYTES = 16 << 20
"""A config of that size has some 30,000 streams; what is larger is some other file."""

_SHOWN_CHARACTERS = 80


def config_path(environment: Mapping[str, str] | None = None) -> Path:
    """`WAYBILL_CONFIG` if it is set, else the project's `include/config/streams.yaml`."""
    environment = os.environ if environment is None else environment
    return Path(environment.get(CONFIG_VARIABLE) or DEFAULT_PATH)


def load_config(path: Path | None = None) -> Config:
    """Read and check the config at `path` (default: `config_path()`).

    Raises `ConfigError` with one line for each fault: file, line, key, what is allowed, and what was found.
    """
    path = path or config_path()
    text = _read(path)
    try:
        root = document.parse_document(text)
    except document.DocumentError as error:
        line = f", line {error.line}" if error.line else ""
        raise ConfigError(f"{path}{line}: {error.reason}") from None
    if root is None:
        raise ConfigError(f"{path}: is empty; it needs at least: version, storage, streams")
    try:
        return Config.model_validate(document.plain(root), context={DIRECTORY: path.parent})
    except ValidationError as error:
        faults = [_describe(path, root, fault) for fault in error.errors(include_url=False)]
        raise ConfigError("\n".join(dict.fromkeys(faults))) from None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = f"{CONFIG_VARIABLE} names it" if os.environ.get(CONFIG_VARIABLE) == str(path) else ""
        remedy = hint or f"name another file with {CONFIG_VARIABLE}"
        raise ConfigError(f"{path}: the config cannot be read ({reason}); {remedy}") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: is larger than {MAX_FILE_BYTES >> 20} MiB: this is no config")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: is not UTF-8 text") from None


def _describe(path: Path, root: document.Node, fault: Any) -> str:
    """One fault of pydantic's in one line."""
    kind, context = str(fault["type"]), fault.get("ctx", {})
    missing = kind == "missing"
    node, line, keys = _locate(root, (*fault["loc"], *context.get("at", ())))
    if missing:
        keys = (*keys, fault["loc"][-1])
    where = f"{path}, line {line}: {'.'.join(str(key) for key in keys) or 'the file'}"
    if missing:
        return f"{where}: is required and not there"
    if kind == "extra_forbidden":
        return f"{where}: there is no such key{_suggestion(root, keys)}"
    found = "" if kind == "overlap" else f" (found: {_shown(node)})"
    return f"{where}: {_message(root, kind, fault, keys)}{found}"


def _locate(root: document.Node, location: Iterable[str | int]) -> tuple[document.Node, int, tuple[str | int, ...]]:
    """The node at a pydantic location, its line, and the keys that lead to it.

    pydantic adds the names of a union's members and of validators to a location: they are in no file, and left out.
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


def _message(root: document.Node, kind: str, fault: Any, keys: tuple[str | int, ...]) -> str:
    message = str(fault["msg"]).removeprefix("Value error, ")
    if kind in {"model_type", "model_attributes_type", "dict_type"}:
        model = _model_at(root, keys)
        return f"must be a section with the keys {', '.join(_keys_of(model))}" if model else "must be a section"
    if kind == "too_short":
        return "must have at least one entry"
    if kind in {"enum", "literal_error"}:
        return message.replace("Input should be", "must be", 1)
    return message


def _suggestion(root: document.Node, keys: tuple[str | int, ...]) -> str:
    """Which key was probably meant, and which there are."""
    model = _model_at(root, keys[:-1])
    if model is None:
        return ""
    near = difflib.get_close_matches(str(keys[-1]).lower().replace("-", "_"), _keys_of(model), n=1)
    meant = f"; did you mean {near[0]!r}?" if near else "."
    return f"{meant} There are: {', '.join(_keys_of(model))}"


def _keys_of(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(root: document.Node, keys: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The model that describes the section at `keys`."""
    model: type[BaseModel] | None = Config
    node: document.Node | None = root
    steps = iter(keys)
    for key in steps:
        field = model.model_fields.get(str(key)) if model else None
        if field is None:
            return None
        node = _below(node, key)
        model = _named(list(_models_in(field.annotation)), node)
        if model and getattr(field.annotation, "__origin__", None) is dict:
            node = _below(node, next(steps, None))  # the entry's own name
    return model


def _below(node: document.Node | None, key: str | int | None) -> document.Node | None:
    return node.items.get(str(key)) if isinstance(node, document.Mapping) else None


def _named(models: list[type[BaseModel]], node: document.Node | None) -> type[BaseModel] | None:
    """Of several models that a section can be, the one whose `name` it has; else the first."""
    name = _below(node, "name")
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


def _shown(node: document.Node) -> str:
    """A value as one would write it, cut to a line."""
    if isinstance(node, document.Scalar):
        text = "nothing" if node.value is None else json.dumps(node.value, ensure_ascii=False, default=str)
    else:  # what an anchor stands for may be huge: never spell out more than is shown
        text = _outline(node)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _outline(node: document.Mapping | document.SequenceNode) -> str:
    if isinstance(node, document.Mapping):
        return f"a section with the keys {', '.join(node.items)}" if node.items else "an empty section"
    if not node.items:
        return "an empty list"
    shown = [_shown(i) if isinstance(i, document.Scalar) else "…" for i in node.items[:_SHOWN_CHARACTERS]]
    return f"[{', '.join(shown)}]"
