"""The proxy in front of S3 forwards every kind of answer of S3 unchanged."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from botocore.credentials import Credentials
from chaos.loop import ProxyLoop
from chaos.s3_proxy import S3Proxy

pytestmark = pytest.mark.faults

REFUSAL = b"HTTP/1.1 409 Conflict\r\nContent-Length: 7\r\n\r\nrefused"
BODY_BYTES = 4 << 20
"""More than the kernel's buffers take: whoever sends it meets the reset."""


@pytest.fixture
def refusing_server() -> Iterator[int]:
    """The port of a server that answers behind the head of a request, does not read on, and resets the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(REFUSAL)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


def test_an_answer_comes_through_though_the_body_was_not_read(refusing_server: int) -> None:
    with ProxyLoop() as loop:
        proxy = S3Proxy(loop, f"http://127.0.0.1:{refusing_server}", Credentials("key", "secret"))
        client = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=30)
        client.request("PUT", "/bucket/key", body=bytes(BODY_BYTES))
        answer = client.getresponse()
        assert (answer.status, answer.read()) == (409, b"refused")
        client.close()
        proxy.close()
