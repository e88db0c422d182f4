"""The probe of a store: what it finds when one promise is broken, and how often it is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from lying_s3 import WHEN, LyingS3, refusal

from waybill.base.errors import ConfigError, ObjectExists, StoreUnavailable, StoreUnfit
from waybill.config import names
from waybill.config.connections import Checksums, Connection, S3Endpoint
from waybill.config.models.services import Storage
from waybill.services.store import Ability, Store, calls, fitness
from waybill.services.store.calls import BucketCalls
from waybill.services.store.fitness import ensure_fit, probe_and_remember
from waybill.services.store.probe import probe

RESULT = names.probe_result_key("p")
UNSUPPORTED = refusal("InvalidArgument", 400, "Unsupported header 'x-amz-checksum-crc32c' received for this API call.")


class Clock:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.at = WHEN

    def __call__(self) -> datetime:
        return self.at


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    fitness._known.clear()
    yield
    fitness._known.clear()


def calls_to(s3: LyingS3, checksums: Checksums = Checksums.CRC32C) -> BucketCalls:
    found = BucketCalls(S3Endpoint(conn_id="aws_default", checksums=checksums), "bucket")
    found._client = s3
    return found


@pytest.mark.parametrize("checksums", Checksums)
def test_a_store_that_keeps_its_promises_is_fit_and_nothing_is_left_there(checksums: Checksums) -> None:
    s3 = LyingS3()
    result = probe(calls_to(s3, checksums), "p", WHEN)
    assert result.is_fit
    assert len(result.findings) == (6 if checksums is Checksums.NONE else 8)
    assert (s3.objects, s3.uploads) == ({}, {})
    assert s3.calls.total() < 50


BROKEN: list[tuple[dict[str, Any], set[Ability], str]] = [
    ({"overwrites": {("put", "put")}}, {Ability.PUT_OVER_PUT}, "success, and replaced the object"),
    ({"overwrites": {("put", "multipart")}}, {Ability.PUT_OVER_MULTIPART}, "success, and replaced the object"),
    ({"overwrites": {("multipart", "put")}}, {Ability.MULTIPART_OVER_PUT}, "success, and replaced the object"),
    (
        {"overwrites": {("multipart", "multipart")}},
        {Ability.MULTIPART_OVER_MULTIPART},
        "success, and replaced the object",
    ),
    (
        {"says_412_but_overwrites": True},
        {
            Ability.PUT_OVER_PUT,
            Ability.PUT_OVER_MULTIPART,
            Ability.MULTIPART_OVER_PUT,
            Ability.MULTIPART_OVER_MULTIPART,
        },
        "it answered 412, but then it returned another content",
    ),
    ({"hides_for_reads": 1}, {Ability.READ_AFTER_WRITE}, "no such object"),
    ({"hides_in_listings": 1}, {Ability.LIST_AFTER_WRITE}, "it listed 0 objects instead of 1"),
    ({"checks_put": False}, {Ability.CHECKSUM_OF_PUT}, "it answered with success"),
    ({"checks_parts": False}, {Ability.CHECKSUM_OF_PART}, "it answered with success"),
]


@pytest.mark.parametrize(("broken", "lacks", "text"), BROKEN, ids=lambda each: str(each)[:60])
def test_each_broken_promise_is_named(broken: dict[str, Any], lacks: set[Ability], text: str) -> None:
    s3 = LyingS3(**broken)
    result = probe_and_remember(calls_to(s3), "p")
    assert {finding.ability for finding in result.findings if finding.lacks is not None} == lacks
    assert text in " ".join(result.lacks)
    assert (s3.objects, s3.uploads) == ({}, {}), "neither a probe's object nor a result is left"
    with pytest.raises(StoreUnfit, match="not fit for Waybill") as raised:
        result.raise_if_unfit()
    assert all(ability.text in str(raised.value) for ability in lacks)


def test_every_ability_is_broken_by_a_test() -> None:
    assert set[Ability]().union(*(lacks for _, lacks, _ in BROKEN)) == set(Ability)


@pytest.mark.parametrize("error", [UNSUPPORTED, refusal("NotImplemented", 501, "x-amz-checksum-crc32c")])
def test_a_store_that_refuses_crc32c_is_named_with_the_option(error: ClientError) -> None:
    lacking = {"ChecksumCRC32C": error, "ChecksumAlgorithm": error}
    with pytest.raises(StoreUnfit, match=r'"checksums" in the extra of .*aws_default.* to "md5"'):
        probe(calls_to(LyingS3(unknown_arguments=lacking)), "p", WHEN)
    assert probe(calls_to(LyingS3(unknown_arguments=lacking), Checksums.MD5), "p", WHEN).is_fit


@pytest.mark.parametrize("error", [UNSUPPORTED, refusal("NotImplemented", 501, "x-amz-checksum-crc32c")])
def test_an_upload_that_is_refused_for_its_checksum_names_the_option(error: ClientError) -> None:
    store = Store(S3Endpoint(conn_id="aws_default"), "bucket")
    store._calls._client = LyingS3(unknown_arguments={"ChecksumCRC32C": error, "ChecksumAlgorithm": error})
    for create in (lambda: store.create_if_absent("k", b"x"), lambda: store.replace("k", b"x")):
        with pytest.raises(StoreUnfit, match='"md5"'):
            create()
    store.close()


def test_a_store_without_conditional_creates_is_refused_at_the_first_object() -> None:
    s3 = LyingS3(unknown_arguments={"IfNoneMatch": refusal("NotImplemented", 501, "If-None-Match")})
    with pytest.raises(StoreUnfit, match="cannot create an object with PutObject, If-None-Match"):
        probe(calls_to(s3), "p", WHEN)
    assert s3.objects == {}


@pytest.mark.parametrize(
    "answer", [refusal("Conflict", 409), refusal("MethodNotAllowed", 405), refusal("InvalidRequest", 400)], ids=str
)
def test_another_answer_than_412_is_no_conditional_create(answer: ClientError) -> None:
    s3 = LyingS3()
    create = s3._create

    def refuse(how: str, key: str, content: bytes, condition: str | None) -> None:
        if key in s3.objects:
            raise answer
        create(how, key, content, condition)

    s3._create = refuse  # type: ignore[method-assign]
    assert len(probe(calls_to(s3), "p", WHEN).lacks) == 4


@pytest.mark.parametrize("call", ["put_object", "complete_multipart_upload"])
def test_a_lost_answer_to_the_first_create_makes_no_store_unfit(call: str) -> None:
    assert probe(calls_to(LyingS3(lost_answers={call})), "p", WHEN).is_fit


@pytest.mark.parametrize(
    "answer",
    [
        refusal("SlowDown", 503),
        refusal("InternalError", 500),
        refusal("GatewayTimeout", 504),
        refusal("RequestTimeout", 400),
        refusal("ConditionalRequestConflict", 409),
        refusal("TooManyRequests", 429),
        EndpointConnectionError(endpoint_url="x"),
    ],
    ids=str,
)
@pytest.mark.parametrize("call", ["put_object", "upload_part", "complete_multipart_upload", "get_object"])
def test_a_store_that_does_not_answer_is_not_judged(call: str, answer: Exception) -> None:
    with pytest.raises(StoreUnavailable):
        probe(calls_to(LyingS3(failing={call: answer})), "p", WHEN)


def test_a_refusal_of_the_keys_is_an_error_of_the_connection() -> None:
    with pytest.raises(ConfigError, match="not allowed to"):
        probe(calls_to(LyingS3(failing={"put_object": refusal("AccessDenied", 403)})), "p", WHEN)


def test_objects_that_cannot_be_removed_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    s3 = LyingS3(failing={"delete_object": refusal("AccessDenied", 403)})
    assert probe(calls_to(s3), "p", WHEN).is_fit
    assert "could not be removed" in caplog.text


def test_objects_of_a_killed_probe_are_removed_after_a_day() -> None:
    s3 = LyingS3()
    s3.failing = {"delete_object": RuntimeError("killed")}
    with pytest.raises(RuntimeError):
        probe(calls_to(s3), "p", WHEN)
    left = set(s3.objects)
    assert left
    s3.failing = {}
    probe(calls_to(s3), "p", WHEN + timedelta(hours=23))
    assert set(s3.objects) == left
    probe(calls_to(s3), "p", WHEN + timedelta(hours=25))
    assert s3.objects == {}


# --- how often ------------------------------------------------------------------------------------------------------


def test_a_process_reads_the_remembered_result_once_a_day() -> None:
    s3, clock = LyingS3(), Clock()
    ensure_fit(calls_to(s3), "p", clock)
    probed = s3.calls.total()
    assert json.loads(s3.objects[RESULT].content)["at"] == WHEN.isoformat()
    for _ in range(3):
        ensure_fit(calls_to(s3), "p", clock)
    assert s3.calls.total() == probed
    fitness._known.clear()  # another process
    for _ in range(3):
        ensure_fit(calls_to(s3), "p", clock)
    assert s3.calls.total() == probed + 1
    clock.at += timedelta(hours=24)
    ensure_fit(calls_to(s3), "p", clock)
    assert s3.calls.total() > probed + 10
    assert json.loads(s3.objects[RESULT].content)["at"] == clock.at.isoformat()


def test_an_unfit_store_is_probed_by_every_process_until_it_is_fit() -> None:
    s3, clock = LyingS3(overwrites={("put", "put")}), Clock()
    for _ in range(2):
        with pytest.raises(StoreUnfit):
            ensure_fit(calls_to(s3), "p", clock)
    s3.overwrites.clear()
    ensure_fit(calls_to(s3), "p", clock)


@pytest.mark.parametrize(
    "change",
    [
        {"at": (WHEN - timedelta(days=1)).isoformat()},
        {"at": (WHEN + timedelta(days=2)).isoformat()},
        {"at": "2026-11-25T00:00:00"},
        {"at": 17},
        {"probe": 0},
        {"v": 2},
        {"abilities": ["put-over-put"]},
        {"checksums": "none"},
        None,
    ],
    ids=str,
)
def test_a_result_that_does_not_count_is_replaced(change: dict[str, Any] | None) -> None:
    s3, clock = LyingS3(), Clock()
    ensure_fit(calls_to(s3), "p", clock)
    good = json.loads(s3.objects[RESULT].content)
    s3.objects[RESULT].content = b"\xff" if change is None else json.dumps(good | change).encode()
    fitness._known.clear()
    s3.calls.clear()
    ensure_fit(calls_to(s3), "p", clock)
    assert s3.calls["complete_multipart_upload"] > 0
    assert json.loads(s3.objects[RESULT].content) == good


def test_a_result_that_cannot_be_stored_is_no_reason_to_stop(caplog: pytest.LogCaptureFixture) -> None:
    s3 = LyingS3()
    put = s3.put_object

    def refuse(*, Key: str, **more: Any) -> Any:  # noqa: N803 - botocore's name
        if Key == RESULT:
            raise refusal("AccessDenied", 403)
        return put(Key=Key, **more)

    s3.put_object = refuse  # type: ignore[method-assign]
    ensure_fit(calls_to(s3), "p", Clock())
    assert "could not be stored" in caplog.text


def test_threads_of_a_process_probe_once() -> None:
    s3 = LyingS3()
    threads = [Thread(target=ensure_fit, args=(calls_to(s3), "p", Clock())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert s3.calls["list_objects_v2"] == 5, "those of one probe"


# --- where the store asks -----------------------------------------------------------------------------------------


@pytest.fixture
def s3_of_the_config(monkeypatch: pytest.MonkeyPatch) -> LyingS3:
    s3 = LyingS3(now=datetime.now(UTC))
    monkeypatch.setattr(calls, "store_client", lambda _: s3)
    return s3


def store_of_the_config(part_bytes: int | None = None) -> Store:
    store = Store.of(Storage(bucket="bucket", prefix="p"), lambda conn_id: Connection(conn_id=conn_id))
    if part_bytes is not None:
        store.part_bytes = store._threads.part_bytes = part_bytes
    return store


def test_the_store_of_the_config_refuses_to_write_to_an_unfit_store(s3_of_the_config: LyingS3) -> None:
    s3_of_the_config.overwrites = {("multipart", "multipart")}
    with store_of_the_config(part_bytes=10) as store:
        with pytest.raises(StoreUnfit):
            store.create_if_absent("k", b"x")
        with pytest.raises(StoreUnfit), store.upload_if_absent("k") as upload:
            upload.write(bytes(25))
        assert s3_of_the_config.objects == {}
        assert s3_of_the_config.uploads == {}


def test_the_store_of_the_config_asks_before_the_first_create_only(s3_of_the_config: LyingS3) -> None:
    with store_of_the_config() as store:
        assert store.read_if_exists("p/k") is None
        assert RESULT not in s3_of_the_config.objects
        store.create_if_absent("p/k", b"x")
        assert RESULT in s3_of_the_config.objects
        before = s3_of_the_config.calls.total()
        store.create_if_absent("p/l", b"x")
        with pytest.raises(ObjectExists):
            store.create_if_absent("p/k", b"y")
        assert s3_of_the_config.calls.total() == before + 2
    fitness._known.clear()
    with store_of_the_config() as store:
        store.create_if_absent("p/m", b"x")
        assert s3_of_the_config.calls.total() == before + 4, "one GET in another process"


def test_a_person_may_probe_at_any_time(s3_of_the_config: LyingS3) -> None:
    with store_of_the_config() as store:
        assert store.probe().is_fit
        s3_of_the_config.checks_put = False
        assert [str(each) for each in store.probe().findings if each.lacks] == [
            "cannot refuse PutObject with a wrong checksum: it answered with success"
        ]
