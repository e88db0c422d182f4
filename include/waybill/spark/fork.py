"""PySpark's daemon forked from a driver on the same machine, in place of one that imports everything again.

A driver has imported what its tasks need before it asks Spark for anything. Imported again by the daemon that Spark
starts, the same would keep every run of `local[n]` waiting for three seconds (docs/decisions/0011). So the driver forks
a process before it has threads or connections; the daemon that Spark starts later is a few lines, which give that
process their environment and their standard streams and stay as long as it does:

    driver --fork--> forked process  <--socket: environment, streams--  Spark's daemon  <--start-- JVM

The forked process ends with the driver if nobody hands over to it, and afterwards as any daemon does: when Spark closes
its standard input. Without it the daemon does its own imports.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

__all__ = ["SOCKET_VARIABLE", "forked", "hand_over"]

SOCKET_VARIABLE = "WAYBILL_FORKED_DAEMON"
"""Names the socket of the forked process to the daemon that Spark starts."""

_STREAMS = 3  # standard input, output and error
_LENGTH_BYTES = 8


# --- the driver -------------------------------------------------------------------------------------------------------


@contextmanager
def forked(warm_up: Callable[[], None], run: Callable[[], None]) -> Iterator[Mapping[str, str]]:
    """Fork a process that calls `warm_up` and waits; gives the environment variables by which a daemon finds it.

    To be entered before this process has threads or connections. Once a daemon has handed over, the forked process
    calls `run` with the daemon's environment and streams.
    """
    folder = tempfile.mkdtemp(prefix="waybill-daemon-")  # only this user may enter it
    path = str(Path(folder) / "socket")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(1)
        alive, lifeline = os.pipe()
        # What is in their buffers would be written twice.
        sys.stdout.flush()
        sys.stderr.flush()
        if os.fork() == 0:
            os.close(lifeline)
            _be_forked(listening, alive, folder, warm_up, run)
        os.close(alive)
    try:
        yield {SOCKET_VARIABLE: path}
    finally:
        os.close(lifeline)


# --- the forked process -----------------------------------------------------------------------------------------------


def _be_forked(
    listening: socket.socket, alive: int, folder: str, warm_up: Callable[[], None], run: Callable[[], None]
) -> NoReturn:
    """Wait for a daemon, or for the driver's end. Never returns into the driver's code."""
    code = 1
    try:
        _detach_streams()
        warm_up()
        caller = _accept(listening, alive)
        shutil.rmtree(folder, ignore_errors=True)
        if caller is not None:
            _take_over(caller)
            # The caller stays until this end of the connection is closed, with this process.
            run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(code)


def _detach_streams() -> None:
    """Let go of the driver's input and output: who reads them waits until all who hold them are gone."""
    with Path(os.devnull).open("r+b") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)


def _accept(listening: socket.socket, alive: int) -> socket.socket | None:
    """The connection of a daemon; None if the driver ended first."""
    ready, _, _ = select.select([listening.fileno(), alive], [], [])
    connection = listening.accept()[0] if listening.fileno() in ready else None
    listening.close()
    os.close(alive)
    return connection


def _take_over(caller: socket.socket) -> None:
    size, streams, _, _ = socket.recv_fds(caller, _LENGTH_BYTES, _STREAMS)
    with caller.makefile("rb") as sent:
        environment = json.loads(sent.read(int.from_bytes(size, "big")))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    caller.sendall(os.getpid().to_bytes(_LENGTH_BYTES, "big"))


# --- the daemon that Spark starts -------------------------------------------------------------------------------------


def hand_over(path: str) -> bool:
    """Let the forked process behind a socket be the daemon, and stay until it ends; False: there is none."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
            environment = json.dumps(dict(os.environ)).encode()
            socket.send_fds(connection, [len(environment).to_bytes(_LENGTH_BYTES, "big")], list(range(_STREAMS)))
            connection.sendall(environment)
            answer = connection.recv(_LENGTH_BYTES)
        except OSError:
            return False
        if not answer:
            return False
        daemon = int.from_bytes(answer, "big")

        def pass_on(number: int, _: object) -> None:
            with suppress(ProcessLookupError):
                os.kill(daemon, number)

        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, pass_on)
        connection.recv(1)
    return True
