"""What the pages state about this repository is true: links, paths, names of code, DAGs, targets of make, and counts.

The changelog and the decisions are history: they may name what is gone, but their links work. Other tests check the
commands, connections and parsers that pages show.
"""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "include" / "waybill"
FOLDERS = (".ci", "include", "dags", "plugins", "spark_jobs", "bench", "docs", "tests")
SUFFIXES = {".py", ".yaml", ".json", ".toml", ".sh", ".in", ".css", ".html", ".js"}
"""Of files that are no page, and can name one."""
HISTORY = {ROOT / "CHANGELOG.md", *(ROOT / "docs" / "decisions").glob("*.md")}
SAMPLES = {
    Path(__file__),
    ROOT / "tests/unit/document_samples.py",
    *(ROOT / "tests/unit/data/documents").iterdir(),
}
"""Texts that hold names of things that do not exist."""
PAGES = {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")} - HISTORY

FILES_OF_OTHERS = {"acl.py", "my_script.py", "parser.py", "kafka-*.sh", "utils.py", "helpers.py"}
"""Files of a reader or of Kafka, and those that CONTRIBUTING forbids."""
NAMES_OF_OTHERS = {
    "AIRFLOW__SECTION__KEY", "HTTPS_PROXY", "aws_kinesis", "file_parsing_sort_mode", "modified_time",
    "secureClientPort", "statsd_datadog_enabled", "utf8mb4_bin", "waybill.example.com",
}  # fmt: skip
"""Names of other programs that our sources do not use."""
COMPOSED = {
    "TABLE_duplicates", "dedup_group__G", "dedup_jvm", "ingest_group__G", "maintenance_group__G", "message_id_bucket",
    "origin_trunc", "partition_group__G", "partition_tasks",
}  # fmt: skip
"""Names that are made of several words at run time."""

Found = Iterable[str]


def wrong_on(pages: Iterable[Path], find: Callable[[Path], Found], is_right: Callable[[Path, str], bool]) -> list[str]:
    """Return `page: what` for all that is found on pages and is not right."""
    return [
        f"{page.relative_to(ROOT)}: {found}"
        for page in sorted(pages)
        for found in sorted(set(find(page)))
        if not is_right(page, found)
    ]


# --- what a page says -------------------------------------------------------------------------------------------------


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def prose_of(page: Path) -> str:
    """Return the page without its blocks of code, which show outputs and files of a reader."""
    text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^ {4,}\S.*$", "", text, flags=re.MULTILINE)


def code_in(page: Path) -> list[str]:
    """Return what stands between backticks."""
    return [re.sub(r"\s+", " ", found) for found in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose_of(page))]


def links_in(page: Path) -> list[str]:
    """Return the targets of links and pictures that lead into this repository."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)) if not re.match("[a-z]+:", target)]


@cache
def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page: of its headings, as GitHub makes them, and those that are set by hand."""
    prose = prose_of(page)
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)]
    slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    again = {f"{slug}-{number}" for slug in set(slugs) for number in range(1, slugs.count(slug))}
    return {*slugs, *again, *re.findall(r'<a id="([^"]+)">', prose)}


def paths_in(page: Path) -> Iterator[str]:
    """Return what looks like a path of this repository: a file of code, or what begins with a folder of ours."""
    top = "bench|dags|docs|include|plugins|spark_jobs|tests"
    yield from re.findall(rf"(?<![\w./-])((?:{top})/\w[\w/-]*(?:\.\w+)?)", text_of(page))
    name = r"[\w.*<>{}…-]+"
    stored = set(re.findall(r'= "([\w-]+)"', text_of(PACKAGE / "config" / "names" / "segments.py")))
    ours = {path.name for path in [*ROOT.iterdir(), *PACKAGE.iterdir()] if has_files(path)} - stored
    for code in code_in(page):
        is_file = re.fullmatch(rf"({name}/)*[\w-]+\.(py|toml|sh|in)", code)
        yield from re.findall(r" ((?:\w+/)+\w+\.py)\b", code)
        if is_file or (re.fullmatch(rf"({name}/)+({name})?", code) and code.split("/")[0] in ours):
            yield code


def names_in(page: Path) -> Iterator[str]:
    """Return the names of code: with an underscore, in CamelCase, or called."""
    for code in code_in(page):
        name = code.removesuffix("()")
        if re.fullmatch(r"[A-Za-z_]\w*", name) and (name != code or "_" in name or re.search("[a-z][A-Z]", name)):
            yield name


