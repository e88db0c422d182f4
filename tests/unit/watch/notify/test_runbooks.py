"""Every alert links to a runbook that exists, has the common form, and names only commands that exist.

So do the other pages: each command that they show can be typed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from waybill.config.models.kafka_promises import KafkaPromiseName
from waybill.config.models.promises import PromiseName
from waybill.interfaces.cli.app import app
from waybill.watch.incidents.finding import CHANNEL, CONFIG, MEASURED, REACHABLE, READABLE, TASKS
from waybill.watch.notify.meanings import MEANINGS

RUNBOOKS = Path(__file__).parents[4] / "docs" / "runbooks"
HEADINGS = ["What it means", "How to confirm it", "What to do", "How to see that it is over"]
PAGES = sorted(path.name for path in RUNBOOKS.glob("*.md") if path.name != "README.md")


def test_every_promise_has_words_and_a_runbook_and_no_runbook_is_left_over() -> None:
    assert MEANINGS.keys() == {*PromiseName, *KafkaPromiseName, REACHABLE, READABLE, CHANNEL, CONFIG, MEASURED, TASKS}
    assert sorted(meaning.runbook for meaning in MEANINGS.values()) == PAGES
    index = (RUNBOOKS / "README.md").read_text()
    assert re.findall(r"\]\((.*?)\)", index) == [page for page in re.findall(r"\]\((.*?)\)", index) if page in PAGES]
    assert all(page in index for page in PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_runbook_has_the_common_form(page: str) -> None:
    assert re.findall(r"^## (.*)$", (RUNBOOKS / page).read_text(), re.MULTILINE) == HEADINGS


_USAGE_ERROR: Any = typer.BadParameter.__base__
"""The error of a command line that cannot be parsed."""
_PLACEHOLDERS = {"STREAM": "flights", "ID": "1", "{name}": "flights", "PARTITION": "0", "…": "x"}


def commands_in(text: str) -> set[tuple[str, ...]]:
    """Return the commands of `waybill` in a text, with values in place of the placeholders."""
    text = re.sub(r"\s+", " ", text)
    return {arguments_of(command.split()) for command in re.findall(r"`waybill ([a-z][^`]*)`", text)}


def arguments_of(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(_PLACEHOLDERS.get(word, "x" if word.isupper() else word) for word in words)


@pytest.mark.parametrize("text", [(RUNBOOKS / page).read_text() for page in PAGES], ids=PAGES)
def test_every_command_of_a_runbook_can_be_typed(text: str) -> None:
    for arguments in commands_in(text):
        assert_can_be_typed(arguments)


@pytest.mark.parametrize(
    "file",
    [
        "watch/promises/log_figures.py",
        "watch/promises/table_figures.py",
        "watch/promises/airflow_figures.py",
        "watch/promises/volumes.py",
        "watch/promises/services.py",
        "watch/promises/table_states.py",
        "watch/incidents/rules.py",
        "watch/notify/message.py",
    ],
)
def test_every_command_of_an_alert_can_be_typed(file: str) -> None:
    text = (RUNBOOKS.parents[1] / "include" / "waybill" / file).read_text()
    found = re.findall(r"waybill ([a-z][^\"`\n]*)", "\n".join(re.findall(r'f?"waybill [^"]*"|: waybill [^"]*"', text)))
    assert found
    for command in found:
        assert_can_be_typed(arguments_of(command.split()))


@cache
def commands() -> Any:
    return typer.main.get_command(app)


def assert_can_be_typed(arguments: tuple[str, ...]) -> None:
    """Parse a command line with the real commands, without running one. Arguments at its end may be left out."""
    command, rest, parent = commands(), list(arguments), None
    try:
        while True:
            context = command.make_context(command.name, rest, parent=parent)
            if not hasattr(command, "commands") or not context._protected_args + context.args:
                return
            _, command, rest = command.resolve_command(context, context._protected_args + context.args)
            parent = context
    except _USAGE_ERROR as error:
        if type(error).__name__ != "MissingParameter":
            raise AssertionError(f"waybill {' '.join(arguments)}: {error}") from None


ROOT = RUNBOOKS.parents[1]
OUTPUTS = {ROOT / "docs" / "drills.md", ROOT / "CHANGELOG.md"}
"""What a drill prints, and history, which shortens commands."""
OTHER_PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/monitoring/*.md")} - OUTPUTS)


@pytest.mark.parametrize("page", OTHER_PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_can_be_typed(page: Path) -> None:
    """In a block, a command ends before a comment, a redirection or ` · `. In a line, a group may stand alone."""
    text = page.read_text()
    for block in re.findall(r"^ {4,}(?:\$ )?waybill ((?:.*\\\n)*.*)$", text, re.MULTILINE):
        command = re.split(r"\s+(?:[#>]|·)\s", block.replace("\\\n", ""))[0]
        assert_can_be_typed(arguments_of(shlex.split(command)))
    for arguments in commands_in(text):
        if len(arguments) > 1:
            assert_can_be_typed(tuple("1" if word.startswith("<") else word for word in arguments))


def test_a_command_that_does_not_exist_is_noticed() -> None:
    for wrong in ("offsets flights", "offsets --steam flights", "verify flights orders extra", "verifi flights"):
        with pytest.raises(AssertionError, match="waybill"):
            assert_can_be_typed(tuple(wrong.split()))
