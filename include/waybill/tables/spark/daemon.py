"""PySpark's daemon, with the imports of Waybill's tasks done before it forks its workers.

Spark starts one daemon in each executor; the daemon forks a worker for each task that runs at the same time. Imports,
the compiled decoder and botocore's model of S3 take two to three CPU seconds. The daemon does them once, and its
workers share the memory. Spark finds this module through the setting `spark.python.daemon.module`.

In local mode the driver and the daemon are on the same machine, and the driver has done the same imports already. To do
them once instead of twice (three seconds of each run, docs/decisions/0011), the driver forks a process before it has
threads or connections. The daemon that Spark starts later imports nothing: it gives its environment and its standard
streams to the forked process, which takes its place, and waits for that process to end:

    driver --fork--> forked process  <--socket: environment, streams--  Spark's daemon  <--start-- JVM

The forked process ends together with the driver if no daemon has connected to it by then. After a daemon has connected,
it ends like any daemon: when Spark closes its standard input. If there is no forked process, the daemon does the
imports itself.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import zipimport
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

SOCKET_VARIABLE = "WAYBILL_FORKED_DAEMON"
"""Environment variable of the daemon that Spark starts: the path of the forked process's socket."""

_STREAM_COUNT = 3  # standard input, output and error
_LENGTH_BYTES = 8
_FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


# --- the imports ------------------------------------------------------------------------------------------------------


def warm_up() -> None:
    """Import and compile the code that tasks of a partition run use.

    It starts no thread and opens no connection, since neither survives a fork.
    """
    import waybill.tables.partition.tasks  # noqa: F401
    from waybill.config.models import JsonParser
    from waybill.parsers import build_parser
    from waybill.records.batches.decode import decode
    from waybill.records.batches.encode import Record, encode_batch

    json = JsonParser.model_validate({"event_time": {"field": "t", "format": "epoch_ms"}})
    record = Record(0, 0, b"", b'{"t":0}', (("", b""),))
    for messages in decode(encode_batch([record]), where="warm-up"):
        build_parser(json).parse(messages)
    _warm_up_libraries()


def warm_up_dedup() -> None:
    """Import and compile the code that tasks of a sweep use; see `warm_up`."""
    import waybill.tables.dedup.execute

    waybill.tables.dedup.execute.warm_up()
    _warm_up_libraries()


def _warm_up_libraries() -> None:
    import pyspark.daemon  # noqa: F401
    from botocore.config import Config

    from waybill.config.connections import S3Endpoint
    from waybill.services.clients.s3 import s3_client

    s3_client(S3Endpoint(conn_id="warm-up", region="us-east-1"), Config()).close()


def run() -> None:
    """Run PySpark's daemon until Spark closes its standard input. Ends the process.

    It removes two costs of each task in PySpark's workers, together a quarter of a CPU second (docs/decisions/0017):

    - After a task a worker collects garbage, which looks at every object of the process. Imported objects are never
      freed, so they are excluded from collections.
    - Before a task a worker invalidates the caches of all importers, and the importers of `pyspark.zip` read its
      directory again, once for each package. The archives of an application do not change.
    """
    from pyspark.daemon import manager

    gc.collect()
    _resume_collections()
    zipimport.zipimporter.invalidate_caches = _keep_directory  # type: ignore[method-assign, assignment]
    manager()  # type: ignore[no-untyped-call]


def _resume_collections() -> None:
    """End the pause of `waybill.tables.spark.quick_imports`. Collections leave out the objects that exist now."""
    gc.freeze()
    gc.enable()


def _keep_directory(_: zipimport.zipimporter) -> None:
    """Stand in for `zipimporter.invalidate_caches`."""


# --- in the driver ----------------------------------------------------------------------------------------------------


