"""The command line: exit codes, messages, help, and imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest

from waybill import __version__
from waybill.base.errors import ConfigError
from waybill.config.models.load import DEFAULT_PATH
from waybill.interfaces import cli

VALID = DEFAULT_PATH.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Ran:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Run a command line in this process, without the connections of the developer's shell."""
    for name in list(os.environ):
        if name.startswith(("AIRFLOW_", "WAYBILL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")

    def run_command(*arguments: str, **environment: str) -> Ran:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            cli.run(arguments)
        out, err = capfdbinary.readouterr()
        return Ran(int(ended.value.code or 0), out.decode(), err.decode())

    return run_command


def test_config_check_accepts_a_valid_config(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(VALID)
    ran = run("config", "check", WAYBILL_CONFIG=str(file))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{file} is valid: 1 stream (flights)\n", "")


def test_config_check_prints_a_line_for_each_error(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(VALID.replace("version: 1", "version: 2").replace("lanes: 2", "lanes: 0"))
    ran = run("config", "check", WAYBILL_CONFIG=str(file))
    assert (ran.returncode, ran.stdout) == (1, "")
    version, lanes = (1 + VALID[: VALID.index(text)].count("\n") for text in ("version: 1", "lanes: 2"))
    assert ran.stderr.splitlines() == [
        f"error: {file}, line {version}: version: must be 1 (found: 2)",
        f"error: {file}, line {lanes}: streams.flights.ingest.lanes: must be between 1 and 1024 (found: 0)",
    ]


def test_config_reference_equals_the_page_in_docs(run: Run) -> None:
    document = Path(__file__).parents[4] / "docs" / "config-reference.md"
    assert run("config", "reference").stdout == document.read_text(encoding="utf-8")


def test_config_schema_is_a_json_schema(run: Run) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(run("config", "schema").stdout))


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("offsets", "--nonsense"),
        (
            "offsets",
            "--stream",
            "flights",
            "rebuild",
            "--yes",
        ),  # ignoring --stream here would apply the command to every stream
        ("gaps", "--json", "ls"),
        ("gaps", "accept", "flights", "3"),
        ("gaps", "accept", "flights", "-1", "--reason", "x"),
        ("offsets", "set", "flights", "flights/0", "-5", "--reason", "x"),
        ("ls",),
        ("cat",),
        ("cat", "k", "--from", "-1"),
        ("cat", "k", "-n", "x"),
    ],
)
def test_wrong_command_line_exits_with_2(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run(*arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "Usage: waybill" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("offsets", "--stream", "flight"), "no stream 'flight'; did you mean 'flights'? Known streams: flights"),
        (("verify", "x"), "no stream 'x'; known streams: flights"),
        (("ls", "x"), "no stream 'x'; known streams: flights"),
        (("dedup", "status", "x"), "no stream 'x'; known streams: flights"),
        (("ls", "flights", "a/b/c"), "'a/b/c' is not of the form topic/partition: give a topic (flights) or a "
         "topic-partition (flights/3)"),
        (("ls", "flights", ".."), "topic '..' is not a legal Kafka topic name: 1 to 249 characters of [a-zA-Z0-9._-], "
         "not '.' or '..'"),
        (("cat", "s3://bucket"), "'s3://bucket' names no object: s3://bucket/key"),
    ],
)  # fmt: skip
def test_error_prints_one_message_and_exits_with_1(run: Run, arguments: tuple[str, ...], message: str) -> None:
    ran = run(*arguments)
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", f"error: {message}\n")


@pytest.mark.parametrize(
    ("arguments", "variable"),
    [(("offsets",), "ZOOKEEPER"), (("ls", "flights"), "AWS"), (("verify",), "AWS"), (("cat", "k"), "AWS")],
)
def test_missing_connection_names_the_variable_and_the_remedy(
    run: Run, arguments: tuple[str, ...], variable: str
) -> None:
    ran = run(*arguments)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert len(ran.stderr.splitlines()) == 1
    assert f"AIRFLOW_CONN_{variable}_DEFAULT" in ran.stderr
    assert "source .waybill/env" in ran.stderr


def test_missing_config_file_is_named(run: Run) -> None:
    ran = run("offsets", WAYBILL_CONFIG="/no/such/file.yaml")
    assert ran.returncode == 1
    assert ran.stderr == (
        "error: /no/such/file.yaml: the config cannot be read (No such file or directory); WAYBILL_CONFIG names it\n"
    )


def test_debug_variable_raises_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYBILL_DEBUG", "1")
    with pytest.raises(ConfigError, match="no stream 'x'"):
        cli.run(["verify", "x"])


def test_version_is_printed(run: Run) -> None:
    assert run("--version").stdout == f"waybill {__version__}\n"


def test_help_names_every_command_in_80_columns(run: Run) -> None:
    ran = run("--help")
    assert ran.returncode == 0
    for command in ("offsets", "gaps", "ls", "cat", "verify", "config"):
        assert f" {command} " in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 80
    assert "\x1b" not in ran.stdout


def test_help_imports_nothing_heavy() -> None:
    """Imports take most of the time to the first line; unlike the time, they do not depend on the machine's load."""
    code = (
        "import sys, runpy\n"
        "sys.argv = ['waybill', '--help']\n"
        "try: runpy.run_module('waybill.interfaces.cli', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print(','.join(sorted({name.partition('.')[0] for name in sys.modules})), file=sys.stderr)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(ran.stderr.split(","))
    assert "typer" in loaded
    assert not loaded & {"pyarrow", "numpy", "numba", "boto3", "botocore", "kafka", "kazoo", "pyiceberg", "pydantic"}


def test_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m waybill.interfaces.cli config reference | head -1"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert (ran.stdout, ran.stderr) == ("# Config reference\n", "")
