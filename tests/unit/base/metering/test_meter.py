"""The meter counts by stream, divides what belongs to none, and begins at zero after it was taken."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from waybill.base.metering import Meter, Tally, current_account, meter, working_for


@pytest.fixture
def fresh() -> Meter:
    made = Meter()
    made.take_total("before")
    return made


def test_what_belongs_to_no_stream_is_divided_by_the_cpu_of_each(fresh: Meter) -> None:
    fresh.count_request("PutObject", 100, account="a")
    fresh.count_request("GetObject", times=4)
    fresh.count_received(40)
    fresh.add_own_cpu("a", 3.0)
    fresh.add_own_cpu("b", 1.0)
    taken = fresh.take("ingest", ["a", "b"], "lane")
    assert taken["a"].requests == {"PutObject": 1, "GetObject": 3}
    assert taken["b"].requests == {"GetObject": 1}
    assert (taken["a"].sent_bytes, taken["a"].received_bytes, taken["b"].received_bytes) == (100, 30, 10)
    assert taken["a"].cpu_seconds.keys() == {"ingest_lane"}
    assert taken["a"].cpu_seconds["ingest_lane"] == pytest.approx(3 * taken["b"].cpu_seconds["ingest_lane"])


def test_nothing_is_taken_twice(fresh: Meter) -> None:
    fresh.count_request("PutObject", account="a")
    assert fresh.take("ingest", ["a"], "lane")["a"].requests == {"PutObject": 1}
    assert not fresh.take("ingest", ["a"], "lane")["a"].requests


def test_without_a_stream_nothing_is_returned(fresh: Meter) -> None:
    assert fresh.take("partition", [], "driver") == {}


def test_added_cpu_has_the_name_of_the_step_in_front(fresh: Meter) -> None:
    fresh.add(Tally(cpu_seconds={"jvm": 2.0}))
    fresh.add(Tally(cpu_seconds={"tasks": 1.0}), account="a")
    found = fresh.take("partition", ["a", "b"], "driver")
    assert found["a"].cpu_seconds["partition_jvm"] == found["b"].cpu_seconds["partition_jvm"] == 1.0
    assert found["a"].cpu_seconds["partition_tasks"] == 1.0
    assert "partition_tasks" not in found["b"].cpu_seconds


def test_threads_count_for_the_stream_that_they_work_for() -> None:
    def work(stream: str) -> str:
        with working_for(stream):
            return current_account()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, ["a", "b"])) == ["a", "b"]
    assert current_account() == ""


def test_a_forked_process_begins_at_zero() -> None:
    meter.count_request("PutObject", account="parent")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, str(len(meter.take_total("x").requests)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert os.read(read, 10) == b"0"
    os.close(read)
    meter.take_total("x")
