"""A parser that somebody else wrote, by the name of its class.

It is made once when the config is loaded, so that what is wrong with it is said there, and again in every task.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["CLASS_PATH", "make_parser"]

CLASS_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
"""`package.module:Class`."""


def make_parser(path: str, options: Mapping[str, Any]) -> Any:
    """An object of the class at `path` (`package.module:Class`), made with `options` as keyword arguments.

    It has a `parse` that can be called and a `name` that is text; more is seen only when it parses. Raises `ValueError`
    with one line that says what is wrong.
    """
    found = _find(path)
    if not isinstance(found, type):
        raise ValueError(f"{path} is no class, but {_one_line(repr(found))}")
    try:
        parser = found(**options)
    # Whatever somebody else's code raises: it must not end the loading of the config without a line and a key.
    except Exception as error:
        raise ValueError(f"{path} refuses its options: {_told(error)}") from None
    if not callable(getattr(parser, "parse", None)):
        raise ValueError(f"{path} is no parser: it has no method parse(messages)")
    name = getattr(parser, "name", None)
    if not isinstance(name, str) or not name:
        raise ValueError(f"{path} is no parser: it has no name, which the quarantine shows as text")
    return parser


def _find(path: str) -> Any:
    module, _, names = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise ValueError(f"{module} cannot be imported: {_told(error)}") from None
    for name in names.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise ValueError(f"{module} can be imported, but there is no {names} in it") from None
    return found


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {_one_line(str(error))}"


def _one_line(text: str, most: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"
