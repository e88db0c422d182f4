"""Specs travel as JSON; a log's tail is that of the latest start."""

from __future__ import annotations

import json
from pathlib import Path

from devstack.servers import ServerSpec, ServerState, log_tail


def test_a_spec_survives_the_way_to_the_guardian() -> None:
    spec = ServerSpec(
        "s3", ("run", "--port", "1"), Path("/logs/s3.log"), Path("/state"), {"A": "b"}, ("AIRFLOW__",), forks=True
    )
    assert ServerSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_log_tail_starts_where_the_latest_start_did(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\n" + "\n".join(f"new {number}" for number in range(5)))
    assert log_tail(log, start_bytes=4, lines=10).splitlines()[0] == "    new 0"
    assert log_tail(log, lines=2) == "    new 3\n    new 4"
    assert "no log was written" in log_tail(tmp_path / "absent")


def test_only_a_server_that_should_run_is_dead() -> None:
    def state(exit_code: int | None, *, once: bool) -> ServerState:
        return ServerState("name", 1, exit_code, "log", 0, once)

    assert not state(None, once=False).dead
    assert state(0, once=False).dead
    assert not state(0, once=True).dead
    assert state(1, once=True).dead
    assert state(-9, once=False).how_it_ended() == "was ended by signal 9"
