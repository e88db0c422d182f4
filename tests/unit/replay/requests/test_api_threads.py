"""Calls of the HTTP API after login, while the database does not answer: few threads wait, and not again and again."""

from __future__ import annotations

import asyncio
import threading

import pytest

from waybill.base.errors import ReplayUnavailable
from waybill.replay.requests.api_threads import RETRY_SECONDS, THREADS, DatabaseThreads


def test_while_the_database_is_away_a_few_threads_wait_and_all_other_calls_fail_at_once() -> None:
    began, release, calls, now = threading.Semaphore(0), threading.Event(), [0], [0.0]

    def hang() -> None:
        calls[0] += 1
        began.release()
        release.wait(30)
        raise ReplayUnavailable("away")

    async def scene() -> list[object]:
        threads = DatabaseThreads(lambda: now[0])
        waiting = [asyncio.create_task(threads.run(hang)) for _ in range(45)]
        for _ in range(THREADS):
            await asyncio.to_thread(began.acquire)
        release.set()
        results: list[object] = list(await asyncio.gather(*waiting, return_exceptions=True))
        with pytest.raises(ReplayUnavailable, match="a moment ago"):
            await threads.run(lambda: 1)
        now[0] = RETRY_SECONDS
        assert await threads.run(lambda: 2) == 2
        assert await threads.run(lambda: 3) == 3
        return results

    results = asyncio.run(scene())
    assert all(isinstance(each, ReplayUnavailable) for each in results)
    assert calls[0] == THREADS


def test_an_error_of_the_request_itself_does_not_hold_up_others() -> None:
    async def scene() -> int:
        threads = DatabaseThreads()
        with pytest.raises(ValueError):
            await threads.run(lambda: int("x"))
        return await threads.run(lambda: 5)

    assert asyncio.run(scene()) == 5
