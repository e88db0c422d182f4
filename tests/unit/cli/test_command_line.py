"""The command line as such: exit codes, messages, help, what it imports."""

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

from waybill import __version__, cli
from waybill.config.load import DEFAULT_PATH
from waybill.errors import ConfigError

RIGHT = DEFAULT_PATH.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Ran:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """A command line in this process, without the connections that the developer's shell may have."""
    for name in list(os.environ):
        if name.startswith(("AIRFLOW_", "WAYBILL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")

    def run_it(*arguments: str, **environment: str) -> Ran:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            cli.run(arguments)
        out, err = capfdbinary.readouterr()
        return Ran(int(ended.value.code or 0), out.decode(), err.decode())

    return run_it


def test_a_right_config(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(RIGHT)
    ran = run("config", "check", WAYBILL_CONFIG=str(file))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{file} is right: 1 stream (flights)\n", "")


def test_a_wrong_config_is_a_line_for_each_fault(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(RIGHT.replace("version: 1", "version: 2").replace("lanes: 2", "lanes: 0"))
    ran = run("config", "check", WAYBILL_CONFIG=str(file))
    assert (ran.returncode, ran.stdout) == (1, "")
    version, lanes = (1 + RIGHT[: RIGHT.index(text)].count("\n") for text in ("version: 1", "lanes: 2"))
    assert ran.stderr.splitlines() == [
        f"error: {file}, line {version}: version: must be 1 (found: 2)",
        f"error: {file}, line {lanes}: streams.flights.ingest.lanes: must be between 1 and 1024 (found: 0)",
    ]


def test_the_reference_is_the_document(run: Run) -> None:
    document = Path(__file__).parents[3] / "docs" / "config-reference.md"
    assert run("config", "reference").stdout == document.read_text(encoding="utf-8")


def test_the_schema_is_one(run: Run) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(run("config", "schema").stdout))


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("offsets", "--nonsense"),
        ("offsets", "--stream", "flights", "rebuild", "--yes"),  # it would mean every stream
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
def test_a_wrong_command_line_is_exit_code_2(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run(*arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "Usage: waybill" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("offsets", "--stream", "flight"), "no stream 'flight'; did you mean 'flights'? There are: flights"),
        (("verify", "x"), "no stream 'x'; there are: flights"),
        (("ls", "x"), "no stream 'x'; there are: flights"),
        (("dedup", "status", "x"), "no stream 'x'; there are: flights"),
        (("ls", "flights", "a/b/c"), "'a/b/c' is not of the form topic/partition: give a topic (flights) or a "
         "topic-partition (flights/3)"),
        (("ls", "flights", ".."), "topic '..' is not a legal Kafka topic name: 1 to 249 characters of [a-zA-Z0-9._-], "
         "not '.' or '..'"),
        (("cat", "s3://bucket"), "'s3://bucket' names no object: s3://bucket/key"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_message_and_exit_code_1(run: Run, arguments: tuple[str, ...], message: str) -> None:
    ran = run(*arguments)
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", f"error: {message}\n")


@pytest.mark.parametrize(
    ("arguments", "variable"),
    [(("offsets",), "ZOOKEEPER"), (("ls", "flights"), "AWS"), (("verify",), "AWS"), (("cat", "k"), "AWS")],
)
def test_a_missing_connection_names_the_variable_and_the_remedy(
    run: Run, arguments: tuple[str, ...], variable: str
) -> None:
    ran = run(*arguments)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert len(ran.stderr.splitlines()) == 1
    assert f"AIRFLOW_CONN_{variable}_DEFAULT" in ran.stderr
    assert "source .waybill/env" in ran.stderr


def test_a_missing_config(run: Run) -> None:
    ran = run("offsets", WAYBILL_CONFIG="/no/such/file.yaml")
    assert ran.returncode == 1
    assert ran.stderr == (
        "error: /no/such/file.yaml: the config cannot be read (No such file or directory); WAYBILL_CONFIG names it\n"
    )


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYBILL_DEBUG", "1")
    with pytest.raises(ConfigError, match="no stream 'x'"):
        cli.run(["verify", "x"])


def test_the_version(run: Run) -> None:
    assert run("--version").stdout == f"waybill {__version__}\n"


def test_help_names_every_command_in_80_columns(run: Run) -> None:
    ran = run("--help")
    assert ran.returncode == 0
    for command in ("offsets", "gaps", "ls", "cat", "verify", "config"):
        assert f" {command} " in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 80
    assert "\x1b" not in ran.stdout


def test_help_imports_nothing_heavy() -> None:
    """What counts is the time to the first line; this is what it is spent on, and it does not vary with the load."""
    code = (
        "import sys, runpy\n"
        "sys.argv = ['waybill', '--help']\n"
        "try: runpy.run_module('waybill.cli', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print(','.join(sorted({name.partition('.')[0] for name in sys.modules})), file=sys.stderr)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(ran.stderr.split(","))
    assert "typer" in loaded
    assert not loaded & {"pyarrow", "numpy", "numba", "boto3", "botocore", "kafka", "kazoo", "pyiceberg", "pydantic"}


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m waybill.cli config reference | head -1"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert (ran.stdout, ran.stderr) == ("# Config reference\n", "")
