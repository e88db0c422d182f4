"""The process from which lanes are forked: it has imported Waybill, and has no other thread and no open connection.

A new process for a lane needs most of a second for its start, nearly all of it for imports; a fork of this process
needs a hundredth. The fork runs the same functions as a task of the DAG: `load_config`, `plan_lanes`, `run_lane`, or
the command line.

Requests come over a socket, a line of JSON each, and so do the events that go back: `started`, `stopped` (SIGSTOP),
`ended` with the wait status. Its children end with it, and it ends with the process at the other end of the socket.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import logging
import os
import selectors
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from devstack.processes import die_with_parent

OUT_OF_TURN = 3
"""Exit code of a child that ended with an error that the product should not raise."""


class ForkServer:
    """See the module's docstring. It has a single thread, since a fork of several threads is not safe."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._children: dict[int, int] = {}
        self._buffer = b""
        self._wakeup, wake = socket.socketpair()
        for end in (self._wakeup, wake):
            end.setblocking(False)
        self._wake = wake
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(self._wakeup, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._wakeup:
                        with contextlib.suppress(BlockingIOError):
                            self._wakeup.recv(4096)
                        self._look()
                    elif not self._receive():
                        return

    def _receive(self) -> bool:
        data = self._connection.recv(1 << 16)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._handle(json.loads(line))
        return bool(data)

    def _handle(self, request: dict[str, Any]) -> None:
        if "signal" in request:
            for pid, number in self._children.items():
                if number == request["id"]:
                    os.kill(pid, request["signal"])
            return
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            _child(server, (self._connection, self._wakeup, self._wake), request)
        self._children[pid] = request["id"]
        self._tell(id=request["id"], event="started", pid=pid)

    def _look(self) -> None:
        """Report children that stopped or ended."""
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if not pid:
                return
            if os.WIFSTOPPED(status):
                self._tell(id=self._children[pid], event="stopped")
            else:
                self._tell(id=self._children.pop(pid), event="ended", status=os.waitstatus_to_exitcode(status))

    def _tell(self, **event: Any) -> None:
        self._connection.sendall(json.dumps(event).encode() + b"\n")


def _child(server_pid: int, inherited: tuple[socket.socket, ...], request: dict[str, Any]) -> None:
    """Never returns."""
    code = OUT_OF_TURN
    try:
        die_with_parent(server_pid)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in inherited:
            end.close()
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        os.environ.update(request["environment"])
        logging.basicConfig(
            level=logging.INFO, stream=sys.stderr, format=f"%(asctime)s {request['id']} %(name)s %(message)s"
        )
        logging.getLogger("kafka").setLevel(logging.ERROR)
        logging.getLogger("kazoo").setLevel(logging.WARNING)
        code = _work(request)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _work(request: dict[str, Any]) -> int:
    from waybill.base import failpoints
    from waybill.base.errors import WaybillError

    patch(**{name: value for name, value in request["patches"].items() if name != "partition"})
    if request["failpoints"]:
        failpoints.arm(request["failpoints"])
    answer: dict[str, Any]
    code = 0
    try:
        answer = _JOBS[request["do"]](request)
    except WaybillError as error:
        answer = {"error": type(error).__name__, "message": str(error), "retriable": error.retriable}
    target = Path(request["answer"])
    target.with_suffix(".part").write_text(json.dumps(answer))
    target.with_suffix(".part").rename(target)
    return code


def _plan(request: dict[str, Any]) -> dict[str, Any]:
    from waybill.archive.ingest import plan_lanes
    from waybill.config.models import load_config

    return {"lanes": [lane.model_dump(mode="json") for lane in plan_lanes(load_config(), request["stream"])]}


def _lane(request: dict[str, Any]) -> dict[str, Any]:
    from waybill.archive.ingest import Lane, run_lane
    from waybill.config.models import load_config

    lane = Lane.model_validate(request["lane"])
    return {"report": run_lane(load_config(), lane).model_dump(mode="json")}


def _command(request: dict[str, Any]) -> dict[str, Any]:
    """Run `waybill …` like the command line."""
    from waybill.interfaces.cli import main as waybill

    sys.argv = ["waybill", *request["arguments"]]
    try:
        waybill()
    except SystemExit as ended:
        return {"exit": ended.code or 0}
    return {"exit": 0}


def _partition(request: dict[str, Any]) -> dict[str, Any]:
    """Run the functions of `spark_jobs/partition.py`, with the tasks in this process."""
    from waybill.config.models import load_config
    from waybill.tables.partition.partition_run import run_to_the_end
    from waybill.tables.partition.tasks import run_task

    config, name = load_config(), request["stream"]
    stream = config.stream(name)
    # Less than a config allows: a few kilobytes make several tasks and several plans.
    partition = stream.partition.model_copy(update=request["patches"].pop("partition", {}))
    config = config.model_copy(update={"streams": {name: stream.model_copy(update={"partition": partition})}})
    reports = run_to_the_end(config, name, lambda job, tasks: [run_task(job, task) for task in tasks])
    return {"reports": [report.document() for report in reports]}


_JOBS = {"plan": _plan, "lane": _lane, "command": _command, "partition": _partition}


def patch(
    part_bytes: int | None = None,
    fetch_bytes: int | None = None,
    s3_attempts: int | None = None,
    s3_read_timeout_seconds: int | None = None,
    kafka: dict[str, int] | None = None,
    commit_guard: bool = True,
) -> None:
    """Change constants of Waybill in the child, so that small data covers every case.

    `part_bytes`: of multipart uploads; `fetch_bytes`: of one fetch; `s3_attempts`: botocore's, so that one 500 is
    enough for a failed call; `s3_read_timeout_seconds`: how long an answer is waited for; `kafka`: the port of the
    proxy for each `host:port` of a broker, since brokers say themselves where they are; `commit_guard`: without it, a
    commit to a table does not check whether a rival has committed the same plan.
    """
    from waybill.services import store
    from waybill.services.kafka import kafka as source
    from waybill.services.kafka import transport
    from waybill.services.store import calls
    from waybill.services.store import store as module_of_store

    # The harness counts calls of the protocol and injects faults into them, and its S3 may be unfit on purpose
    # (GUARD=off).
    assert module_of_store.ensure_fit
    module_of_store.ensure_fit = lambda *_: None
    if not commit_guard:
        # `waybill.tables.iceberg.publish` is a function, too, which hides the module of that name.
        module = importlib.import_module("waybill.tables.iceberg.publish")
        assert module._is_published
        module._is_published = lambda *_: False
    if part_bytes is not None:
        store.Store.__init__.__kwdefaults__["part_bytes"] = part_bytes
    if fetch_bytes is not None:
        source.KafkaSource.__init__.__kwdefaults__["fetch_bytes"] = fetch_bytes
    if s3_attempts is not None:
        assert isinstance(calls._ATTEMPTS, int)
        calls._ATTEMPTS = s3_attempts
    if s3_read_timeout_seconds is not None:
        assert isinstance(calls._READ_TIMEOUT_SECONDS, int)
        calls._READ_TIMEOUT_SECONDS = s3_read_timeout_seconds
    if kafka is not None:
        create = transport.create_connection

        async def through_proxy(net: Any, host: str, port: int, *args: Any, **kwargs: Any) -> Any:
            return await create(net, host, kafka.get(f"{host}:{port}", port), *args, **kwargs)

        transport.create_connection = through_proxy


def _preload() -> None:
    """Import what lanes and `waybill verify` need, and let botocore parse its models."""
    import botocore.session  # noqa: F401

    import waybill.interfaces.cli.app
    import waybill.interfaces.cli.verify  # noqa: F401
    from waybill.archive import ingest  # noqa: F401
    from waybill.config.connections import S3Endpoint
    from waybill.config.models import load_config  # noqa: F401
    from waybill.services.coordination import Coordinator  # noqa: F401
    from waybill.services.kafka.kafka import KafkaSource  # noqa: F401
    from waybill.services.store.calls import store_client

    endpoint = S3Endpoint(endpoint_url="http://127.0.0.1:1", access_key="none", secret_key="none")
    store_client(endpoint).close()


def main() -> None:
    """The arguments: the socket's file descriptor, and more modules to import."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _preload()
    for module in sys.argv[2:]:
        importlib.import_module(module)
    threads = len(list(Path("/proc/self/task").iterdir()))
    server = ForkServer(connection)
    server._tell(event="ready", threads=threads)
    server.serve()


if __name__ == "__main__":
    main()