@contextmanager
def forked_daemon(warm_up: Callable[[], None], run: Callable[[], None]) -> Iterator[Mapping[str, str]]:
    """Fork a process that calls `warm_up` and then waits for a daemon. Yields the environment variables for the daemon.

    Enter it before this process has threads or connections. When a daemon has connected, the forked process calls `run`
    with the daemon's environment and streams.
    """
    folder = tempfile.mkdtemp(prefix="waybill-daemon-")  # only this user may enter it
    path = str(Path(folder) / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        # The forked process notices the driver's end, of whatever cause, when the write end of this pipe is closed.
        pipe_read, pipe_write = os.pipe()
        # Otherwise both processes would write the content of the buffers.
        sys.stdout.flush()
        sys.stderr.flush()
        if os.fork() == 0:
            os.close(pipe_write)
            _run_forked(listener, pipe_read, folder, warm_up, run)
        os.close(pipe_read)
    _resume_collections()
    try:
        yield {SOCKET_VARIABLE: path}
    finally:
        os.close(pipe_write)


# --- in the forked process --------------------------------------------------------------------------------------------


def _run_forked(
    listener: socket.socket, driver_pipe: int, folder: str, warm_up: Callable[[], None], run: Callable[[], None]
) -> NoReturn:
    """Wait for a daemon or for the driver's end. Never returns into the driver's code."""
    code = 1
    try:
        _detach_streams()
        warm_up()
        connection = _accept(listener, driver_pipe)
        shutil.rmtree(folder, ignore_errors=True)
        if connection is not None:
            _take_over(connection)
            # Spark's daemon waits until this process ends, which closes the connection.
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
    """Close the driver's input and output: a reader of the driver's output waits until every holder has closed it."""
    with Path(os.devnull).open("r+b") as null:
        os.dup2(null.fileno(), 0)
        os.dup2(null.fileno(), 1)


def _accept(listener: socket.socket, driver_pipe: int) -> socket.socket | None:
    """Return the connection of a daemon, or None if the driver ended first."""
    ready, _, _ = select.select([listener.fileno(), driver_pipe], [], [])
    connection = listener.accept()[0] if listener.fileno() in ready else None
    listener.close()
    os.close(driver_pipe)
    return connection


def _take_over(connection: socket.socket) -> None:
    """Take the environment and the standard streams of Spark's daemon, and answer with this process's id."""
    size, streams, _, _ = socket.recv_fds(connection, _LENGTH_BYTES, _STREAM_COUNT)
    with connection.makefile("rb") as received:
        environment = json.loads(received.read(int.from_bytes(size, "big")))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    connection.sendall(os.getpid().to_bytes(_LENGTH_BYTES, "big"))


# --- in the daemon that Spark starts ----------------------------------------------------------------------------------


def hand_over(path: str) -> bool:
    """Let the forked process behind a socket run as the daemon, and return True when it has ended.

    Returns False at once if there is no such process. Signals that end a daemon go to the forked process.
    """
    # The forked process may start to work before this process knows its id. A signal in between is blocked until then.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED_SIGNALS)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            daemon_pid = _hand_over_streams(connection, path)
            if daemon_pid is None:
                return False

            def forward_signal(number: int, _: object) -> None:
                with suppress(ProcessLookupError):
                    os.kill(daemon_pid, number)

            for number in _FORWARDED_SIGNALS:
                signal.signal(number, forward_signal)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED_SIGNALS)
            connection.recv(1)
        return True
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED_SIGNALS)


def _hand_over_streams(connection: socket.socket, path: str) -> int | None:
    """Send this process's environment and streams. Returns the id of the process that took them, or None."""
    try:
        connection.connect(path)
        environment = json.dumps(dict(os.environ)).encode()
        size = len(environment).to_bytes(_LENGTH_BYTES, "big")
        socket.send_fds(connection, [size], list(range(_STREAM_COUNT)))
        connection.sendall(environment)
        answer = connection.recv(_LENGTH_BYTES)
    except OSError:
        return None
    return int.from_bytes(answer, "big") if answer else None


if __name__ == "__main__":
    socket_path = os.environ.pop(SOCKET_VARIABLE, None)
    if socket_path is None or not hand_over(socket_path):
        warm_up()
        run()
