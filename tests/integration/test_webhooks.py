"""Delivery to real HTTP servers: correct ones, slow ones, broken ones and hostile ones."""

from __future__ import annotations

import gzip
import random
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from secured import Certificates
from webhook_servers import Receiver, hostile_server, read_request, receiving

from waybill.base.errors import ReplayRefused
from waybill.config.models.replay import Replay
from waybill.config.names import TopicPartition
from waybill.replay.requests.delivery.batches import Batch, cut_batches
from waybill.replay.requests.delivery.http import NoAnswer, WebhookClient
from waybill.replay.requests.delivery.signature import Keys
from waybill.replay.requests.delivery.webhook import (
    MAX_SPLIT_REQUESTS,
    Delivered,
    Refused,
    Unavailable,
    WebhookDelivery,
    webhook_client,
)
from waybill.replay.requests.message import ReplayedMessage

KEY = b"a secret that nobody guesses 123"
REQUEST = "01KB0000000000000000000000"
LOOPBACK = ip_network("127.0.0.0/8")


def replay_config(**webhooks: Any) -> Replay:
    defaults = {
        "allow_http": True,
        "allowed_networks": ["127.0.0.0/8"],
        "timeout": "1s",
        "max_answer_bytes": "4KiB",
        "rate_per_second": 10_000,
        "attempts": 3,
    }
    return Replay.model_validate({"workers": 1, "webhooks": defaults | webhooks})


@dataclass
class Times:
    """Clocks that `pause` moves, so that no test waits for a pause."""

    now: float = field(default_factory=time.time)
    pauses: list[float] = field(default_factory=list)

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def batches(count: int, size: int = 500, value: Callable[[int], bytes | None] = lambda n: b"v%d" % n) -> list[Batch]:
    messages = [
        ReplayedMessage(TopicPartition("flights", 3), n, 1_763_892_000_000 + n, b"AA1", value(n), (("h", b"\xff"),))
        for n in range(count)
    ]
    return list(cut_batches(messages, REQUEST, 0, max_messages=size, max_bytes=1 << 20))


_clients: list[WebhookClient] = []


@pytest.fixture(autouse=True)
def _close_clients() -> Iterator[None]:
    yield
    while _clients:
        _clients.pop().close()


def webhook(url: str, times: Times | None = None, breaker: Any = None, **settings: Any) -> WebhookDelivery:
    times = times or Times()
    replay = replay_config(**settings)
    _clients.append(webhook_client(url, replay))
    return WebhookDelivery(
        _clients[-1],
        REQUEST,
        Keys(KEY),
        replay,
        breaker,
        pause=times.pause,
        now=lambda: times.now,
        jitter=random.Random(7),
    )


def places(count: int) -> dict[tuple[str, int, int], int]:
    return {("flights", 3, offset): 1 for offset in range(count)}


# --- correct receivers ------------------------------------------------------------------------------------------------


def test_a_receiver_proves_itself_and_gets_each_message_once() -> None:
    with receiving(Receiver(KEY)) as receiver:
        hook = webhook(receiver.url)
        assert hook.prove_ownership() == Delivered()
        sent = batches(1_234, value=lambda n: bytes([n % 256, 0xFF]) if n % 2 else b"text %d" % n)
        assert [hook.deliver(batch) for batch in sent] == [Delivered()] * 3
    assert receiver.messages == places(1_234)
    assert receiver.values == [message.value for batch in sent for message in batch.messages]
    assert (receiver.challenges, receiver.forgeries) == (1, 0)
    assert receiver.sizes == [500, 500, 234]


def test_a_receiver_with_another_key_gets_nothing() -> None:
    with receiving(Receiver(b"another key, of another service")) as receiver:
        outcome = webhook(receiver.url).prove_ownership()
    assert outcome == Refused("answers 401: bad signature")


def test_a_server_that_accepts_everything_proves_nothing() -> None:
    def echo(connection: socket.socket) -> None:
        body = read_request(connection).partition(b"\r\n\r\n")[2]
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    with hostile_server(echo) as url:
        outcome = webhook(url).prove_ownership()
    assert isinstance(outcome, Refused)
    assert "did not prove" in outcome.reason


