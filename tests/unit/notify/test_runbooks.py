"""Every alert links to a runbook that exists, has the common form, and names only commands that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from waybill.cli.app import app
from waybill.config.promises import PromiseName
from waybill.incidents.finding import CHANNEL, REACHABLE, READABLE, TASKS
from waybill.notify.meanings import MEANINGS

RUNBOOKS = Path(__file__).parents[3] / "docs" / "runbooks"
HEADINGS = ["What it means", "How to confirm it", "What to do", "How to see that it is over"]
PAGES = sorted(path.name for path in RUNBOOKS.glob("*.md") if path.name != "README.md")


def test_every_promise_has_words_and_a_runbook_and_no_runbook_is_left_over() -> None:
    assert MEANINGS.keys() == {*PromiseName, REACHABLE, READABLE, CHANNEL, TASKS}
    assert sorted(meaning.runbook for meaning in MEANINGS.values()) == PAGES
    index = (RUNBOOKS / "README.md").read_text()
    assert re.findall(r"\]\((.*?)\)", index) == [page for page in re.findall(r"\]\((.*?)\)", index) if page in PAGES]
    assert all(page in index for page in PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_runbook_has_the_common_form(page: str) -> None:
    assert re.findall(r"^## (.*)$", (RUNBOOKS / page).read_text(), re.MULTILINE) == HEADINGS


def commands_in(text: str) -> set[tuple[str, ...]]:
    """Return the commands of `waybill` in a text: the words before the first argument, and the options."""
    text = re.sub(r"\s+", " ", text)
    found = re.findall(r"`waybill ([a-z][^`]*)`", text)
    return {tuple(word for word in command.split() if not word.isupper() and word != "…") for command in found}


@pytest.mark.parametrize(
    "text",
    [*((RUNBOOKS / page).read_text() for page in PAGES)],
    ids=PAGES,
)
def test_every_command_of_a_runbook_exists(text: str) -> None:
    for words in commands_in(text):
        assert_exists(words)


@pytest.mark.parametrize(
    "file",
    ["watch/log_figures.py", "watch/table_figures.py", "watch/measure.py", "incidents/rules.py", "notify/message.py"],
)
def test_every_command_of_an_alert_exists(file: str) -> None:
    text = (RUNBOOKS.parents[1] / "include" / "waybill" / file).read_text()
    found = re.findall(r"waybill ([a-z][^\"`\n]*)", "\n".join(re.findall(r'f?"waybill [^"]*"|: waybill [^"]*"', text)))
    assert found
    for command in found:
        assert_exists(tuple(word for word in command.split() if not word.startswith("{") and word != "…"))


def assert_exists(words: tuple[str, ...]) -> None:
    command: Any = typer.main.get_command(app)
    for number, word in enumerate(words):
        if word.startswith("--"):
            assert word in [option for each in command.params for option in each.opts], (words, word)
        elif hasattr(command, "commands"):
            if word not in command.commands:
                assert number > 0, words
                assert command.invoke_without_command, words
                break
            command = command.commands[word]
