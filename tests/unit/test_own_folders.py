"""The folders of Waybill's own objects: every key has one of them, and no `files` sink may write there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from waybill.base.errors import ConfigError
from waybill.config import names
from waybill.config.models import load_config
from waybill.config.names import Folder

PACKAGE = Path(names.__file__).parent
OF_A_FILES_SINK = {"sink_root", "prefix", "period_of_key"}
"""Functions of `config/names/files_sink.py` whose keys are the user's."""


def calls_of(name: str) -> list[tuple[str, str, ast.Call]]:
    """Return the calls of a function in the package: module, calling function, call."""
    found = []
    for file in sorted(PACKAGE.glob("*.py")):
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                found += [
                    (file.name, function.name, call)
                    for call in ast.walk(function)
                    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == name
                ]
    return found


def test_every_key_below_the_prefix_begins_with_a_folder() -> None:
    keys = calls_of("own_key")
    assert len(keys) > 30
    for module, function, call in keys:
        folder = call.args[1]
        assert isinstance(folder, ast.Attribute), (module, function)
        assert isinstance(folder.value, ast.Name), (module, function)
        assert folder.value.id == "Folder", (module, function)
    used = {call.args[1].attr for _, _, call in keys if isinstance(call.args[1], ast.Attribute)}
    assert used == {folder.name for folder in Folder}, "a folder without a key, or a key without a folder"


def test_no_other_function_builds_a_key_of_waybills_own_objects() -> None:
    others = {(module, function) for module, function, _ in calls_of("join_segments")}
    assert others == {("segments.py", "own_key"), *(("files_sink.py", function) for function in OF_A_FILES_SINK)}


@pytest.mark.parametrize("below", ["", "/deeper"])
@pytest.mark.parametrize("folder", [*Folder])
def test_a_files_sink_in_a_folder_of_waybills_own_objects_is_refused(
    tmp_path: Path, folder: Folder, below: str
) -> None:
    stream = {"topics": ["a"], "parser": {"event_time": {"field": "t"}}, "table": "x.y"}
    sink = {"name": "files", "prefix": f"{folder}{below}"}
    file = tmp_path / "streams.yaml"
    file.write_text(
        yaml.safe_dump({"version": 1, "storage": {"bucket": "archive"}, "streams": {"s": {**stream, "sink": sink}}})
    )
    with pytest.raises(ConfigError, match=f"{folder.value!r} is a prefix of Waybill's own objects"):
        load_config(file)
