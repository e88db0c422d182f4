"""Failpoints do nothing unless armed, and then run their action once, at the n-th pass."""

import os
import signal
import subprocess
import sys
import time

import pytest

from waybill.base import failpoints
from waybill.base.errors import ConfigError


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    failpoints.disarm()


def test_reach_does_nothing_unless_armed() -> None:
    for name in failpoints.INGEST:
        failpoints.reach(name)


def test_armed_action_runs_once_at_the_nth_pass() -> None:
    failpoints.arm("ingest.fetched=sleep:0.05@3")
    waited = []
    for _ in range(5):
        started = time.monotonic()
        failpoints.reach("ingest.fetched")
        failpoints.reach("ingest.locked")
        waited.append(time.monotonic() - started >= 0.05)
    assert waited == [False, False, True, False, False]


def test_process_kills_itself_when_its_environment_arms_a_failpoint() -> None:
    code = "from waybill.base import failpoints; failpoints.reach('here'); failpoints.reach('here'); print('alive')"
    environment = {**os.environ, failpoints.VARIABLE: "here=kill@2"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=30, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == b""


@pytest.mark.parametrize("text", ["here", "here=explode", "here=kill@0", "here=kill@x", "here=sleep", "here=sleep:x"])
def test_arm_names_the_entry_that_it_cannot_parse(text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        failpoints.arm(text)
