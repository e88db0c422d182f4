"""What the store makes of answers that no S3 server here can be made to give: a server that speaks from a script."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from waybill.connections import S3Endpoint
from waybill.errors import ObjectAlreadyThere, StoreUnavailable
from waybill.store import Store, calls

CONFLICT = (409, "<Error><Code>ConditionalRequestConflict</Code><Message>in flight</Message></Error>")
REFUSED = (412, "<Error><Code>PreconditionFailed</Code><Message>exists</Message></Error>")
LOST = (404, "<Error><Code>NoSuchUpload</Code><Message>gone</Message></Error>")
MISSING = (404, "")
DONE = (200, "")
BEGUN = (200, "<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>")
COMPLETED = (200, "<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>")


class ScriptedS3:
    """Answers each kind of call with the next line of its script (the last one for ever), and keeps what was asked."""

    def __init__(self, **script: list[tuple[int, str]]) -> None:
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                kind = outer.kind(self.command, self.path)
                outer.asked.append(kind)
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


def test_rival_in_flight_is_asked_about_again(scripted: Start) -> None:
    s3, store = scripted(put=[CONFLICT, CONFLICT, DONE])
    store.create_if_absent("k", b"data")
    assert s3.asked == ["put"] * 3


def test_rival_in_flight_that_wins_is_adopted(scripted: Start) -> None:
    _, store = scripted(put=[CONFLICT, REFUSED])
    with pytest.raises(ObjectAlreadyThere):
        store.create_if_absent("k", b"data")


def test_rival_in_flight_for_ever_is_left_to_the_next_run(scripted: Start) -> None:
    s3, store = scripted(put=[CONFLICT])
    with pytest.raises(StoreUnavailable, match="ConditionalRequestConflict"):
        store.create_if_absent("k", b"data")
    assert s3.asked == ["put"] * 4


def multipart(store: Store) -> None:
    with store.upload_if_absent("k") as upload:
        upload.write(bytes(2500))
        upload.complete()


def test_completion_meets_a_rival_in_flight(scripted: Start) -> None:
    s3, store = scripted(begin=[BEGUN], complete=[CONFLICT, COMPLETED])
    multipart(store)
    assert s3.asked[0] == "begin"
    assert s3.asked.count("part") == 3
    assert s3.asked[-2:] == ["complete", "complete"]


def test_completion_that_went_through_with_its_answer_lost_is_adopted(scripted: Start) -> None:
    s3, store = scripted(begin=[BEGUN], complete=[LOST], head=[DONE])
    with pytest.raises(ObjectAlreadyThere):
        multipart(store)
    assert s3.asked[-3:] == ["complete", "head", "abort"]


def test_upload_that_is_lost_is_begun_again_by_the_next_run(scripted: Start) -> None:
    _, store = scripted(begin=[BEGUN], complete=[LOST], head=[MISSING])
    with pytest.raises(StoreUnavailable, match="NoSuchUpload"):
        multipart(store)


def test_part_that_is_refused_ends_the_upload(scripted: Start) -> None:
    s3, store = scripted(begin=[BEGUN], part=[(400, "<Error><Code>BadDigest</Code></Error>")])
    with pytest.raises(StoreUnavailable, match=r"could not send part \d of k: .*BadDigest"):
        multipart(store)
    assert "complete" not in s3.asked
    assert s3.asked[-1] == "abort"
