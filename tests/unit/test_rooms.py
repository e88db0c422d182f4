"""The contracts in `pyproject.toml` name every room and package of `waybill` that exists."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "include" / "waybill"


def contracts() -> dict[str, dict[str, Any]]:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {contract["name"]: contract for contract in document["tool"]["importlinter"]["contracts"]}


def parts_of(folder: Path) -> set[str]:
    """Return the packages and modules of a folder, as dotted names."""
    found = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    return {".".join((folder.relative_to(PACKAGE.parent) / name).parts) for name in found - {"__init__"}}


def all_but(package: str) -> set[str]:
    """Return the rooms without that of `package`, and the other packages of its room."""
    room = PACKAGE / package.split(".")[1]
    return (parts_of(PACKAGE) - {f"waybill.{room.name}"}) | (parts_of(room) - {package})


def test_waybill_has_ten_rooms_at_most() -> None:
    assert len(parts_of(PACKAGE)) <= 10


def test_each_room_that_holds_packages_has_layers() -> None:
    with_layers = {each for contract in contracts().values() for each in contract.get("containers", ())}
    rooms = {f"waybill.{path.name}" for path in PACKAGE.iterdir() if any(path.glob("*/__init__.py"))}
    assert rooms - with_layers <= {"waybill.parsers"}, "give each a contract of the type layers"


def test_all_but_one_package_are_kept_from_airflow_and_from_spark() -> None:
    found = contracts()
    airflow = found["Airflow is known to one package"]
    spark = found["Spark is known to one package, and is not needed to verify or to ingest"]
    assert set(airflow["source_modules"]) == all_but("waybill.interfaces.airflow")
    assert set(spark["source_modules"]) == all_but("waybill.tables.spark")


def test_the_local_stack_is_kept_from_all_but_errors() -> None:
    contract = contracts()["The local stack shares errors with waybill, and nothing else but in the demo"]
    allowed = {"waybill.base.printable"}  # errors uses it
    assert set(contract["forbidden_modules"]) == all_but("waybill.base.errors") - allowed


def imported_from_waybill(source: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def test_each_python_file_imports_modules_that_exist() -> None:
    """Files that no linter or test loads, too: pictures of the docs, benchmarks, conftest of another folder."""
    missing = {
        f"{file}: {module}"
        for folder in ("include", "dags", "plugins", "spark_jobs", "tests", "bench", "docs")
        for file in (ROOT / folder).rglob("*.py")
        for module in imported_from_waybill(file)
        if module.split(".")[0] in ("waybill", "devstack")
        and not (ROOT / "include" / module.replace(".", "/")).is_dir()
        and not (ROOT / "include" / f"{module.replace('.', '/')}.py").exists()
    }
    assert not missing


def replaced_by_name(source: Path) -> Iterator[str]:
    """Yield the dotted names that `setattr("waybill.…", …)` replaces."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value.startswith("waybill."):
                yield name.value


def names_at_the_top(module: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(each.asname or each.name).split(".")[0] for each in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_tests_replace_names_that_exist() -> None:
    """Also in tests that run seldom: deep ones, and drills."""
    replaced = {(file, name) for file in (ROOT / "tests").rglob("*.py") for name in replaced_by_name(file)}
    assert len(replaced) > 10
    missing = set()
    for file, name in replaced:
        path, _, last = name.rpartition(".")
        folder = ROOT / "include" / path.replace(".", "/")
        module = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        if not module.exists() or last not in names_at_the_top(module):
            missing.add(f"{file}: {name}")
    assert not missing


def test_no_public_class_name_stands_for_two_things() -> None:
    places: dict[str, list[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(file.relative_to(PACKAGE)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
