"""The process that a driver forks to run as PySpark's daemon: it takes over, and it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# A driver that forks, prints the socket's path, and ends when its standard input is closed.
_DRIVER = """
import os, sys
from waybill.tables.spark.daemon import SOCKET_VARIABLE, forked_daemon

def run():
    print(os.getpid(), os.environ["OF_THE_DAEMON"], sys.stdin.readline().strip(), flush=True)
    sys.stdin.read()
    sys.exit(3)

with forked_daemon(lambda: None, run) as environment:
    print(environment[SOCKET_VARIABLE], flush=True)
    sys.stdin.read()
print("the driver goes on")
"""
_DAEMON = "import sys\nfrom waybill.tables.spark.daemon import hand_over\nsys.exit(0 if hand_over(sys.argv[1]) else 4)"


def start(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, also if its parent has not waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def await_end(pid: int) -> None:
    until = time.monotonic() + 20
    while not has_ended(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert has_ended(pid)


def test_forked_process_takes_over_the_daemons_environment_and_streams() -> None:
    with start(_DRIVER) as driver:
        socket = line(driver)
        with start(_DAEMON, socket, OF_THE_DAEMON="its-own") as daemon:
            assert daemon.stdin is not None
            daemon.stdin.write("a line\n")
            daemon.stdin.flush()
            pid, variable, read = line(daemon).split(" ", 2)
            assert (variable, read) == ("its-own", "a line")
            assert int(pid) not in (driver.pid, daemon.pid)
            # It survives the driver. It ends when Spark closes its standard input, and then Spark's daemon ends, too.
            assert driver.communicate(timeout=20)[0] == "the driver goes on\n"
            assert daemon.poll() is None
            daemon.stdin.close()
            assert daemon.wait(20) == 0
        await_end(int(pid))
    assert not Path(socket).parent.exists()


def test_signals_reach_the_forked_process() -> None:
    with start(_DRIVER) as driver:
        with start(_DAEMON, line(driver), OF_THE_DAEMON="x") as daemon:
            assert daemon.stdin is not None
            daemon.stdin.write("\n")
            daemon.stdin.flush()
            pid = int(line(daemon).split()[0])
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(20) == 0
            await_end(pid)
        driver.communicate(timeout=20)


@pytest.mark.parametrize("kill", [False, True], ids=["ends", "is killed"])
def test_nothing_is_left_when_the_driver_ends_first(kill: bool) -> None:
    with start(_DRIVER) as driver:
        socket = line(driver)
        [child] = (int(pid) for pid in Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split())
        if kill:
            driver.kill()
        driver.communicate(timeout=20)
    await_end(child)
    assert not Path(socket).parent.exists()
    with start(_DAEMON, socket) as daemon:
        assert daemon.wait(20) == 4


def test_second_daemon_finds_no_forked_process() -> None:
    with start(_DRIVER) as driver:
        socket = line(driver)
        with start(_DAEMON, socket, OF_THE_DAEMON="x") as daemon:
            assert daemon.stdin is not None
            daemon.stdin.write("\n")
            daemon.stdin.flush()
            line(daemon)
            with start(_DAEMON, socket) as second:
                assert second.wait(20) == 4
            daemon.communicate(timeout=20)
        driver.communicate(timeout=20)


def test_long_environment_variables_are_handed_over_completely() -> None:
    value = json.dumps({"secret": "x" * 90_000, "umlaut": "ä€"})
    with start(_DRIVER) as driver:
        with start(_DAEMON, line(driver), OF_THE_DAEMON=value.replace(" ", "_")) as daemon:
            answer, _ = daemon.communicate("\n", timeout=20)
        assert value.replace(" ", "_") in answer
        driver.communicate(timeout=20)


_RUN = """
import gc, pathlib, sys, zipfile, zipimport
import pyspark.daemon
from waybill.tables.spark import daemon

archive = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(archive, "w") as made:
    made.writestr("in_archive.py", "")
importer = zipimport.zipimporter(str(archive))

def manager():
    archive.unlink()
    importer.invalidate_caches()
    print(gc.get_freeze_count() > 10_000, bool(importer._files))

pyspark.daemon.manager = manager
daemon.run()
"""


def test_workers_neither_collect_what_is_imported_nor_read_archives_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(tmp_path / "archive.zip")], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "True"]