def dotted_names_in(page: Path) -> list[str]:
    """Return the names that begin with `waybill.`, and those that code of the page imports."""
    text = text_of(page)
    imports = re.findall(r"^from (waybill[\w.]*) import (.+)$", text, re.MULTILINE)
    imported = [f"{module}.{name}" for module, names in imports for name in re.findall(r"\w+", names)]
    return re.findall(r"(?<![\w./@-])waybill(?:\.\w+)+", text) + imported


def dags_in(page: Path) -> list[str]:
    prose = re.sub(r"\s+", " ", prose_of(page))
    named = re.findall(r"\bDAGs? ((?:(?:, | and |, and )?`[\w<>]+`)+)", prose)
    return [name for names in named for name in re.findall(r"`([\w<>]+)`", names)]


# --- what this repository holds ---------------------------------------------------------------------------------------


def has_files(folder: Path) -> bool:
    return any(each.startswith(f"/{folder.relative_to(ROOT)}/") for each in paths())


@cache
def paths() -> list[str]:
    """Return the paths of all files and of their folders, each with a slash before it.

    A checkout that was of an earlier layout also has folders with nothing but compiled files.
    """
    found = {f"/{path.name}" for path in ROOT.iterdir()}
    for folder in FOLDERS:
        for parent, _, files in os.walk(ROOT / folder):
            below = parent.removeprefix(str(ROOT))
            if files and not below.endswith("/__pycache__"):
                found |= {str(each) for each in Path(below).parents}
                found |= {below, *(f"{below}/{name}" for name in files)}
    return sorted(found)


@cache
def sources() -> dict[Path, str]:
    """Return the texts of all files that are no page."""
    found = [ROOT / path[1:] for path in paths() if Path(path).suffix in SUFFIXES]
    found += [path for path in [*ROOT.iterdir(), ROOT / ".ci" / "run"] if path.suffix in {"", ".yaml", ".toml", ".in"}]
    return {path: text_of(path) for path in found if path not in SAMPLES and path.is_file()}


@cache
def words() -> set[str]:
    found = {Path(path).stem for path in paths()}
    for text in sources().values():
        found.update(re.findall(r"\w+", text))
    return found


@cache
def dag_ids() -> set[str]:
    """Return the ids of all DAGs but those of further groups and of single streams."""
    dags = ROOT / "dags"
    text = "".join(text_of(path) for path in dags.glob("*.py"))
    groups = {name for name in ("ingest", "partition", "dedup", "maintenance") if (dags / f"{name}.py").exists()}
    return {*re.findall(r'dag_arguments\(\s*"(\w+)"', text), *groups}


def contract_of_the_rooms() -> dict[str, Any]:
    contracts = tomllib.loads(text_of(ROOT / "pyproject.toml"))["tool"]["importlinter"]["contracts"]
    return next(contract for contract in contracts if contract.get("containers") == ["waybill"])


def is_there(page: Path, path: str) -> bool:
    """Return whether a path, or a pattern of paths, exists: from the root, from a room, or as the end of a path."""
    pattern = re.sub(r"<[^>]*>|\{[^}]*\}|…", "*", path.strip("/"))
    if any(fnmatch(path, other) for other in FILES_OF_OTHERS):
        return True
    if "*" in pattern:
        return any(fnmatch(each, f"*/{pattern}") for each in paths())
    return (page.parent / path).exists() or any(each.endswith(f"/{pattern}") for each in paths())


def is_name(_: Path, name: str) -> bool:
    """Return whether the sources have a name. Pages write `generation_2`, and `group_lag` for `kafka_group_lag`."""
    plain = re.sub(r"\d+$", "", name)
    return name in NAMES_OF_OTHERS | COMPOSED or bool({name, plain, f"kafka_{name}"} & words())


def defines(module: Path, name: str) -> bool:
    """Return whether a module defines or imports a name at its top."""
    defined = rf"(?:class |(?:async )?def ){name}\b|{name}(?:: .*)? =|(?:from .*)?import .*\b{name}\b| {{4}}{name},$"
    return re.search(f"^(?:{defined})", text_of(module), re.MULTILINE) is not None


