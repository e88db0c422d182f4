"""Load a YAML file as a `Config`, or raise an error that names file, line, key, value and what is allowed."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from waybill.config import document
from waybill.config.base import DIRECTORY
from waybill.config.root import Config
from waybill.errors import ConfigError

__all__ = ["CONFIG_VARIABLE", "DEFAULT_PATH", "MAX_FILE_BYTES", "config_path", "load_config", "load_valid_streams"]

CONFIG_VARIABLE = "WAYBILL_CONFIG"
DEFAULT_PATH = Path(__file__).parents[2] / "config" / "streams.yaml"

MAX_FILE_BYTES = 16 << 20
"""A config of this size has about 30,000 streams. A larger file is not a config."""

_SHOWN_CHARACTERS = 80


def config_path(environment: Mapping[str, str] | None = None) -> Path:
    """Return the path in `WAYBILL_CONFIG` if it is set, else the project's `include/config/streams.yaml`."""
    environment = os.environ if environment is None else environment
    return Path(environment.get(CONFIG_VARIABLE) or DEFAULT_PATH)


def load_config(path: Path | None = None) -> Config:
    """Read and check the config at `path` (default: `config_path()`).

    Raise `ConfigError` with one line for each error: file, line, key, what is allowed, and what was found.
    """
    path = path or config_path()
    root = _parse(path)
    try:
        return _validate(path, root, ())
    except ValidationError as error:
        raise ConfigError("\n".join(_describe_all(path, root, error))) from None


def load_valid_streams(path: Path | None = None) -> Config:
    """Do the same as `load_config`, but leave out the streams that have errors; see `Config.broken`.

    So an error in one stream stops that stream, and no other. Raise `ConfigError` if there is an error elsewhere, or in
    every stream.
    """
    path = path or config_path()
    root = _parse(path)
    broken: dict[str, list[str]] = {}
    while True:
        try:
            config = _validate(path, root, broken)
        except ValidationError as error:
            lines = _describe_all(path, root, error)
            found = [_stream_of(each) for each in error.errors(include_url=False)]
            new = {name for name in found if name is not None}
            if None in found or not new - broken.keys() or len(broken.keys() | new) == _count_streams(root):
                raise ConfigError("\n".join([*(line for each in broken.values() for line in each), *lines])) from None
            for each in error.errors(include_url=False):
                broken.setdefault(str(_stream_of(each)), []).append(_describe(path, root, each))
            continue
        return config.without_streams({name: "\n".join(dict.fromkeys(lines)) for name, lines in broken.items()})


def _stream_of(error: Any) -> str | None:
    """Return the stream in which one of pydantic's errors is; None if it is elsewhere."""
    location = (*error["loc"], *error.get("ctx", {}).get("at", ()))
    return str(location[1]) if len(location) > 1 and location[0] == "streams" else None


def _count_streams(root: document.Node) -> int:
    streams = _child(root, "streams")
    return len(streams.items) if isinstance(streams, document.Mapping) else 0


def _parse(path: Path) -> document.Node:
    text = _read(path)
    try:
        root = document.parse_document(text)
    except document.DocumentError as error:
        line = f", line {error.line}" if error.line else ""
        raise ConfigError(f"{path}{line}: {error.reason}") from None
    if root is None:
        raise ConfigError(f"{path}: is empty; it needs at least: version, storage, streams")
    return root


def _validate(path: Path, root: document.Node, without: Collection[str]) -> Config:
    """Return the config without some of its streams. Raise pydantic's `ValidationError`."""
    plain = document.plain(root)
    if without:
        plain = {**plain, "streams": {name: value for name, value in plain["streams"].items() if name not in without}}
    return Config.model_validate(plain, context={DIRECTORY: path.parent})


def _describe_all(path: Path, root: document.Node, error: ValidationError) -> list[str]:
    """Return pydantic's errors as lines, each once."""
    return list(dict.fromkeys(_describe(path, root, each) for each in error.errors(include_url=False)))


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
        raise ConfigError(f"{path}: is larger than {MAX_FILE_BYTES >> 20} MiB, too large for a config")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: is not UTF-8 text") from None


def _describe(path: Path, root: document.Node, error: Any) -> str:
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
        return f"{where}: unknown key{_suggestion(root, keys)}"
    found = "" if kind == "overlap" else f" (found: {_shorten(node)})"
    return f"{where}: {_message(root, kind, error, keys)}{found}"


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


def _message(root: document.Node, kind: str, error: Any, keys: tuple[str | int, ...]) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    if kind in {"model_type", "model_attributes_type", "dict_type"}:
        model = _model_at(root, keys)
        return f"must be a section with the keys {', '.join(_keys_of(model))}" if model else "must be a section"
    if kind == "too_short":
        return "must have at least one entry"
    if kind in {"enum", "literal_error"}:
        return message.replace("Input should be", "must be", 1)
    return message


def _suggestion(root: document.Node, keys: tuple[str | int, ...]) -> str:
    """Return the nearest known key, if one is similar, and all known keys of the section."""
    model = _model_at(root, keys[:-1])
    if model is None:
        return ""
    near = difflib.get_close_matches(str(keys[-1]).lower().replace("-", "_"), _keys_of(model), n=1)
    nearest = f"; did you mean {near[0]!r}?" if near else "."
    return f"{nearest} Known keys: {', '.join(_keys_of(model))}"


def _keys_of(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(root: document.Node, keys: tuple[str | int, ...]) -> type[BaseModel] | None:
    """Return the model of the section at `keys`; None if it has none."""
    model: type[BaseModel] | None = Config
    node: document.Node | None = root
    steps = iter(keys)
    for key in steps:
        field = model.model_fields.get(str(key)) if model else None
        if field is None:
            return None
        node = _child(node, key)
        model = _model_by_name(list(_models_in(field.annotation)), node)
        if model and getattr(field.annotation, "__origin__", None) is dict:
            node = _child(node, next(steps, None))  # skips the name of the entry
    return model


def _child(node: document.Node | None, key: str | int | None) -> document.Node | None:
    return node.items.get(str(key)) if isinstance(node, document.Mapping) else None


def _model_by_name(models: list[type[BaseModel]], node: document.Node | None) -> type[BaseModel] | None:
    """Return the one of several models, such as the parsers', that has the section's `name`; else the first."""
    name = _child(node, "name")
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
