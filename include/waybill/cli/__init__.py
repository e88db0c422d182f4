"""`waybill …`: the command line.

Outside of Airflow, connections come from environment variables alone (docs/your-own-kafka-and-s3.md). What goes wrong
for a reason that Waybill knows is one message on stderr and exit code 1; a wrong command line is exit code 2; with
`WAYBILL_DEBUG` set the traceback is shown as well.

Commands import what they need when they run: `waybill --help` must not wait for pyarrow.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from waybill.errors import WaybillError

__all__ = ["DEBUG_VARIABLE", "main", "run"]

DEBUG_VARIABLE = "WAYBILL_DEBUG"


def main() -> None:
    """The entry point. Ends the process with the exit code."""
    _configure_logging()
    run(sys.argv[1:])


def run(arguments: Sequence[str]) -> NoReturn:
    """Run a command line. Raises `SystemExit` with the exit code; with `WAYBILL_DEBUG`, a `WaybillError` as it is."""
    from waybill.cli.app import app

    try:
        app(list(arguments), prog_name="waybill")
    except WaybillError as error:
        if _is_debugging():
            raise
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        # The reader (head, a pager) has left. Python would complain again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(0)


def _is_debugging() -> bool:
    return bool(os.environ.get(DEBUG_VARIABLE))


def _configure_logging() -> None:
    level = logging.DEBUG if _is_debugging() else logging.WARNING
    logging.basicConfig(level=level, format="%(levelname)s: %(message)s", stream=sys.stderr)
    # kafka-python and kazoo report each try to connect; what comes of it is said once, by the error.
    for noisy in ("kafka", "kazoo", "botocore"):
        logging.getLogger(noisy).setLevel(logging.INFO if _is_debugging() else logging.CRITICAL)