def is_dotted_name(_: Path, name: str) -> bool:
    """Return whether a dotted name is a module, a name in one, or a stored name, which a source has as a text."""
    path, *rest = [ROOT / "include", *name.split(".")]
    # A checkout that was of an earlier layout has folders of it that hold nothing but compiled files.
    while rest and (path / rest[0] / "__init__.py").exists():
        path /= rest.pop(0)
    if rest and (path / f"{rest[0]}.py").exists():
        path /= f"{rest.pop(0)}.py"
    module = path if path.is_file() else path / "__init__.py"
    if not rest or (module.exists() and defines(module, rest[0])):
        return True
    return name in NAMES_OF_OTHERS or any(f'"{name}' in text for text in sources().values())


# --- the checks -------------------------------------------------------------------------------------------------------


def test_links_lead_to_files_and_headings() -> None:
    def leads_somewhere(page: Path, target: str) -> bool:
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        return file.exists() and (not anchor or anchor in anchors_of(file))

    assert wrong_on(PAGES | HISTORY, links_in, leads_somewhere) == []


def test_paths_exist() -> None:
    assert wrong_on(PAGES, paths_in, is_there) == []


def test_names_of_code_exist() -> None:
    assert wrong_on(PAGES, names_in, is_name) == []


def test_dotted_names_and_imports_exist() -> None:
    assert wrong_on(PAGES, dotted_names_in, is_dotted_name) == []


def test_dags_exist() -> None:
    assert wrong_on(PAGES, dags_in, lambda _, name: re.split("_group__|__", name)[0] in dag_ids()) == []


def test_operations_describe_each_dag() -> None:
    table = text_of(ROOT / "docs" / "operations.md").partition("| DAG | when |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == dag_ids()


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", text_of(ROOT / "Makefile"), re.MULTILINE))
    used = re.compile(r"(?:`|^ {4,})make ([a-z][a-z-]*)", re.MULTILINE)
    assert wrong_on(PAGES, lambda page: used.findall(text_of(page)), lambda _, name: name in targets) == []


def test_the_architecture_lists_the_rooms_and_their_packages() -> None:
    rooms = [room for layer in contract_of_the_rooms()["layers"] for room in layer.split(" | ")]
    table = text_of(ROOT / "docs" / "architecture.md").partition("| room |")[2].partition("\n\n")[0]
    rows = {match[1]: match[0] for match in re.finditer(r"^\| `(\w+)` .*$", table, re.MULTILINE)}
    assert list(rows) == rooms, "in the order of the contract"
    for room in set(rooms) - {"parsers"}:  # a room of modules
        packages = {path.parent.name for path in (PACKAGE / room).glob("*/__init__.py")}
        assert packages <= set(re.findall(r"`(\w+)`", rows[room])), room


def test_counts_are_right() -> None:
    """A number before one of these nouns is how many there are."""
    tests = ast.parse(text_of(ROOT / "tests" / "run.py"))
    lists = [each for each in tests.body if getattr(each, "name", "") in ("without_servers", "with_servers")]
    calls = [node for each in lists for node in ast.walk(each) if isinstance(node, ast.Call)]
    counts = {
        "rooms": sum((path / "__init__.py").exists() for path in PACKAGE.iterdir()),
        "layers": len(contract_of_the_rooms()["layers"]),
        "DAGs": len(dag_ids()),
        "pytest processes": sum(getattr(call.func, "id", "") == "Part" for call in calls),
    }
    numbers = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    stated = re.compile(rf"\b(?:{'|'.join(numbers)}|\d+) (?:{'|'.join(counts)})\b")

    def is_right(_: Path, found: str) -> bool:
        number, _, noun = found.partition(" ")
        return counts[noun] == (numbers.index(number) if number in numbers else int(number))

    assert wrong_on(PAGES, lambda page: stated.findall(prose_of(page)), is_right) == []


def test_pages_that_the_code_names_exist() -> None:
    """Error texts, docstrings and comments name pages, and some of them a heading."""
    begin = r"(?<![\w./-])docs/"
    named = re.compile(rf"{begin}([\w/-]+(?:\.\w+)?)(?:#([\w-]+)|,\s+\"([^\"]+)\")?")
    wrong = []
    for file, text in sources().items():
        for name, anchor, heading in named.findall(text) if "docs/" in text else ():
            page = ROOT / "docs" / name
            exists = page.exists() or any(fnmatch(path, f"/docs/{name}-*.md") for path in paths())
            has_anchor = not anchor or anchor in anchors_of(page)
            if not exists or not has_anchor or (heading and f"# {heading}\n" not in text_of(page)):
                wrong.append(f"{file.relative_to(ROOT)}: docs/{name} {anchor}{heading}")
    assert wrong == []
