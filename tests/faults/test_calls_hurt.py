"""Each kind of call to S3 fails before and after S3 has executed it; connections and sessions end in the meantime."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from chaos.s3_proxy import CallFault, Effect, S3Call
from chaos.scenario import Scenario
from chaos.scene import SceneResult
from scenarios import Play, large, small

pytestmark = [pytest.mark.faults, pytest.mark.integration]

BEFORE = (Effect.ERROR_500, Effect.ERROR_503, Effect.SLOW, Effect.RESET)
AFTER = (Effect.APPLIED_500, Effect.APPLIED_RESET, Effect.NO_ANSWER)
OF_CALL = {
    S3Call.PUT_OBJECT: (*BEFORE, *AFTER),
    S3Call.CREATE_MULTIPART_UPLOAD: (*BEFORE, *AFTER),
    S3Call.UPLOAD_PART: (*BEFORE, *AFTER),
    S3Call.COMPLETE_MULTIPART_UPLOAD: (*BEFORE, *AFTER),
    S3Call.ABORT_MULTIPART_UPLOAD: (*BEFORE, *AFTER),
    S3Call.HEAD_OBJECT: (*BEFORE, Effect.NO_ANSWER),
    S3Call.GET_OBJECT: (*BEFORE, Effect.NO_ANSWER, Effect.CUT_BODY),
    S3Call.LIST_OBJECTS: (*BEFORE, Effect.NO_ANSWER),
}
ONE_CALL = (S3Call.PUT_OBJECT, S3Call.LIST_OBJECTS, S3Call.GET_OBJECT, S3Call.HEAD_OBJECT)
MULTIPART = (
    S3Call.CREATE_MULTIPART_UPLOAD,
    S3Call.UPLOAD_PART,
    S3Call.COMPLETE_MULTIPART_UPLOAD,
    S3Call.ABORT_MULTIPART_UPLOAD,
)
SESSION = (Effect.CUT_ZOOKEEPER, Effect.EXPIRE_SESSION, Effect.FREEZE_ZOOKEEPER)


def _each(call: S3Call, effects: Sequence[Effect]) -> list[CallFault]:
    """Inject one effect after the other: each into the first matching call."""
    return [CallFault(call, effect) for effect in effects]


def _rebuild(times: int) -> list[CallFault]:
    """After every second upload, ZooKeeper loses its data.

    So lanes read their positions from S3: a listing, and the last object.
    """
    return [CallFault(S3Call.PUT_OBJECT, Effect.DELETE_NODES, nth=2 * number + 1) for number in range(times)]


@pytest.fixture(scope="module")
def hurt(play: Play) -> dict[str, SceneResult]:
    """A scenario for each call, one of connections, one of sessions, and one of silence."""
    # The one that waits longest begins first.
    return play({"silence": _silence()} | _of_multipart_uploads() | _of_small_objects())


def _silence() -> Scenario:
    """With a backlog and small fetches, the lane is in the middle of fetching when its first object is cut."""
    silence = CallFault(S3Call.PUT_OBJECT, Effect.FREEZE_KAFKA, nth=2)
    return small(call_faults=(silence,), fetch_bytes=16 << 10, kafka_frozen_seconds=60.0, backlog_first=True)


def _of_small_objects() -> dict[str, Scenario]:
    scenarios = {}
    for call in ONE_CALL:
        faults = _each(call, OF_CALL[call])
        scenarios[str(call)] = small(call_faults=(*faults, *_rebuild(0 if call is S3Call.PUT_OBJECT else 6)))
    kafka = (CallFault(S3Call.PUT_OBJECT, Effect.CUT_KAFKA, nth=2), CallFault(S3Call.PUT_OBJECT, Effect.CUT_FETCH))
    return scenarios | {"kafka": small(call_faults=kafka, fetch_bytes=16 << 10)}


def _of_multipart_uploads() -> dict[str, Scenario]:
    scenarios = {}
    for call in MULTIPART:
        faults = _each(call, OF_CALL[call])
        if call is S3Call.ABORT_MULTIPART_UPLOAD:  # an upload is aborted when a part of it fails
            faults += [CallFault(S3Call.UPLOAD_PART, Effect.ERROR_500, nth=n + 1) for n in range(len(faults))]
        scenarios[str(call)] = large(call_faults=tuple(faults))
    sessions = [CallFault(S3Call.UPLOAD_PART, effect, nth=2 * n + 1) for n, effect in enumerate(SESSION)]
    return scenarios | {"session": large(call_faults=tuple(sessions))}


def _check(result: SceneResult, call: S3Call) -> None:
    missing = [effect for effect in OF_CALL[call] if not result.injected[f"S3 {call}: {effect}"]]
    assert not missing, result.injected
    assert not result.faults


@pytest.mark.parametrize("call", ONE_CALL)
def test_call_that_fails_before_or_after_it_was_applied(hurt: dict[str, SceneResult], call: S3Call) -> None:
    _check(hurt[str(call)], call)


@pytest.mark.parametrize("call", MULTIPART)
def test_call_of_a_multipart_upload_that_fails(hurt: dict[str, SceneResult], call: S3Call) -> None:
    _check(hurt[str(call)], call)


def test_session_that_ends_in_the_middle_of_an_upload(hurt: dict[str, SceneResult]) -> None:
    result = hurt["session"]
    for effect in SESSION:
        assert result.injected[f"{effect}, at a {S3Call.UPLOAD_PART}"] == 1, result
    assert not result.faults


def test_kafka_connections_that_are_cut_in_the_middle_of_a_fetch(hurt: dict[str, SceneResult]) -> None:
    result = hurt["kafka"]
    assert result.injected[f"{Effect.CUT_KAFKA}, at a {S3Call.PUT_OBJECT}"] == 1
    assert result.injected[str(Effect.CUT_FETCH)] >= 1
    assert not result.faults


def test_lane_does_not_hang_on_a_kafka_that_says_nothing_any_more(hurt: dict[str, SceneResult]) -> None:
    """Connections stay open without answers: the lane still ends long before Airflow's limit of two minutes."""
    result = hurt["silence"]
    assert result.injected[f"{Effect.FREEZE_KAFKA}, at a {S3Call.PUT_OBJECT}"] == 1
    assert result.longest_overtime_seconds < 75
    assert not result.faults
