"""Measure the pages in Airflow's UI: 100 streams with 100 topic-partitions each, and 100 users who poll.

    python bench/ui.py [--streams 100] [--partitions 100] [--users 100] [--seconds 20] [--pairs 0]

The app runs under uvicorn in a process of its own, as in an API server with one worker, and compresses answers as
Airflow's API server does. Airflow's login is left out: it costs each request the same as any other page of Airflow. The
script prints the size of the status document, the time to parse it, the time of the first answer of each page
(rendered) and of the next ones (kept), the same for one stream with all the topic-partitions, and what users wait who
poll every five seconds: of ten users, six have Streams open, two the page of a stream, one Incidents, one Kafka.

With `--pairs N`, it also starts Kafka, ZooKeeper and S3, and archives the same messages 2 N times: without the users,
and while they poll, in turn. It prints the CPU seconds of each of these lanes, and how long it took.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import os
import socket
import ssl
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

import httpx

from waybill.config.models.promises import PromiseName, PromiseSeverity
from waybill.interfaces.operations.declaration import Role
from waybill.watch.incidents.finding import Verdict
from waybill.watch.promises.status import (
    ChainRange,
    PromiseStatus,
    RunStatus,
    ServiceStatus,
    StreamStatus,
    TopicPartitionStatus,
    TrendPoint,
    WatchStatus,
)

POLL_SECONDS = 5.0
PAGES = ("streams", "streams/stream-000", "incidents", "kafka", "replays", "cost")
OF_TEN_USERS = (*["streams"] * 6, "streams/stream-000", "streams/stream-001", "incidents", "kafka")
LANE_MESSAGES = 400_000


def status_of(streams: int, partitions: int) -> WatchStatus:
    """Return a status document of that size, with all promises of each stream and two hours of trends."""
    now_ms = int(time.time() * 1000)
    return WatchStatus(
        now_ms,
        1.0,
        services=(ServiceStatus("Kafka", Verdict.KEPT, "it answers", "", now_ms),),
        streams=tuple(_stream(number, partitions, now_ms) for number in range(streams)),
    )


def _stream(number: int, partitions: int, now_ms: int) -> StreamStatus:
    name = f"stream-{number:03}"
    return StreamStatus(
        name,
        f"bench.{name}",
        1,
        "kafka",
        {"ingest": "ingest_group__default", "partition": "partition_group__default"},
        promises=tuple(
            PromiseStatus(
                name,
                promise,
                "",
                Verdict.BROKEN if (number + place) % 50 == 0 else Verdict.KEPT,
                PromiseSeverity.WARNING,
                "4 min",
                "at most 15 min",
                command=f"waybill offsets ls --stream {name}",
                since_ms=now_ms,
                value=240.0,
            )
            for place, promise in enumerate(PromiseName)
        ),
        topic_partitions=tuple(
            TopicPartitionStatus(
                name,
                each,
                1_000,
                9_000_000 + each,
                8_999_000,
                0,
                8_900_000,
                8_800_000,
                8_000_000,
                12.5,
                (ChainRange(5_000, 6_000, "RetentionGap", "ada", "a broker was down"),) if each % 10 == 0 else (),
            )
            for each in range(partitions)
        ),
        logs_ms=now_ms,
        trend=tuple(TrendPoint(now_ms - (120 - each) * 60_000, float(each), 100.0, each) for each in range(120)),
        produced_per_second=1_000.0,
        archived_per_second=1_010.0,
        runs=tuple(RunStatus("partition", now_ms - each * 3_600_000, 3_600_000, 12) for each in range(24)),
    )


def _no_trigger(dag: str, form: Mapping[str, object], run: str) -> None:
    raise AssertionError(f"{dag} {form} {run}")


def serve(port: int, content: bytes) -> None:
    """Serve the pages of a document until the process is ended."""
    import uvicorn
    from fastapi.middleware.gzip import GZipMiddleware

    from waybill.config.models import load_valid_streams
    from waybill.interfaces.web.actions import Actions
    from waybill.interfaces.web.app import PageCaller, Site, create_app
    from waybill.interfaces.web.frame import Viewer
    from waybill.interfaces.web.perform import PERFORM
    from waybill.interfaces.web.reading import StatusReader
    from waybill.services.store import Store

    def authenticate() -> PageCaller:
        return PageCaller(Viewer("ada", Role.OPERATOR), _no_trigger, lambda *_: "")

    actions = Actions(load_valid_streams, lambda config: Store.of(config.storage), PERFORM)
    app = create_app(
        StatusReader(lambda: content, "status"), authenticate, actions, Site("", b"secret", lambda back: back)
    )
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)  # as Airflow's own app
    uvicorn.run(app, port=port, log_level="error", timeout_keep_alive=60)


async def poll(port: int, users: int, seconds: float) -> tuple[list[float], list[float]]:
    """Let users poll their pages, each with its ETag; return the seconds of whole answers and of 304s."""
    whole: list[float] = []
    unchanged: list[float] = []
    end = time.monotonic() + seconds
    context = ssl.create_default_context()  # one for all: loading it takes longer than a request

    async def user(number: int) -> None:
        etag, page = "", OF_TEN_USERS[number % len(OF_TEN_USERS)]
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30, verify=context
        ) as client:
            await client.get("/cost")
            await asyncio.sleep(number / users * POLL_SECONDS)
            while time.monotonic() < end:
                began = time.monotonic()
                answer = await client.get(f"/fragments/{page}", headers={"if-none-match": etag})
                taken = time.monotonic() - began
                assert answer.status_code in (200, 304)
                (whole if answer.status_code == 200 else unchanged).append(taken)
                etag = answer.headers["etag"]
                await asyncio.sleep(max(0.0, POLL_SECONDS - taken))

    await asyncio.gather(*(user(number) for number in range(users)))
    return whole, unchanged


def _text(seconds: list[float]) -> str:
    if not seconds:
        return "none"
    ordered = sorted(seconds)
    worst = ordered[int(len(ordered) * 0.99)]
    return f"{len(ordered)} answers, median {statistics.median(ordered) * 1000:.0f} ms, p99 {worst * 1000:.0f} ms"


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--users", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--pairs", type=int, default=0, help="lanes without and with polling users, after each other")
    options = parser.parse_args()
    all_of_them = options.streams * options.partitions
    with serving(status_of(1, all_of_them).content()) as (port, _):
        print(f"one stream with {all_of_them:,} topic-partitions:")
        _measure_pages(port, ("/fragments/streams/stream-000", "/fragments/streams/stream-000?tp=stream-000/77"))
    content = status_of(options.streams, options.partitions).content()
    WatchStatus.parse(content, "status")
    began = time.monotonic()
    WatchStatus.parse(content, "status")
    print(f"{options.streams} streams with {options.partitions} topic-partitions each:")
    print(f"status document: {len(content) / 1e6:.2f} MB, parsed in {(time.monotonic() - began) * 1000:.0f} ms")
    with serving(content) as (port, pid):
        _measure_pages(port, (*(f"/fragments/{each}" for each in PAGES), "/", "/streams/stream-001", "/api/status"))
        before = _cpu_seconds(pid)
        whole, unchanged = asyncio.run(poll(port, options.users, options.seconds))
        used = (_cpu_seconds(pid) - before) / options.seconds
        print(f"{options.users} users: whole: {_text(whole)}; unchanged (304): {_text(unchanged)}")
        print(f"the server used {used:.0%} of a core")
        if options.pairs:
            _measure_lanes(port, options.users, options.pairs)


@contextmanager
def serving(content: bytes) -> Iterator[tuple[int, int]]:
    """Serve the pages of a document in a process of its own; yield its port and its process id."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(port, content), daemon=True)
    server.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
            for _ in range(300):
                try:
                    client.get("/cost")
                    break
                except httpx.HTTPError:
                    time.sleep(0.1)
        yield port, server.pid or 0
    finally:
        server.terminate()
        server.join()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _poll_until(ended: Event, port: int, users: int) -> None:
    """Let users poll until `ended` is set: the users of `_measure_lanes`, in a process of their own."""
    while not ended.is_set():
        asyncio.run(poll(port, users, POLL_SECONDS * 2))


