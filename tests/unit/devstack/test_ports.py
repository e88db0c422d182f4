"""Ports that stay ours while a server is down."""

from __future__ import annotations

import socket
from pathlib import Path

from devstack.ports import free_ports


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
