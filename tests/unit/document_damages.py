"""Damaged forms of stored documents, and what their readers make of them; it writes the golden files too.

`python tests/unit/document_damages.py NAME...` writes a file that is new, or that is to change since the format does.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from document_samples import SAMPLES, Sample

GOLDEN = Path(__file__).parent / "data/documents"


class _Warnings(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def outcome(sample: Sample, content: bytes) -> str:
    """Return what comes of reading `content`: an error with its text, or what is written again."""
    warnings = _Warnings()
    logger = logging.getLogger("waybill")
    logger.addHandler(warnings)
    try:
        value = sample.read(content)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        logger.removeHandler(warnings)
    logged = "".join(f"warning: {text}; " for text in warnings.texts)
    try:
        written = sample.unpack(sample.write(value))
    except Exception as error:  # it is read, but has no bytes: None, or a field of another type
        return f"{logged}read, and not written: {type(error).__name__}"
    return f"{logged}read, and written as {hashlib.sha256(written).hexdigest()[:12]}"


def other_type(value: object) -> object:
    """Return a value of another type than `value` has."""
    return 17 if isinstance(value, str | list | dict) else "x"


def damaged(document: Any) -> Iterator[tuple[str, str]]:
    """Yield damaged forms of a document, each with the name of its damage."""
    text = json.dumps(document)
    yield from (("empty", ""), ("half", text[: len(text) // 2]), ("null", "null"), ("list", "[]"), ("mapping", "{}"))
    yield from (("number", "17"), ("deep", "[" * 100_000), ("infinite", text.replace("1", "1e999", 1)))
    versions = {"newer": 99, "text": "1", "older": 0, "null": None, "false": False, "fraction": 1.5}
    yield from ((f"v {name}", json.dumps({**document, "v": version})) for name, version in versions.items())
    yield "added field", json.dumps({**document, "field_of_a_newer_version": 1})
    for path in paths(document, 4):
        name = "/".join(map(str, path))
        for kind in ("missing", "null", "other", "true"):
            changed = json.loads(text)
            at = changed
            for step in path[:-1]:
                at = at[step]
            if kind == "missing":
                del at[path[-1]]
            else:
                at[path[-1]] = {"null": None, "other": other_type(at[path[-1]]), "true": True}[kind]
            yield f"{name} {kind}", json.dumps(changed)


def paths(value: Any, depth: int) -> Iterator[tuple[str | int, ...]]:
    """Yield where the fields of a document are: each key, and of a list the first value."""
    if not depth:
        return
    found: list[Any] = [*value] if isinstance(value, dict) else [0] if isinstance(value, list) and value else []
    for key in found:
        if key == "reading":  # the settings are a model of the config, which has tests of its own
            continue
        yield (key,)
        yield from ((key, *path) for path in paths(value[key], depth - 1))


def made(name: str) -> dict[str, Any]:
    """Return what the golden file of a document should hold."""
    sample = SAMPLES[name]
    written = {label: sample.unpack(sample.write(value)).decode() for label, value in sample.values.items()}
    [first, *_] = written.values()
    outcomes = {
        damage: outcome(sample, sample.pack(text.encode()))[:400] for damage, text in damaged(json.loads(first))
    }
    if sample.pack is not bytes:
        outcomes["packing"] = outcome(sample, b"no packed document")[:400]
    return {"written": written, "damaged": outcomes}


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for each in sys.argv[1:] or SAMPLES:
        content = json.dumps(made(each), indent=1, ensure_ascii=False) + "\n"
        (GOLDEN / f"{each}.json").write_text(content)
