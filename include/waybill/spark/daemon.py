"""PySpark's daemon, with what a task needs imported before it forks its workers.

Spark starts the daemon once in each executor, and it forks a worker for each task that runs at the same time. Imports,
the compiled decoder and botocore's model of S3 take two to three CPU seconds: here they are paid once, not once in each
worker, and the workers share their memory. Named by `spark.python.daemon.module`.

Where the driver has forked a process that has all that already (`waybill.spark.fork`), the daemon that Spark starts
imports nothing and hands over to it.
"""

from __future__ import annotations

import os

from waybill.spark.fork import SOCKET_VARIABLE, hand_over

__all__ = ["run", "warm_up", "warm_up_dedup"]


def warm_up() -> None:
    """Import, load and parse what every task uses. No thread and no connection: those do not survive a fork."""
    import waybill.partition.tasks  # noqa: F401
    from waybill.records.decode import decode
    from waybill.records.encode import Record, encode_batch

    list(decode(encode_batch([Record(0, 0, b"", b"", (("", b""),))]), where="warm-up"))
    _warm_up_libraries()


def warm_up_dedup() -> None:
    """As `warm_up`, for the tasks of a dedup sweep."""
    import waybill.dedup.execute

    waybill.dedup.execute.warm_up()
    _warm_up_libraries()


def _warm_up_libraries() -> None:
    import pyspark.daemon  # noqa: F401
    from botocore.config import Config

    from waybill.clients.s3 import s3_client
    from waybill.connections import S3Endpoint

    s3_client(S3Endpoint(conn_id="warm-up", region="us-east-1"), Config()).close()


def run() -> None:
    """Be the daemon, until Spark closes standard input. Ends the process."""
    from pyspark.daemon import manager

    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    socket = os.environ.pop(SOCKET_VARIABLE, None)
    if socket is None or not hand_over(socket):
        warm_up()
        run()
