"""The code of the DAGs `replay`, `replay_request` and `replay_index`: their tasks."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from waybill.base.decision import Decision
from waybill.base.errors import ReplayRefused
from waybill.config.models import Config

logger = logging.getLogger(__name__)

SERVE_SECONDS = 240
"""How long a task serves requests. Short tasks leave slots to Airflow's other tasks, and a new one starts each
minute."""


def create_from_form(config: Config, params: Mapping[str, Any], by: str | None, run_id: str) -> str:
    """Create the request of the form, and return its id. A retry of the same DAG run finds its request again.

    Raises `AirflowFailException` for errors that a retry cannot solve.
    """
    from waybill.replay.requests.database import Database
    from waybill.replay.requests.queue import Queue
    from waybill.replay.requests.request import parse_request, replay_of
    from waybill.replay.requests.targets import TARGETS

    target = TARGETS[params["target"]]
    document = {
        "stream": params["stream"],
        "keys": list(params["keys"]),
        "from": params["from"],
        "to": params["to"],
        "target": {"type": target.type, **{each.name: params[each.name] for each in fields(target)}},
        "priority": params["priority"],
    }
    now_ms = time.time_ns() // 1_000_000
    try:
        requested = parse_request(config, document, now_ms)
        with Database.of(config) as database:
            queue = Queue(database, replay_of(config).quotas)
            stored, _ = queue.create(
                requested, Decision.of_run(by, None).by, now_ms, idempotency_key=f"airflow:{run_id}"[:200]
            )
    except ReplayRefused as error:
        raise AirflowFailException(str(error)) from error
    logger.info("created %s; its progress: waybill replay show %s", stored.request.id, stored.request.id)
    return stored.request.id


def count_workers(config: Config) -> int:
    """Return how many workers have requests to serve, at most `replay.workers`."""
    from waybill.replay.requests.request import replay_of
    from waybill.replay.requests.worker import count_open

    return min(count_open(config), replay_of(config).workers)


def serve_requests(config: Config, number: int) -> dict[str, int]:
    """Serve requests for some minutes, and return the figures. SIGTERM ends the work, and the claim is given back.

    Raises `AirflowFailException` at the end for requests that need a person; the others are served first.
    """
    from waybill.replay.requests.worker import serve

    with _stopping() as stop:
        worker = f"{socket.gethostname()}/{os.getpid()}/{number}"
        served = serve(config, worker=worker, seconds=SERVE_SECONDS, should_stop=stop.is_set)
    logger.info(
        "%d turns: %d requests completed, %d failed, %d messages delivered",
        served.turns,
        served.completed,
        served.failed,
        served.delivered,
    )
    if served.problems:
        # A retry would have the same result, and delay the next run.
        raise AirflowFailException("; ".join(served.problems))
    return {"completed": served.completed, "failed": served.failed, "delivered": served.delivered}


def index_streams(config: Config) -> dict[str, Any]:
    """Extend the replay index of all streams, and remove old requests. Raises the first error at the end."""
    from waybill.replay.requests.index.job import index_all

    with _stopping() as stop:
        done = index_all(config, config.streams, should_stop=stop.is_set)
    for name, each in done.items():
        if each.figures.objects:
            logger.info("%s: %d messages of %d objects indexed", name, each.figures.messages, each.figures.objects)
    messages = sum(each.figures.messages for each in done.values())
    errors = [error for each in done.values() for error in each.all_errors]
    removed = _remove_old_requests(config)
    if errors:
        raise errors[0]
    return {"messages": messages, "removed_requests": removed}


def _remove_old_requests(config: Config) -> int:
    """Remove the requests that ended before `replay.keep_requests`, and return their number."""
    from waybill.replay.requests.database import Database
    from waybill.replay.requests.queue import Queue
    from waybill.replay.requests.request import replay_of

    replay = replay_of(config)
    before_ms = time.time_ns() // 1_000_000 - round(replay.keep_requests.total_seconds() * 1000)
    with Database.of(config) as database:
        return Queue(database, replay.quotas).remove_ended(before_ms)


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Set the event when Airflow ends the task: by SIGTERM, for a cleared task or a timeout."""
    stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)
