"""Sockets to brokers that refuse, die or stay silent: all are closed, and none is left to the garbage collector."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta

import pytest
from kafka.net.inet import KafkaNetSocket
from kafka.net.transport import KafkaSSLTransport

from waybill.base.errors import ConfigError, KafkaUnavailable
from waybill.config.connections import KafkaEndpoint, SecurityProtocol, Tls
from waybill.services.kafka.kafka import KafkaSource

Behaviour = Callable[[socket.socket], None]


class Broker:
    """A TCP server. It applies `behaviour` to every connection, and keeps the connection until `stop`."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._behaviour = behaviour
        self._accepted: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):  # raised when `stop` closes the listener
            while True:
                accepted, _ = self._listener.accept()
                self._accepted.append(accepted)
                with suppress(OSError):
                    self._behaviour(accepted)

    def stop(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for accepted in self._accepted:
            accepted.close()


def close(connection: socket.socket) -> None:
    connection.close()


def close_after_a_request(connection: socket.socket) -> None:
    connection.recv(100)
    connection.close()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def stay_silent(_: socket.socket) -> None:
    pass


def send_garbage(connection: socket.socket) -> None:
    connection.sendall(b"\0\0\0\5hello")


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """Every socket that was created for a connection to a broker."""
    created: list[socket.socket] = []
    create = KafkaNetSocket.socket

    def remember(self: KafkaNetSocket, *args: int) -> socket.socket:
        created.append(create(self, *args))
        return created[-1]

    def remember_wrapped(self: KafkaSSLTransport, *args: object, **kwargs: object) -> None:
        wrap(self, *args, **kwargs)
        created.append(self._sock)  # TLS wraps the socket in another one

    wrap = KafkaSSLTransport.__init__
    monkeypatch.setattr(KafkaNetSocket, "socket", remember)
    monkeypatch.setattr(KafkaSSLTransport, "__init__", remember_wrapped)
    yield created
    for each in created:
        each.close()


def connect(port: int, protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT) -> None:
    """Fail to connect to a broker that does not answer as Kafka does."""
    endpoint = KafkaEndpoint(
        bootstrap_servers=(f"127.0.0.1:{port}",),
        protocol=protocol,
        tls=Tls() if protocol is SecurityProtocol.SSL else None,
    )
    source = KafkaSource(endpoint, request_timeout=timedelta(seconds=0.5))
    with pytest.raises((KafkaUnavailable, ConfigError), match="could not connect"), source:
        pass


def all_closed(sockets: list[socket.socket]) -> bool:
    return bool(sockets) and all(each.fileno() < 0 for each in sockets)


@pytest.mark.parametrize("behaviour", [close, close_after_a_request, reset, stay_silent, send_garbage])
@pytest.mark.parametrize("protocol", [SecurityProtocol.PLAINTEXT, SecurityProtocol.SSL])
def test_sockets_are_closed_when_a_broker_accepts_and_does_not_answer(
    behaviour: Behaviour, protocol: SecurityProtocol, sockets: list[socket.socket]
) -> None:
    broker = Broker(behaviour)
    try:
        connect(broker.port, protocol)
    finally:
        broker.stop()
    assert all_closed(sockets)


def test_sockets_are_closed_when_a_broker_refuses_connections(sockets: list[socket.socket]) -> None:
    broker = Broker(stay_silent)
    broker.stop()
    connect(broker.port)
    assert all_closed(sockets)


def test_sockets_are_closed_when_a_connection_is_still_in_progress(sockets: list[socket.socket]) -> None:
    """The listener's backlog is full, so the kernel accepts no further connection."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        with socket.create_connection(address):
            connect(address[1])
    assert all_closed(sockets)
