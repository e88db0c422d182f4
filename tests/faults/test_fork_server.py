"""The fork server of the harness: a start that fails or takes too long leaves no process and no socket behind."""

from __future__ import annotations

import gc
import warnings

import psutil
import pytest
from chaos import lanes

pytestmark = pytest.mark.faults


@pytest.fixture
def others() -> set[psutil.Process]:
    """The fork servers that ran before the test: the session's fixture `world` has one."""
    return set(fork_servers())


def fork_servers() -> list[psutil.Process]:
    """Return the running fork servers of this process."""
    return [child for child in psutil.Process().children() if "chaos.forkserver" in command_line(child)]


def command_line(process: psutil.Process) -> list[str]:
    """Return a process's arguments; none for a child of another test that has ended and was not waited for."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def check_nothing_is_left(others: set[psutil.Process]) -> None:
    assert set(fork_servers()) == others
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        gc.collect()  # a socket that is still open would raise


def test_start_that_takes_too_long_is_reported_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], others: set[psutil.Process]
) -> None:
    monkeypatch.setattr(lanes, "_READY_SECONDS", 0.15)
    monkeypatch.setattr(lanes, "_PROGRESS_SECONDS", 0.1)
    with pytest.raises(RuntimeError, match="the fork server is not ready after"):
        lanes.ForkServer()
    assert "the fork server is still importing after" in capsys.readouterr().err
    check_nothing_is_left(others)


def test_start_that_fails_leaves_nothing(others: set[psutil.Process]) -> None:
    with pytest.raises(RuntimeError, match="the fork server ended before it was ready"):
        lanes.ForkServer("no_such_module")
    check_nothing_is_left(others)


def test_tracemalloc_is_not_passed_on(monkeypatch: pytest.MonkeyPatch, others: set[psutil.Process]) -> None:
    monkeypatch.setenv("PYTHONTRACEMALLOC", "20")
    with lanes.ForkServer():
        [server] = set(fork_servers()) - others
        assert "PYTHONTRACEMALLOC" not in server.environ()
    check_nothing_is_left(others)