def _measure_lanes(port: int, users: int, pairs: int) -> None:
    """Archive the same messages without and with polling users, in turn."""
    from events import messages
    from ingest import checked, connected_lane, lane_of
    from services import create_topic, produce, running_services, stream_config, topic_name

    spawn = multiprocessing.get_context("spawn")
    with running_services():
        topic = topic_name("ui")
        create_topic(topic, 1)
        values = itertools.islice(itertools.cycle(messages(20_000)), LANE_MESSAGES)
        produce(topic, ((b"%08d" % (n % 5000), value, 0) for n, value in enumerate(values)), linger_ms=50)
        drain = connected_lane(stream_config(topic))
        found: dict[str, list[tuple[float, float]]] = {"alone": [], "while users poll": []}
        for number in range(pairs + 1):
            for name, lanes in found.items():
                ended = spawn.Event()
                pollers = spawn.Process(target=_poll_until, args=(ended, port, users), daemon=True)
                if name != "alone":
                    pollers.start()
                    time.sleep(POLL_SECONDS + 2)  # until all of them poll
                cpu, began = time.process_time(), time.perf_counter()
                checked(drain(stream_config(topic), lane_of(topic)), LANE_MESSAGES)
                if number:  # the first pair warms up
                    lanes.append((time.process_time() - cpu, time.perf_counter() - began))
                if name != "alone":
                    ended.set()
                    pollers.join()
    for name, lanes in found.items():
        for unit, place in (("CPU s", 0), ("s", 1)):
            values = [round(each[place], 2) for each in lanes]
            print(
                f"a lane, {LANE_MESSAGES:,} messages, {name}: {unit} {values}, median {statistics.median(values):.2f}"
            )


def _measure_pages(port: int, pages: Sequence[str]) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
        for page in pages:
            taken = []
            for _ in range(20):
                began = time.monotonic()
                answer = client.get(page)
                taken.append(time.monotonic() - began)
                assert answer.status_code == 200, answer.text
            first, later = taken[0] * 1000, statistics.median(taken[1:]) * 1000
            sent = answer.num_bytes_downloaded / 1e3
            size = f"{len(answer.content) / 1e3:.0f} kB, {sent:.0f} kB sent"
            print(f"{page}: {size}, first {first:.0f} ms, then {later:.0f} ms")


if __name__ == "__main__":
    main()
