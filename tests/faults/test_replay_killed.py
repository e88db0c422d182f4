"""Replay workers are killed, frozen and run twice: objects have each message once, webhooks at least once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from replay_scenes import KEY, Delivered, ReplayScene, expected, places
from webhook_servers import Receiver, receiving

from devstack import Stack
from waybill.base import failpoints
from waybill.replay.requests.database import Database
from waybill.replay.requests.states import RequestState

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.deep]

KEYS = [f"k{number}" for number in range(12)]
# Small batches, and claims that are lost soon.
SETTINGS = ", claim_timeout: 10s"


@pytest.fixture(scope="module")
def scene(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplayScene]:
    del stack
    scene = ReplayScene(tmp_path_factory.mktemp("replay"), "test-replay-killed", replay=SETTINGS)
    text = scene.stream.file.read_text()
    scene.stream.file.write_text(
        text.replace("allow_http", "batch_messages: 200, timeout: 2s, rate_per_second: 1000, allow_http")
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in scene.environment.items():
            patch.setenv(name, value)
        scene.produce(3_000, seed=3)
        scene.stream.ingest()
        scene.produce(1_000, seed=4)
        yield scene


@pytest.fixture(scope="module")
def wanted(scene: ReplayScene) -> list[Delivered]:
    keys = [key.encode() for key in KEYS]
    return expected(scene.stream.topic, scene.messages(), keys, scene.at_ms(0), scene.at_ms(60))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving(Receiver(KEY)) as running:
        yield running


def killed_worker(scene: ReplayScene, failpoint: str) -> None:
    process = scene.worker({**os.environ, failpoints.VARIABLE: failpoint})
    process.wait(90)
    assert process.returncode == -signal.SIGKILL


def serve_until(scene: ReplayScene, request: str, state: RequestState = RequestState.COMPLETED) -> None:
    """Serve as short tasks do, until the request has a state: the claim of the dead worker must end first."""
    deadline = time.monotonic() + 90
    while scene.show(request).state is not state:
        assert time.monotonic() < deadline, scene.show(request).document(time.time_ns() // 1_000_000)
        scene.serve(30)
        time.sleep(0.5)


def check_objects(scene: ReplayScene, request: str, wanted: list[Delivered]) -> None:
    assert scene.parts(request) == wanted
    stored = scene.show(request)
    assert stored.progress.delivered == len(wanted) == scene.manifest(request)["messages"]
    assert stored.progress.found == len(wanted) + stored.duplicates


@pytest.mark.matrix
@pytest.mark.parametrize("place", failpoints.REPLAY)
def test_objects_have_each_message_once_after_a_worker_was_killed(
    scene: ReplayScene, wanted: list[Delivered], place: str
) -> None:
    request = scene.request(KEYS, 0, 60, {"type": "s3", "compression": "none"})
    killed_worker(scene, f"{place}=kill")
    serve_until(scene, request)
    check_objects(scene, request, wanted)


@pytest.mark.matrix
@pytest.mark.parametrize("place", [*failpoints.REPLAY, "replay.delivered@3", "replay.cursor_stored@4"])
def test_a_webhook_has_every_message_after_a_worker_was_killed(
    scene: ReplayScene, wanted: list[Delivered], receiver: Receiver, place: str
) -> None:
    name, _, count = place.partition("@")
    request = scene.request(KEYS, 0, 60, {"type": "webhook", "url": receiver.url})
    killed_worker(scene, f"{name}=kill@{count or 1}")
    serve_until(scene, request)
    assert set(receiver.messages) == set(places(wanted))
    # A batch that was delivered again has the key that it had before, so a receiver that keeps keys has it once.
    assert set(receiver.messages.values()) == {1}
    assert scene.show(request).progress.delivered == len(wanted)


def test_a_worker_that_was_frozen_and_wakes_up_behind_its_successor_changes_nothing(
    scene: ReplayScene, wanted: list[Delivered]
) -> None:
    request = scene.request(KEYS, 0, 60, {"type": "s3", "compression": "none"})
    process = scene.worker({**os.environ, failpoints.VARIABLE: "replay.seen_stored=stop"})
    wait_until(lambda: is_stopped(process.pid))
    serve_until(scene, request)
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(60) == 0
    check_objects(scene, request, wanted)
    assert scene.show(request).state is RequestState.COMPLETED


def test_two_workers_at_once_serve_two_requests_and_neither_twice(scene: ReplayScene, wanted: list[Delivered]) -> None:
    requests = [scene.request(KEYS, 0, 60, {"type": "s3", "compression": "none"}) for _ in range(2)]
    processes = [scene.worker(os.environ) for _ in range(2)]
    assert [process.wait(90) for process in processes] == [0, 0]
    for request in requests:
        check_objects(scene, request, wanted)


def test_a_worker_that_is_asked_to_end_gives_the_claim_back_and_keeps_its_cursor(
    scene: ReplayScene, wanted: list[Delivered]
) -> None:
    slow = Receiver(KEY, respond=lambda _: (time.sleep(0.3), (200, {}, b"{}"))[1])
    with receiving(slow):
        request = scene.request(KEYS, 0, 60, {"type": "webhook", "url": slow.url})
        from waybill.replay.requests.worker import serve

        served = serve(scene.stream.config, worker="test", seconds=60, should_stop=lambda: len(slow.messages) > 0)
        stored = scene.show(request)
        assert (served.turns, served.completed) == (1, 0)
        assert stored.heartbeat_ms is None
        assert 0 < stored.progress.delivered < len(wanted)
        serve_until(scene, request)
    assert set(slow.messages) == set(places(wanted))
    assert set(slow.messages.values()) == {1}


def test_a_request_survives_a_database_that_is_away(
    scene: ReplayScene, wanted: list[Delivered], monkeypatch: pytest.MonkeyPatch
) -> None:
    from waybill.base.errors import ReplayUnavailable

    request = scene.request(KEYS, 0, 60, {"type": "s3", "compression": "none"})
    write, calls = Database.write, [0]

    def failing(self: Database, work: Callable[..., object]) -> object:
        calls[0] += 1
        if calls[0] == 3:
            raise ReplayUnavailable("the database does not answer")
        return write(self, work)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", failing)
        with pytest.raises(ReplayUnavailable):
            scene.serve()
    serve_until(scene, request)
    check_objects(scene, request, wanted)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)
