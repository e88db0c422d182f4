"""Free ports for servers that are killed and started again on the same one."""

from __future__ import annotations

import random
import socket

from waybill.errors import StackError

__all__ = ["free_ports"]

# Below Linux's ephemeral range (32768 up): while a server is down, no outgoing connection can take its port.
_FIRST, _LAST = 20_000, 32_000


def free_ports(count: int, *, prefer: tuple[int, ...] = ()) -> list[int]:
    """`count` different TCP ports of 127.0.0.1 on which nobody listens.

    `prefer` are tried first, in their order, so that a stack comes back where it was. Raises `StackError` when no free
    ones are found.
    """
    found: list[int] = []
    candidates = [*prefer, *random.sample(range(_FIRST, _LAST), k=500)]
    for port in candidates:
        if len(found) == count:
            return found
        if port not in found and _is_free(port):
            found.append(port)
    raise StackError(f"found only {len(found)} free ports of {count} between {_FIRST} and {_LAST} on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
