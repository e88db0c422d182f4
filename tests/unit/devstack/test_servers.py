"""What servers share: specs, states, the end of a log, and free ports."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from devstack.servers import ServerSpec, ServerState, free_ports, log_tail


def test_spec_is_the_same_after_json() -> None:
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


def test_server_is_dead_unless_it_was_expected_to_end() -> None:
    def state(exit_code: int | None, *, once: bool) -> ServerState:
        return ServerState("name", 1, exit_code, "log", 0, once)

    assert not state(None, once=False).dead
    assert state(0, once=False).dead
    assert not state(0, once=True).dead
    assert state(1, once=True).dead
    assert state(-9, once=False).how_it_ended() == "was ended by signal 9"


def test_ports_are_different_and_outside_the_ephemeral_range() -> None:
    ports = free_ports(20)
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(ports)) == 20
    assert max(ports) < min(first_ephemeral, 32768)


def test_preferred_ports_come_first_and_taken_ones_are_replaced() -> None:
    free, taken = free_ports(2)
    with socket.create_server(("127.0.0.1", taken)):
        found = free_ports(2, prefer=(taken, free))
    assert found[0] == free
    assert taken not in found
