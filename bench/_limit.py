"""The least that any archiver must do: receive the bytes from a socket, checksum them, send them to another socket.

The two ends are processes of their own (their CPU is not ours): `python bench/_limit.py source TOPIC` holds a topic's
record batches in memory and sends them to whoever connects; `… sink` takes whatever it is sent. Each prints its port.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import crc32c

PIECE_BYTES = 1 << 20


class Limit:
    """The loop between a source and a sink. One thread, one buffer, nothing else."""

    def __init__(self, topic: str) -> None:
        self._ends = [_start("source", topic), _start("sink")]
        self._ports = [int(_first_line(end)) for end in self._ends]

    def run(self) -> int:
        """Move everything once; the number of bytes."""
        moved, crc = 0, 0
        buffer = memoryview(bytearray(PIECE_BYTES))
        source, sink = (socket.create_connection(("127.0.0.1", port), timeout=60) for port in self._ports)
        with source, sink:
            while count := source.recv_into(buffer):
                piece = buffer[:count]
                crc = crc32c.crc32c(piece, crc)
                sink.sendall(piece)
                moved += count
        return moved


def _start(*arguments: str) -> subprocess.Popen[str]:
    # They end with this process: each waits for the end of its standard input.
    return subprocess.Popen(
        [sys.executable, __file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _connections() -> Iterator[socket.socket]:
    import threading

    def end_with_parent() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                yield connection


def _source(topic: str) -> None:
    batches = b"".join(_batches(topic))
    for connection in _connections():
        connection.sendall(batches)


def _batches(topic: str) -> Iterator[bytes]:
    from waybill.connections import KafkaEndpoint, find_connection
    from waybill.names import TopicPartition
    from waybill.sources.kafka import KafkaSource

    tp = TopicPartition(topic, 0)
    with KafkaSource(KafkaEndpoint.of(find_connection("kafka_default"))) as source:
        for chunk in source.read(tp, 0, source.offsets([tp])[tp].end):
            yield bytes(chunk.data[: chunk.size_bytes])


def _sink() -> None:
    buffer = bytearray(PIECE_BYTES)
    for connection in _connections():
        while connection.recv_into(buffer):
            pass


if __name__ == "__main__":
    _source(sys.argv[2]) if sys.argv[1] == "source" else _sink()
