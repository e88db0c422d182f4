"""A lane is killed at each step boundary of the protocol; the next lane completes its work."""

from __future__ import annotations

import pytest
from chaos.s3_proxy import CallFault, Effect, S3Call
from chaos.scenario import LaneAction, LaneFault, Scenario
from chaos.scene import SceneResult
from scenarios import Play, small

from waybill.base import failpoints

pytestmark = [pytest.mark.deep, pytest.mark.faults, pytest.mark.integration]


def _scenario(failpoint: str) -> Scenario:
    """Return the scenario of a failpoint; two of them need a preparation."""
    kill = LaneFault(failpoint, LaneAction.KILL)
    if failpoint == "ingest.object_inspected":  # an object that nobody committed is found
        return small(lane_faults=(LaneFault("ingest.object_created", LaneAction.KILL), kill))
    if failpoint == "ingest.object_refused":  # the answer to the first try is lost, and the second is refused
        lost = CallFault(S3Call.PUT_OBJECT, Effect.APPLIED_RESET, times=3)
        return small(lane_faults=(kill,), call_faults=(lost,), s3_attempts=5)
    return small(lane_faults=(kill,))


@pytest.fixture(scope="module")
def killed(play: Play) -> dict[str, SceneResult]:
    """A scenario for each failpoint, side by side."""
    kills = tuple(LaneFault(name, LaneAction.KILL) for name in ("ingest.index_created", "ingest.object_created"))
    text = small(lane_faults=kills, delimiter="<end>")
    return play({**{name: _scenario(name) for name in failpoints.INGEST}, "text": text})


@pytest.mark.parametrize("failpoint", failpoints.INGEST)
def test_lane_killed_at_a_failpoint_loses_and_repeats_nothing(killed: dict[str, SceneResult], failpoint: str) -> None:
    result = killed[failpoint]
    assert result.injected[f"SIGKILL at {failpoint}"] == 1
    assert not result.faults
    assert result.archived == len(result.ledger.acknowledged) >= 600


def test_what_was_created_and_not_committed_is_adopted(killed: dict[str, SceneResult]) -> None:
    assert killed["ingest.object_created"].adopted == 1
    assert killed["ingest.object_refused"].adopted >= 1


def test_lane_killed_between_the_index_and_the_object_of_another_format(killed: dict[str, SceneResult]) -> None:
    result = killed["text"]
    assert result.injected["SIGKILL at ingest.index_created"] == 1
    assert result.injected["SIGKILL at ingest.object_created"] == 1
    assert not result.faults
    assert result.archived == len(result.ledger.acknowledged) >= 600
