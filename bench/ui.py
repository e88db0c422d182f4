"""Measure the pages in Airflow's UI: 100 streams with 100 topic-partitions each, and 100 users who poll.

    python bench/ui.py [--streams 100] [--partitions 100] [--users 100] [--seconds 20]

The app runs under uvicorn in a process of its own, as in an API server with one worker, without Airflow's login (which
costs each request the same as any other page of Airflow). It prints the size of the status document, the time to parse
it, the time of the first answer of each page (rendered) and of the next ones (kept), and what users who poll every five
seconds wait.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import statistics
import time
from collections.abc import Mapping

import httpx

from waybill.config.promises import PromiseName, PromiseSeverity
from waybill.incidents.finding import Verdict
from waybill.watch.status import (
    ChainRange,
    PromiseStatus,
    RunStatus,
    ServiceStatus,
    Status,
    StreamStatus,
    TopicPartitionStatus,
    TrendPoint,
)

POLL_SECONDS = 5.0
PAGES = ("streams", "streams/stream-000", "incidents", "kafka", "replays", "cost")


def status_of(streams: int, partitions: int) -> Status:
    """Return a status document of that size, with all promises of each stream and two hours of trends."""
    now_ms = int(time.time() * 1000)
    return Status(
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

    from waybill.config import load_valid_streams
    from waybill.store import Store
    from waybill.web.actions import Actions
    from waybill.web.app import Caller, Site, create_app
    from waybill.web.frame import Role, Viewer
    from waybill.web.operations import OPERATIONS
    from waybill.web.reading import StatusReader

    def authenticate() -> Caller:
        return Caller(Viewer("ada", Role.OPERATOR), _no_trigger, lambda *_: "")

    actions = Actions(load_valid_streams, lambda config: Store.of(config.storage), OPERATIONS)
    app = create_app(
        StatusReader(lambda: content, "status"), authenticate, actions, Site("", b"secret", lambda back: back)
    )
    uvicorn.run(app, port=port, log_level="error", timeout_keep_alive=60)


async def poll(port: int, users: int, seconds: float) -> tuple[list[float], list[float]]:
    """Let users poll the page Streams, each with its ETag; return the seconds of whole answers and of 304s."""
    whole: list[float] = []
    unchanged: list[float] = []
    end = time.monotonic() + seconds

    async def user(number: int) -> None:
        etag = ""
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
            await client.get("/cost")
            await asyncio.sleep(number / users * POLL_SECONDS)
            while time.monotonic() < end:
                began = time.monotonic()
                answer = await client.get("/fragments/streams", headers={"if-none-match": etag})
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
    options = parser.parse_args()
    content = status_of(options.streams, options.partitions).content()
    Status.parse(content, "status")
    began = time.monotonic()
    Status.parse(content, "status")
    print(f"status document: {len(content) / 1e6:.2f} MB, parsed in {(time.monotonic() - began) * 1000:.0f} ms")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(port, content), daemon=True)
    server.start()
    try:
        _measure_pages(port)
        whole, unchanged = asyncio.run(poll(port, options.users, options.seconds))
        print(f"{options.users} users: whole: {_text(whole)}; unchanged (304): {_text(unchanged)}")
    finally:
        server.terminate()
        server.join()


def _measure_pages(port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
        for _ in range(200):
            try:
                client.get("/cost")
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        for page in (*(f"/fragments/{each}" for each in PAGES), "/", "/streams/stream-001", "/api/status"):
            taken = []
            for _ in range(20):
                began = time.monotonic()
                answer = client.get(page)
                taken.append(time.monotonic() - began)
                assert answer.status_code == 200, answer.text
            first, later = taken[0] * 1000, statistics.median(taken[1:]) * 1000
            print(f"{page}: {len(answer.content) / 1e3:.0f} kB, first {first:.0f} ms, then {later:.0f} ms")


if __name__ == "__main__":
    main()