@pytest.mark.parametrize("accepts_old", [False, True])
def test_a_server_that_forwards_the_challenge_to_a_receiver_with_the_key_proves_nothing(accepts_old: bool) -> None:
    with receiving(Receiver(KEY)) as real:

        def forward(connection: socket.socket) -> None:
            head, _, body = read_request(connection).partition(b"\r\n\r\n")
            signature = re.search(rb"(?i)waybill-signature: ([^\r]+)", head)
            assert signature is not None
            status, _, answer = real.handle({"Waybill-Signature": signature[1].decode(), "Host": "real"}, body)
            connection.sendall(b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n%s" % (status, len(answer), answer))

        with hostile_server(forward) as url:
            outcome = webhook(url, accept_proofs_without_url=accepts_old).prove_ownership()
        assert isinstance(outcome, Refused)
        assert real.challenges == 1
        assert webhook(real.url).prove_ownership() == Delivered()


def test_a_receiver_of_earlier_versions_is_refused_with_the_remedy_unless_the_config_accepts_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with receiving(Receiver(KEY, is_old=True)) as receiver:
        outcome = webhook(receiver.url).prove_ownership()
        assert isinstance(outcome, Refused)
        assert "accept_proofs_without_url" in outcome.reason
        assert webhook(receiver.url, accept_proofs_without_url=True).prove_ownership() == Delivered()
    assert "proves only that some receiver has the key" in caplog.text
    assert "/hook" not in caplog.text


def test_a_lost_answer_is_repeated_under_the_same_key_and_counts_once() -> None:
    times, receiver = Times(), Receiver(KEY)
    answers = iter([503, 429, 200])

    def respond(_: Any) -> tuple[int, dict[str, str], bytes]:
        return next(answers), {}, b""

    receiver.respond = respond
    with receiving(receiver):
        [batch] = batches(10)
        assert webhook(receiver.url, times).deliver(batch) == Delivered()
        # A worker that starts again before its cursor was stored sends the batch again.
        assert webhook(receiver.url, times).deliver(batch) == Delivered()
    assert len(receiver.keys) == 4
    assert len(set(receiver.keys)) == 1
    assert receiver.messages == places(10)
    assert 0.25 <= times.pauses[0] <= 0.5
    assert 0.5 <= times.pauses[1] <= 1.0


def test_retry_after_is_kept_within_a_limit() -> None:
    times, receiver = Times(), Receiver(KEY)
    answers = iter([(503, {"Retry-After": "7"}), (503, {"Retry-After": "600"})])
    receiver.respond = lambda _: (*next(answers), b"busy")
    with receiving(receiver):
        hook = webhook(receiver.url, times)
        assert hook.deliver(batches(1)[0]) == Unavailable("answers 503: busy", 600.0)
    assert times.pauses == [7.0]


def test_the_breaker_stops_requests_and_lets_one_trial_through() -> None:
    times, receiver = Times(), Receiver(KEY)
    receiver.respond = lambda _: (500, {}, b"")
    [batch] = batches(5)
    with receiving(receiver):
        hook = webhook(receiver.url, times)
        assert hook.deliver(batch) == Unavailable("answers 500", 30.0)
        assert len(receiver.keys) == 3
        # The next task, with the stored state:
        hook = webhook(receiver.url, times, hook.breaker.document())
        outcome = hook.deliver(batch)
        assert isinstance(outcome, Unavailable)
        assert "left alone" in outcome.reason
        assert len(receiver.keys) == 3
        times.pause(outcome.wait_seconds)
        assert hook.deliver(batch) == Unavailable("answers 500", 60.0)
        assert len(receiver.keys) == 4
        times.pause(60)
        receiver.respond = lambda _: (204, {}, b"")
        assert hook.deliver(batch) == Delivered()
        assert hook.breaker.document()["failures"] == 0


def test_the_rate_is_shared_by_the_workers() -> None:
    clock = Times(now=1_000.0)
    replay = replay_config(rate_per_second=10).model_copy(update={"workers": 4})
    with receiving(Receiver(KEY)) as receiver, webhook_client(receiver.url, replay) as client:
        hook = WebhookDelivery(client, REQUEST, Keys(KEY), replay, pause=clock.pause, monotonic=lambda: clock.now)
        for batch in batches(6, size=1):
            assert hook.deliver(batch) == Delivered()
    assert clock.pauses == pytest.approx([0.4] * 5)


# --- rejections -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [set(), {0}, {499}, {17, 18, 400}, set(range(0, 500, 125))])
def test_a_rejected_batch_is_split_until_the_messages_are_found(bad: set[int]) -> None:
    receiver = Receiver(KEY)

    def respond(body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        if any(message["offset"] in bad for message in body["messages"]):
            return 422, {}, b"no such\nflight \x1b[31m" + b"x" * 5_000
        return 200, {}, b""

    receiver.respond = respond
    with receiving(receiver):
        outcome = webhook(receiver.url).deliver(batches(500)[0])
    assert isinstance(outcome, Delivered)
    assert [rejection.message.offset for rejection in outcome.rejections] == sorted(bad)
    assert receiver.messages == {place: 1 for place in places(500) if place[2] not in bad}
    for rejection in outcome.rejections:
        assert rejection.reason.startswith("422: no such flight")
        assert "\x1b" not in rejection.reason
        assert len(rejection.reason) < 520
    assert len(receiver.keys) <= 1 + 2 * len(bad) * 9


def test_a_receiver_that_rejects_everything_costs_a_bounded_number_of_requests() -> None:
    receiver = Receiver(KEY, respond=lambda _: (400, {}, b"no"))
    with receiving(receiver):
        outcome = webhook(receiver.url).deliver(batches(2_000, size=2_000)[0])
    assert isinstance(outcome, Delivered)
    assert [rejection.message.offset for rejection in outcome.rejections] == list(range(2_000))
    assert len(receiver.keys) <= MAX_SPLIT_REQUESTS + 1
    assert "messages together" in outcome.rejections[-1].reason


@pytest.mark.parametrize("status", [401, 403, 404, 405, 410])
def test_statuses_about_the_webhook_end_the_request(status: int) -> None:
    receiver = Receiver(KEY, respond=lambda _: (status, {}, b"go away"))
    with receiving(receiver):
        assert webhook(receiver.url).deliver(batches(500)[0]) == Refused(f"answers {status}: go away")
    assert len(receiver.keys) == 1


def test_a_split_that_is_interrupted_is_continued_without_repeated_messages() -> None:
    receiver = Receiver(KEY)
    is_away = iter([False, False, True, True, True])

    def respond(body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        if next(is_away, False):
            return 503, {}, b""
        return (422 if any(m["offset"] == 7 for m in body["messages"]) else 200), {}, b""

    receiver.respond = respond
    with receiving(receiver):
        assert isinstance(webhook(receiver.url).deliver(batches(8)[0]), Unavailable)
        outcome = webhook(receiver.url).deliver(batches(8)[0])
    assert isinstance(outcome, Delivered)
    assert [rejection.message.offset for rejection in outcome.rejections] == [7]
    assert receiver.messages == places(7)


# --- redirects, addresses, TLS ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_to_a_metadata_address_is_not_followed(status: int) -> None:
    location = "http://169.254.169.254/latest/meta-data/"
    receiver = Receiver(KEY, respond=lambda _: (status, {"Location": location}, b""))
    with receiving(receiver):
        outcome = webhook(receiver.url).deliver(batches(1)[0])
    assert isinstance(outcome, Refused)
    assert "redirects to http://169.254.169.254/… " in outcome.reason, "the path may hold a secret"
    assert len(receiver.keys) == 1


def test_a_redirect_to_itself_is_one_request() -> None:
    receiver = Receiver(KEY)
    with receiving(receiver):
        receiver.respond = lambda _: (302, {"Location": receiver.url}, b"")
        assert isinstance(webhook(receiver.url).deliver(batches(1)[0]), Refused)
    assert len(receiver.keys) == 1


def test_without_permission_no_connection_to_this_machine_is_made() -> None:
    with receiving(Receiver(KEY)) as receiver:
        port = receiver.url.split(":")[2].split("/")[0]
        for host in ("127.0.0.1", "localhost", "0x7f.1", "2130706433", "[::ffff:127.0.0.1]", "127.1", "LOCALHOST"):
            outcome = webhook(f"http://{host}:{port}/hook", allowed_networks=[]).deliver(batches(1)[0])
            assert isinstance(outcome, Refused)
            assert "is not allowed, since" in outcome.reason
    assert receiver.hosts == []
    assert receiver.forgeries == 0


def test_a_name_that_changes_between_lookups_reaches_only_what_was_checked() -> None:
    lookups = [["127.0.0.1"], ["127.0.0.1"], ["169.254.169.254"]]

    def rebind(host: str, port: int) -> list[str]:
        assert host == "rebind.example"
        return lookups.pop(0)

    receiver = Receiver(KEY)
    with receiving(receiver):
        url = receiver.url.replace("127.0.0.1", "rebind.example")
        client = WebhookClient(url, allowed=[LOOPBACK], timeout_seconds=5, max_answer_bytes=1_000, lookup=rebind)
        headers = {"Waybill-Signature": "t=0,v1=0"}
        with client:
            assert client.post(b"{}", headers).status == 401
            assert len(lookups) == 2  # one lookup for one connection
            assert client.post(b"{}", headers).status == 401
            assert len(lookups) == 2  # the connection is kept
            client.close()
            assert client.post(b"{}", headers).status == 401
            client.close()
            with pytest.raises(ReplayRefused, match=r"its address 169\.254\.169\.254 is not allowed.*metadata"):
                client.post(b"{}", headers)


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with receiving(Receiver(KEY)) as receiver:
        assert webhook(receiver.url).deliver(batches(1)[0]) == Delivered()


def test_certificates_are_checked_by_the_name_of_the_url(tmp_path: Path) -> None:
    authority = Certificates(tmp_path / "ca")
    certificate, key, _ = authority.issue("hook", ("hook.example",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    names: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    trusted = ssl.create_default_context(cafile=str(authority.ca))

    def post(host: str, tls: ssl.SSLContext | None) -> int:
        url = receiver.url.replace("127.0.0.1", host)
        with WebhookClient(
            url,
            allowed=[LOOPBACK],
            timeout_seconds=5,
            max_answer_bytes=1_000,
            tls=tls,
            lookup=lambda *_: ["127.0.0.1"],
        ) as client:
            return client.post(b"{}", {"Waybill-Signature": Keys(KEY).sign(b"{}", int(time.time()))}).status

    def respond(_: Any) -> tuple[int, dict[str, str], bytes]:
        return 200, {}, b""

    receiver = Receiver(KEY, respond)
    receiver.handle = lambda headers, _raw: (200, {}, headers["Host"].encode())  # type: ignore[method-assign]
    with receiving(receiver, context):
        assert post("hook.example", trusted) == 200
        assert post("hook.example.", trusted) == 200
        assert names == ["hook.example", "hook.example"]
        with pytest.raises(NoAnswer, match=r"CERTIFICATE_VERIFY_FAILED.*[Hh]ostname mismatch"):
            post("other.example", trusted)
        with pytest.raises(NoAnswer, match="CERTIFICATE_VERIFY_FAILED"):
            post("hook.example", None)


def test_http_is_refused_unless_the_config_allows_it() -> None:
    with pytest.raises(ReplayRefused, match="https only"):
        webhook("http://example.org/hook", allow_http=False)
    for url in ("https://user:pass@example.org/", "ftp://example.org/", "https:///hook", "https://exa mple.org\n/"):
        with pytest.raises(ReplayRefused, match=r"target\.url") as caught:
            WebhookClient(url, timeout_seconds=1, max_answer_bytes=1)
        assert "pass" not in str(caught.value)


# --- hostile receivers ------------------------------------------------------------------------------------------------

OK = b"HTTP/1.1 200 OK\r\n"


def says_nothing(connection: socket.socket) -> None:
    read_request(connection)
    connection.recv(1)


def drips_the_head(connection: socket.socket) -> None:
    read_request(connection)
    for byte in OK * 100:
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


def drips_the_body(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(OK + b"Content-Length: 3000\r\n\r\n")
    for _ in range(3_000):
        connection.sendall(b"x")
        time.sleep(0.05)


def sends_half_an_answer(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(OK + b"Content-Length: 100\r\n\r\nhalf")


def sends_half_a_head(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-")


def hangs_up(connection: socket.socket) -> None:
    read_request(connection)


def reads_slowly(connection: socket.socket) -> None:
    for _ in range(60):
        connection.recv(1)
        time.sleep(0.05)


def sends_an_endless_header(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(OK + b"X: ")
    while True:
        connection.sendall(b"x" * 65_536)


def sends_endless_headers(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(OK)
    while True:
        connection.sendall(b"X: y\r\n" * 10_000)


def says_continue_forever(connection: socket.socket) -> None:
    read_request(connection)
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)


def speaks_no_http(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(b"220 mail.example ESMTP\r\n" * 10)


def contradicts_itself(connection: socket.socket) -> None:
    read_request(connection)
    connection.sendall(OK + b"Content-Length: 5\r\nContent-Length: 7\r\n\r\nhello")


@pytest.mark.parametrize(
    "behave",
    [
        says_nothing,
        drips_the_head,
        drips_the_body,
        sends_half_an_answer,
        sends_half_a_head,
        hangs_up,
        sends_an_endless_header,
        sends_endless_headers,
        says_continue_forever,
        speaks_no_http,
        contradicts_itself,
    ],
)
def test_a_receiver_that_gives_no_whole_answer_is_unavailable_in_time(behave: Callable[[socket.socket], None]) -> None:
    started = time.monotonic()
    with hostile_server(behave) as url:
        outcome = webhook(url, attempts=1).deliver(batches(3)[0])
        took = time.monotonic() - started
    assert isinstance(outcome, Unavailable)
    assert outcome.wait_seconds == pytest.approx(30, abs=0.1)
    assert took < 2.5


def test_a_receiver_that_reads_slowly_is_unavailable_in_time() -> None:
    started = time.monotonic()
    with hostile_server(reads_slowly) as url:
        batch = batches(1, value=lambda _: b"x" * (20 << 20))[0]
        outcome = webhook(url, attempts=1).deliver(batch)
        took = time.monotonic() - started
    assert isinstance(outcome, Unavailable)
    assert took < 2.5


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
def test_of_an_answer_of_5_gb_only_the_beginning_is_read(framing: str) -> None:
    sent = 0

    def flood(connection: socket.socket) -> None:
        nonlocal sent
        read_request(connection)
        head = {
            "length": b"Content-Length: %d\r\n\r\n" % (5 << 30),
            "chunked": b"Transfer-Encoding: chunked\r\n\r\n",
            "close": b"Connection: close\r\n\r\n",
        }[framing]
        connection.sendall(OK + head)
        block = b"x" * 65_536
        while sent < 5 << 30:
            connection.sendall(b"10000\r\n" + block + b"\r\n" if framing == "chunked" else block)
            sent += len(block)

    with hostile_server(flood) as url:
        assert webhook(url).deliver(batches(3)[0]) == Delivered()
    assert sent < 32 << 20


def test_a_compressed_answer_stays_as_small_as_it_came() -> None:
    bomb = gzip.compress(bytes(50 << 20))

    def explode(connection: socket.socket) -> None:
        assert b"accept-encoding: identity" in read_request(connection).lower()
        connection.sendall(
            b"HTTP/1.1 422 No\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb
        )

    with hostile_server(explode) as url:
        outcome = webhook(url).deliver(batches(1)[0])
    assert isinstance(outcome, Delivered)
    assert len(outcome.rejections[0].reason) < 600


def test_a_challenge_answered_with_nested_json_proves_nothing() -> None:
    def nest(connection: socket.socket) -> None:
        read_request(connection)
        body = b"[" * 4_000
        connection.sendall(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    with hostile_server(nest) as url:
        assert isinstance(webhook(url).prove_ownership(), Refused)


def test_no_secret_is_in_logs_outcomes_or_reprs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with receiving(Receiver(KEY, respond=lambda _: (500, {}, b"oops"))) as receiver:
        hook = webhook(receiver.url)
        shown = f"{hook.prove_ownership()} {hook.deliver(batches(1)[0])} {vars(hook)}"
    assert KEY.decode() not in shown + caplog.text
    assert KEY.hex() not in shown + caplog.text


def test_a_connection_that_the_receiver_closed_between_batches_costs_one_more_attempt() -> None:
    def once(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(OK + b"Content-Length: 0\r\n\r\n")  # and closes, without announcing it

    with hostile_server(once) as url:
        hook = webhook(url)
        for batch in batches(20, size=1):
            assert hook.deliver(batch) == Delivered()
