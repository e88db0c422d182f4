"""How the store handles answers that the S3 servers of the tests cannot give: a scripted server gives them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import MagicMock

import pytest

from waybill.base.errors import ConfigError, ObjectExists, StoreUnavailable
from waybill.config.connections import S3Endpoint
from waybill.services.store import Store, calls

CONFLICT = (409, "<Error><Code>ConditionalRequestConflict</Code><Message>in flight</Message></Error>")
REFUSED = (412, "<Error><Code>PreconditionFailed</Code><Message>exists</Message></Error>")
LOST = (404, "<Error><Code>NoSuchUpload</Code><Message>gone</Message></Error>")
MISSING = (404, "")
DONE = (200, "")
BEGUN = (200, "<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>")
COMPLETED = (200, "<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>")


class ScriptedS3:
    """Answers each kind of call with the next line of its script, whose last line repeats, and records the calls."""

    def __init__(self, **script: list[tuple[int, str]]) -> None:
        self.calls: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                kind = outer.kind(self.command, self.path)
                outer.calls.append(kind)
                lines = script.get(kind, [DONE])
                status, body = lines.pop(0) if len(lines) > 1 else lines[0]
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("ETag", '"e"')
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body.encode())

            do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815 - http.server's names

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    @staticmethod
    def kind(method: str, path: str) -> str:
        if method == "PUT":
            return "part" if "partNumber" in path else "put"
        if method == "POST":
            return "complete" if "uploadId" in path else "begin"
        return {"HEAD": "head", "DELETE": "abort"}[method]


Start = Callable[..., tuple[ScriptedS3, Store]]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(calls, "_CONFLICT_PAUSE_SECONDS", 0.001)
    running: list[tuple[ScriptedS3, Store, threading.Thread]] = []

    def start(**script: list[tuple[int, str]]) -> tuple[ScriptedS3, Store]:
        s3 = ScriptedS3(**script)
        thread = threading.Thread(target=s3.server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        endpoint = S3Endpoint(endpoint_url=s3.url, access_key="a", secret_key="b")
        store = Store(endpoint, "bucket", part_bytes=1000)
        running.append((s3, store, thread))
        return s3, store

    yield start
    for s3, store, thread in running:
        store.close()
        s3.server.shutdown()
        s3.server.server_close()
        thread.join()


def test_create_is_repeated_while_a_rivals_create_is_in_flight(scripted: Start) -> None:
    s3, store = scripted(put=[CONFLICT, CONFLICT, DONE])
    store.create_if_absent("k", b"data")
    assert s3.calls == ["put"] * 3


def test_create_raises_object_exists_when_the_rival_in_flight_wins(scripted: Start) -> None:
    _, store = scripted(put=[CONFLICT, REFUSED])
    with pytest.raises(ObjectExists):
        store.create_if_absent("k", b"data")


def test_create_gives_up_after_four_conflicts(scripted: Start) -> None:
    s3, store = scripted(put=[CONFLICT])
    with pytest.raises(StoreUnavailable, match="ConditionalRequestConflict"):
        store.create_if_absent("k", b"data")
    assert s3.calls == ["put"] * 4


def multipart(store: Store) -> None:
    with store.upload_if_absent("k") as upload:
        upload.write(bytes(2500))
        upload.complete()


def test_completion_is_repeated_while_a_rivals_create_is_in_flight(scripted: Start) -> None:
    s3, store = scripted(begin=[BEGUN], complete=[CONFLICT, COMPLETED])
    multipart(store)
    assert s3.calls[0] == "begin"
    assert s3.calls.count("part") == 3
    assert s3.calls[-2:] == ["complete", "complete"]


def test_completion_raises_object_exists_when_its_own_first_answer_was_lost(scripted: Start) -> None:
    s3, store = scripted(begin=[BEGUN], complete=[LOST], head=[DONE])
    with pytest.raises(ObjectExists):
        multipart(store)
    assert s3.calls[-3:] == ["complete", "head", "abort"]


def test_completion_raises_store_unavailable_when_the_upload_is_lost(scripted: Start) -> None:
    _, store = scripted(begin=[BEGUN], complete=[LOST], head=[MISSING])
    with pytest.raises(StoreUnavailable, match="NoSuchUpload"):
        multipart(store)


def test_refused_part_ends_and_aborts_the_upload(scripted: Start) -> None:
    s3, store = scripted(begin=[BEGUN], part=[(400, "<Error><Code>BadDigest</Code></Error>")])
    with pytest.raises(StoreUnavailable, match=r"could not send part \d of k: .*BadDigest"):
        multipart(store)
    assert "complete" not in s3.calls
    assert s3.calls[-1] == "abort"


def test_the_first_call_creates_the_client_and_threads_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[object] = []

    def slow_client(_: S3Endpoint) -> MagicMock:
        time.sleep(0.05)
        created.append(client := MagicMock())
        return client

    monkeypatch.setattr(calls, "store_client", slow_client)
    with Store(S3Endpoint(endpoint_url="http://127.0.0.1:1", access_key="a", secret_key="b"), "bucket") as store:
        assert created == []
        with ThreadPoolExecutor(4) as pool:
            clients = list(pool.map(lambda _: store.client, range(4)))
        assert clients == created * 4
    clients[0].close.assert_called_once_with()


def test_a_store_without_calls_closes_without_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "store_client", lambda _: pytest.fail("a client was created"))
    Store(S3Endpoint(access_key="a", secret_key="b"), "bucket").close()


def test_a_profile_that_does_not_exist_is_an_error_before_the_first_call() -> None:
    with pytest.raises(ConfigError, match="nobody"):
        Store(S3Endpoint(profile="nobody"), "bucket")


def test_many_threads_share_a_store_without_a_dropped_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """U3: `waybill ledger` printed "Connection pool is full, discarding connection" for its 8 threads."""
    threads = 32
    together = threading.Barrier(threads, timeout=30)
    answer = ScriptedS3.kind

    def kind(method: str, path: str) -> str:
        together.wait()  # all requests are at the server at the same time
        return answer(method, path)

    monkeypatch.setattr(ScriptedS3, "kind", staticmethod(kind))
    s3 = ScriptedS3()
    serving = threading.Thread(target=s3.server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    try:
        endpoint = S3Endpoint(endpoint_url=s3.url, access_key="a", secret_key="b")
        with Store(endpoint, "bucket") as store, ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda number: store.exists(f"k{number}"), range(threads)))
    finally:
        s3.server.shutdown()
        s3.server.server_close()
        serving.join()
    assert len(s3.calls) == threads
    assert [record.getMessage() for record in caplog.records if "pool is full" in record.getMessage()] == []
