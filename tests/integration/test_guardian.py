"""Whichever process is killed, no process of a stack is left. With real processes; the servers are `sleep`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil
import pytest

from devstack.control import GuardianHandle
from devstack.servers import ServerSpec
from waybill.base.errors import StackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.integration

# Like Airflow: a child, a child with a session of its own, and a grandchild whose parent has ended.
FAMILY = "sleep 1000 & setsid sleep 1000 & (setsid sleep 1000 &) ; wait"
FAMILY_SIZE = 4


class Marked:
    """Finds the processes that have this test's mark in their environment, whatever their parent is."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex

    def processes(self) -> list[psutil.Process]:
        processes = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("STACK_TEST_MARK") == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
            except psutil.Error:
                continue
        return processes


@pytest.fixture
def marked() -> Iterator[Marked]:
    marked = Marked()
    yield marked
    for process in marked.processes():
        process.kill()


@pytest.fixture
def specs(tmp_path: Path, marked: Marked) -> dict[str, ServerSpec]:
    def spec(name: str, script: str, *, forks: bool = False) -> ServerSpec:
        command = ("/bin/sh", "-c", script)
        environment = {"STACK_TEST_MARK": marked.mark}
        return ServerSpec(name, command, tmp_path / f"{name}.log", tmp_path, environment, forks=forks, grace_seconds=1)

    return {
        "plain": spec("plain", "exec sleep 1000"),
        "family": spec("family", FAMILY, forks=True),
        "deaf": spec("deaf", "trap '' TERM; echo deaf; while true; do sleep 0.1; done"),
        "quitter": spec("quitter", f"({FAMILY}) & sleep 0.3; echo enough; exit 7", forks=True),
    }


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.05)


# plain: one sleep; family: its reaper, shell and three sleeps.
ALL = 1 + 1 + FAMILY_SIZE


@pytest.fixture
def guardian(tmp_path: Path, specs: dict[str, ServerSpec], marked: Marked) -> Iterator[GuardianHandle]:
    handle = GuardianHandle.start(tmp_path)
    handle.start_server(specs["plain"])
    handle.start_server(specs["family"])
    wait_until(lambda: len(marked.processes()) == ALL)
    yield handle
    handle.shutdown(grace_seconds=0.0)


def test_shutdown_leaves_no_process(guardian: GuardianHandle, marked: Marked, tmp_path: Path) -> None:
    pid = guardian.status().pid
    guardian.shutdown()
    assert marked.processes() == []
    assert not psutil.pid_exists(pid)
    assert GuardianHandle.find(tmp_path) is None


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL], ids=lambda signum: signum.name)
def test_ended_guardian_leaves_no_process(guardian: GuardianHandle, marked: Marked, signum: signal.Signals) -> None:
    os.kill(guardian.status().pid, signum)
    wait_until(lambda: marked.processes() == [])


def test_killed_reaper_leaves_no_process(guardian: GuardianHandle, marked: Marked) -> None:
    family = guardian.status().server("family")
    assert family is not None
    os.kill(family.pid, signal.SIGKILL)
    wait_until(lambda: len(marked.processes()) == 1)
    state = guardian.status()
    assert state.server("family").how_it_ended() == "was ended by signal 9"
    assert state.server("plain").running


def test_server_that_ends_by_itself_leaves_no_process_and_its_exit_code_is_kept(
    guardian: GuardianHandle, specs: dict[str, ServerSpec], marked: Marked, tmp_path: Path
) -> None:
    guardian.start_server(specs["quitter"])
    wait_until(lambda: not guardian.status().server("quitter").running)
    assert guardian.status().server("quitter").exit_code == 7
    assert (tmp_path / "quitter.log").read_text() == "enough\n"
    wait_until(lambda: len(marked.processes()) == ALL)


def test_server_that_ends_with_an_error_is_started_again_as_often_as_its_spec_says(
    guardian: GuardianHandle, specs: dict[str, ServerSpec], marked: Marked, tmp_path: Path
) -> None:
    guardian.start_server(replace(specs["quitter"], restarts=2))
    wait_until(lambda: (tmp_path / "quitter.log").read_text() == "enough\n" * 3)
    wait_until(lambda: not guardian.status().server("quitter").running)
    time.sleep(0.5)
    assert (tmp_path / "quitter.log").read_text() == "enough\n" * 3
    wait_until(lambda: len(marked.processes()) == ALL)


