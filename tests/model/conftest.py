"""Prints at the end of a run how many schedules, states and steps the model check has explored."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from model_explorer import Explored

_explored: list[tuple[str, Explored]] = []


@pytest.fixture
def report_explored(request: pytest.FixtureRequest) -> Callable[[Explored], None]:
    """A function that keeps the figures of an exploration for the summary."""
    return lambda explored: _explored.append((request.node.name, explored))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _explored:
        return
    terminalreporter.section("model check of the commit protocol")
    for name, explored in _explored:
        terminalreporter.write_line(f"{name}: {explored}")
    total = [sum(getattr(explored, what) for _, explored in _explored) for what in ("schedules", "states", "steps")]
    terminalreporter.write_line("total: {:,} schedules, {:,} states, {:,} steps".format(*total))
