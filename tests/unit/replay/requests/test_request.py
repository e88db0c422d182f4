"""Replay requests: their JSON form, every refusal with its field, value and remedy, and their ids."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.base.errors import ConfigError, DocumentDamaged, DocumentTooNew, ReplayRefused
from waybill.config.models import Config, load_config
from waybill.replay.requests.request import (
    MAX_KEYS,
    Requested,
    check_request_id,
    check_requester,
    first_id_of,
    new_request_id,
    parse_request,
)
from waybill.replay.requests.targets import KafkaTarget, ObjectCompression, S3Target, WebhookTarget

CONFIG = """\
version: 1
storage: {bucket: archive}
replay: {kafka: {connections: [kafka_default, other_kafka]}}
streams:
  flights:
    topics: [flights]
    parser: {name: json, event_time: {field: at, format: epoch_ms}}
    table: analytics.flights
"""
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
VALID: dict[str, Any] = {
    "stream": "flights",
    "keys": ["AA1"],
    "from": "2026-11-22T10:00:00Z",
    "to": "2026-11-22T11:00:00Z",
    "target": {"type": "webhook", "url": "https://example.org/missed"},
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return load(tmp_path_factory.mktemp("config"), CONFIG)


def load(directory: Path, text: str) -> Config:
    path = directory / "streams.yaml"
    path.write_text(text)
    return load_config(path)


def refusal(config: Config, **changed: Any) -> ReplayRefused:
    with pytest.raises(ReplayRefused) as refused:
        parse_request(config, VALID | changed, NOW_MS)
    return refused.value


def test_a_valid_request_is_what_its_json_says(config: Config) -> None:
    assert parse_request(config, VALID, NOW_MS) == Requested(
        stream="flights",
        keys=(b"AA1",),
        from_ms=int(datetime(2026, 11, 22, 10, tzinfo=UTC).timestamp() * 1000),
        to_ms=int(datetime(2026, 11, 22, 11, tzinfo=UTC).timestamp() * 1000),
        target=WebhookTarget("https://example.org/missed"),
        priority=0,
    )


def test_keys_are_text_or_base64_each_once_and_sorted(config: Config) -> None:
    keys = ["b", {"base64": "AAH/"}, "ü", {"base64": "Yg=="}, ""]
    assert parse_request(config, VALID | {"keys": keys}, NOW_MS).keys == (b"", b"\0\1\xff", b"b", "ü".encode())


def test_times_of_any_zone_mean_the_same_moment(config: Config) -> None:
    same = {"from": "2026-11-22T11:00:00+01:00", "to": "2026-11-22T16:30:00+05:30"}
    assert parse_request(config, VALID | same, NOW_MS) == parse_request(config, VALID, NOW_MS)


def test_bounds_between_milliseconds_are_rounded_up(config: Config) -> None:
    found = parse_request(
        config, VALID | {"from": "2026-11-22T10:00:00.000001Z", "to": "2026-11-22T10:00:00.0015Z"}, NOW_MS
    )
    whole = parse_request(config, VALID, NOW_MS)
    assert (found.from_ms - whole.from_ms, found.to_ms - whole.from_ms) == (1, 2)


def test_a_range_may_end_now_and_be_as_long_as_the_limit(config: Config) -> None:
    ends = {"from": (NOW - timedelta(days=31)).isoformat(), "to": NOW.isoformat()}
    assert parse_request(config, VALID | ends, NOW_MS).to_ms == NOW_MS


@pytest.mark.parametrize(
    ("changed", "field", "message"),
    [
        ({"stream": "flight"}, "stream", "did you mean 'flights'"),
        ({"stream": "x" * 9_999}, "stream", "must be the name of a stream"),
        ({"from": " " * 9_999}, "from", "is no ISO 8601 time"),
        ({"stream": 7}, "stream", "7 must be the name of a stream"),
        ({"keys": []}, "keys", "1 to 100 message keys"),
        ({"keys": "AA1"}, "keys", "must be a list"),
        ({"keys": ["k"] * (MAX_KEYS + 1)}, "keys", "has 101 keys, and one request may have 100: send several"),
        ({"keys": ["a", 7]}, "keys[1]", "must be text, or"),
        ({"keys": [None]}, "keys[0]", "must be text, or"),
        ({"keys": ["\ud800"]}, "keys[0]", "must be text, or"),
        ({"keys": [{"base64": "AAE"}]}, "keys[0]", "must be text, or"),
        ({"keys": [{"base64": "AA==", "x": 1}]}, "keys[0]", "must be text, or"),
        ({"keys": ["k" * 4097]}, "keys[0]", "has 4,097 bytes, more than 4,096"),
        ({"from": "2026-11-22T10:00:00"}, "from", "has no time zone: write 2026-11-22T10:00:00Z"),
        ({"to": "2026-11-22"}, "to", "has no time zone"),
        ({"from": "yesterday"}, "from", "'yesterday' is no ISO 8601 time: write it as 2026-11-22T10:00:00Z"),
        ({"from": 1764000000}, "from", "1764000000 is no ISO 8601 time"),
        ({"from": None}, "from", "None is no ISO 8601 time"),
        ({"from": "1969-12-31T23:59:59Z"}, "from", "is before 1970"),
        ({"from": "2026-11-22T12:00:00Z"}, "to", "is before `from` (2026-11-22T12:00:00Z): exchange them"),
        ({"from": "2026-11-22T11:00:00Z"}, "to", "the range is empty: `to` is not included"),
        ({"to": "2026-11-23T12:00:00.001Z"}, "to", "is in the future: a range must end at 2026-11-23T12:00:00.000Z"),
        ({"from": "2027-01-01T00:00:00Z", "to": "2027-01-02T00:00:00Z"}, "from", "is in the future"),
        ({"from": "2026-10-01T00:00:00Z"}, "to", "is longer than 31d (replay.max_range): send several requests"),
        ({"from": "2001-01-01T00:00:00Z"}, "to", "is longer than 31d"),
        ({"priority": 10}, "priority", "0 to 9"),
        ({"priority": True}, "priority", "0 to 9"),
        ({"priority": "high"}, "priority", "0 to 9"),
        ({"keyz": []}, "", "a request has no field 'keyz', but: stream, keys, from, to, target, priority"),
        ({"target": "https://x"}, "target", "must be a mapping with a type (webhook, kafka, s3)"),
        ({"target": {"url": "https://x"}}, "target.type", "None is no type of a target; there are: webhook, kafka"),
        ({"target": {"type": "ftp"}}, "target.type", "'ftp' is no type of a target"),
        ({"target": {"type": ["webhook"]}}, "target.type", "is no type of a target"),
        ({"target": {"type": "webhook"}}, "target.url", "a target of type webhook needs it"),
        (
            {"target": {"type": "webhook", "url": "https://x", "key": "y"}},
            "target",
            "a target of type webhook has no field 'key', but: type, url",
        ),
        ({"target": {"type": "webhook", "url": "http://x/"}}, "target.url", "http://x is not encrypted"),
        ({"target": {"type": "webhook", "url": "file:///etc/passwd"}}, "target.url", "must begin with https://"),
        ({"target": {"type": "webhook", "url": "https://"}}, "target.url", "name a host"),
        ({"target": {"type": "webhook", "url": "https://x:0/"}}, "target.url", "name a host"),
        ({"target": {"type": "webhook", "url": "https://x:99999/"}}, "target.url", "is no URL: Port out of range"),
        ({"target": {"type": "webhook", "url": "https://[::1/"}}, "target.url", "is no URL"),
        ({"target": {"type": "webhook", "url": "https://x/ y"}}, "target.url", "printable ASCII characters"),
        ({"target": {"type": "webhook", "url": "https://x/\r\nHost: y"}}, "target.url", "printable ASCII characters"),
        ({"target": {"type": "webhook", "url": f"https://x/{'y' * 2000}"}}, "target.url", "up to 2,000"),
        ({"target": {"type": "webhook", "url": "https://x/#part"}}, "target.url", "has a fragment"),
        ({"target": {"type": "kafka", "connection": "mine", "topic": "t"}}, "target.connection", "there are: kafka_d"),
        ({"target": {"type": "kafka", "connection": ["x"], "topic": "t"}}, "target.connection", "is no connection"),
        ({"target": {"type": "kafka", "connection": "other_kafka", "topic": ".."}}, "target.topic", "is no topic"),
        (
            {"target": {"type": "kafka", "connection": "kafka_default", "topic": "flights"}},
            "target.topic",
            "would archive the replayed messages again: give another topic",
        ),
        ({"target": {"type": "s3", "compression": "lzma"}}, "target.compression", "there are: gzip, zstd, none"),
    ],
)
def test_a_refusal_names_the_field_the_value_and_the_remedy(
    config: Config, changed: dict[str, Any], field: str, message: str
) -> None:
    error = refusal(config, **changed)
    assert error.field == field
    assert str(error).startswith(f"{field}: " if field else "a request has")
    assert len(str(error)) < 400
    assert message in str(error)


@pytest.mark.parametrize("field", VALID)
def test_a_missing_field_is_named(config: Config, field: str) -> None:
    with pytest.raises(ReplayRefused, match=f"{field}: is missing"):
        parse_request(config, {name: value for name, value in VALID.items() if name != field}, NOW_MS)


def test_a_password_in_a_url_is_refused_and_not_repeated(config: Config) -> None:
    error = refusal(config, target={"type": "webhook", "url": "https://me:s3cret@example.org/"})
    assert "user or a password" in str(error)
    assert "s3cret" not in str(error)


def test_http_is_allowed_where_the_config_says_so(tmp_path: Path) -> None:
    config = load(tmp_path, CONFIG.replace("replay: {", "replay: {webhooks: {allow_http: true}, "))
    target = {"type": "webhook", "url": "http://127.0.0.1:8080/"}
    assert parse_request(config, VALID | {"target": target}, NOW_MS).target == WebhookTarget("http://127.0.0.1:8080/")


def test_targets_of_each_type_are_parsed(config: Config) -> None:
    kafka = {"type": "kafka", "connection": "other_kafka", "topic": "flights"}
    assert parse_request(config, VALID | {"target": kafka}, NOW_MS).target == KafkaTarget("other_kafka", "flights")
    assert parse_request(config, VALID | {"target": {"type": "s3"}}, NOW_MS).target == S3Target(ObjectCompression.GZIP)


def test_a_request_is_refused_where_replay_is_off(tmp_path: Path) -> None:
    config = load(tmp_path, "\n".join(line for line in CONFIG.splitlines() if not line.startswith("replay")))
    with pytest.raises(ConfigError, match="replay is off"):
        parse_request(config, VALID, NOW_MS)


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 201])
def test_a_requester_has_a_printable_name(name: str) -> None:
    with pytest.raises(ReplayRefused, match="requester"):
        check_requester(name)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([*VALID, "priority", "target.url", "target.type"]), JSON)
def test_any_json_value_in_any_field_is_accepted_or_refused(config: Config, field: str, value: Any) -> None:
    name, _, inner = field.partition(".")
    changed = {name: {**VALID[name], inner: value} if inner else value}
    refused_field = name
    try:
        found = parse_request(config, VALID | changed, NOW_MS)
        assert Requested.from_json("x", found.to_json()) == found
    except ReplayRefused as refused:
        refused_field = refused.field
    assert refused_field.startswith(name)


KEYS = st.lists(st.binary(max_size=20), min_size=1, max_size=MAX_KEYS)
TARGETS = st.sampled_from([WebhookTarget("https://x/y"), KafkaTarget("other_kafka", "t"), S3Target()])


@given(KEYS, st.integers(0, NOW_MS - 1), st.integers(1, 31 * 86_400_000), TARGETS, st.integers(0, 9))
def test_a_request_is_read_again_as_it_was_written(
    config: Config, keys: list[bytes], from_ms: int, length_ms: int, target: Any, priority: int
) -> None:
    request = Requested(
        "flights", tuple(sorted(set(keys))), from_ms, min(from_ms + length_ms, NOW_MS), target, priority
    )
    assert Requested.from_json("x", request.to_json()) == request
    assert parse_request(config, request.to_fields(), NOW_MS) == request
    assert parse_request(config, request.to_fields(), NOW_MS).fingerprint() == request.fingerprint()


def test_a_damaged_or_newer_document_is_named(config: Config) -> None:
    text = parse_request(config, VALID, NOW_MS).to_json().decode()
    with pytest.raises(DocumentTooNew, match="request X"):
        Requested.from_json("request X", json.dumps(json.loads(text) | {"v": 2}))
    for damaged in ("", "[]", "{}", text.replace("webhook", "pigeon"), text.replace("flights", 'flights"')):
        with pytest.raises(DocumentDamaged, match="request X is damaged"):
            Requested.from_json("request X", damaged)


@given(st.lists(st.integers(0, (1 << 48) - 1), min_size=2, max_size=5, unique=True))
def test_ids_sort_by_time_and_lie_between_the_first_ids_of_their_times(times: list[int]) -> None:
    times.sort()
    ids = [new_request_id(each) for each in times]
    assert sorted(ids) == ids
    for at, found in zip(times, ids, strict=True):
        assert first_id_of(at) <= found < first_id_of(at + 1) or at == (1 << 48) - 1
        assert check_request_id(found.lower()) == found


@pytest.mark.parametrize("text", ["", "7", "8" + "0" * 25, "0" * 25 + "U", "0" * 27, "../" + "0" * 23])
def test_what_cannot_be_an_id_is_refused(text: str) -> None:
    with pytest.raises(ReplayRefused, match="is no id of a replay request"):
        check_request_id(text)