def test_server_that_was_stopped_or_ended_well_is_not_started_again(
    guardian: GuardianHandle, specs: dict[str, ServerSpec]
) -> None:
    guardian.start_server(replace(specs["deaf"], name="stopped", restarts=2))
    guardian.stop_server("stopped", grace_seconds=0)
    guardian.start_server(replace(specs["plain"], name="done", command=("/bin/true",), restarts=2))
    wait_until(lambda: not guardian.status().server("done").running)
    time.sleep(0.5)
    states = {server.name: server.exit_code for server in guardian.status().servers}
    assert (states["stopped"], states["done"]) == (-signal.SIGKILL, 0)


def test_server_that_ignores_sigterm_is_killed_after_its_grace_time(
    guardian: GuardianHandle, specs: dict[str, ServerSpec]
) -> None:
    guardian.start_server(specs["deaf"])
    wait_until(lambda: specs["deaf"].log.exists() and specs["deaf"].log.read_text() == "deaf\n")
    guardian.stop_server("deaf", grace_seconds=0.3)
    assert guardian.status().server("deaf").exit_code == -signal.SIGKILL


def test_stopped_server_can_be_started_again(guardian: GuardianHandle, marked: Marked) -> None:
    guardian.stop_server("family")
    assert len(marked.processes()) == 1
    with pytest.raises(StackError, match="plain is already running"):
        guardian.restart_server("plain")
    guardian.restart_server("family")
    wait_until(lambda: len(marked.processes()) == ALL)


def test_second_guardian_of_a_state_directory_is_refused(guardian: GuardianHandle, tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"a stack is already running in .*make down"):
        GuardianHandle.start(tmp_path)


def test_state_directory_of_a_killed_guardian_can_be_used_again(guardian: GuardianHandle, tmp_path: Path) -> None:
    os.kill(guardian.status().pid, signal.SIGKILL)
    wait_until(lambda: GuardianHandle.find(tmp_path) is None)
    GuardianHandle.start(tmp_path).shutdown()


def test_state_directory_may_have_a_longer_path_than_a_socket_address(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    handle = GuardianHandle.start(deep)
    assert GuardianHandle.find(deep) is not None
    handle.shutdown()


OWNER = """
import os, sys, time
from pathlib import Path
from devstack.control import GuardianHandle
from devstack.servers import ServerSpec
directory, mark = Path(sys.argv[1]), sys.argv[2]
handle = GuardianHandle.start(directory)
environment = {"STACK_TEST_MARK": mark}
handle.start_server(ServerSpec("plain", ("sleep", "1000"), directory / "plain.log", directory, environment))
handle.start_server(
    ServerSpec("family", ("/bin/sh", "-c", sys.argv[3]), directory / "family.log", directory, environment, forks=True)
)
if sys.argv[4] == "forks" and os.fork() == 0:
    time.sleep(30)  # keeps every file of its parent open, including the pipe to the guardian
    os._exit(0)
if sys.argv[4] == "releases":
    handle.release()
    sys.exit()
print("ready", flush=True)
time.sleep(1000)
"""


def start_owner(directory: Path, marked: Marked, manner: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, str(directory), marked.mark, FAMILY, manner],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda signum: signum.name)
@pytest.mark.parametrize("manner", ["plain", "forks"])
def test_ended_owner_leaves_no_process(tmp_path: Path, marked: Marked, signum: signal.Signals, manner: str) -> None:
    with start_owner(tmp_path, marked, manner) as owner:
        try:
            assert owner.stdout is not None
            owner.stdout.readline()
            wait_until(lambda: len(marked.processes()) == ALL)
            owner.send_signal(signum)
            owner.wait(30)
            wait_until(lambda: marked.processes() == [])
            wait_until(lambda: GuardianHandle.find(tmp_path) is None)
        finally:
            os.killpg(owner.pid, signal.SIGKILL) if manner == "forks" else owner.kill()


def test_released_servers_outlive_their_owner_until_a_shutdown(tmp_path: Path, marked: Marked) -> None:
    with start_owner(tmp_path, marked, "releases") as owner:
        assert owner.wait(30) == 0
    guardian = GuardianHandle.find(tmp_path)
    assert guardian is not None
    assert guardian.status().owner_pid is None
    wait_until(lambda: len(marked.processes()) == ALL)
    guardian.shutdown()
    assert marked.processes() == []
