"""The section `replay`: off without it, its limits, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path

import pytest

from waybill.base.errors import ConfigError
from waybill.config.models import Config, load_config

VALID = """\
version: 1
storage: {bucket: archive}
REPLAY
streams:
  flights:
    topics: [flights]
    parser: {name: json, event_time: {field: at, format: epoch_ms}}
    table: analytics.flights
"""


def load(tmp_path: Path, replay: str) -> Config:
    path = tmp_path / "streams.yaml"
    path.write_text(VALID.replace("REPLAY", replay))
    return load_config(path)


def test_without_the_section_there_is_no_replay(tmp_path: Path) -> None:
    assert load(tmp_path, "").replay is None


def test_an_empty_section_has_the_defaults(tmp_path: Path) -> None:
    replay = load(tmp_path, "replay: {}").replay
    assert replay is not None
    assert (replay.database, replay.max_range, replay.claim_timeout) == (
        "waybill_replay",
        timedelta(days=31),
        timedelta(minutes=2),
    )
    assert not replay.webhooks.allow_http
    assert replay.kafka.connections == ()


def test_the_connections_are_those_of_the_database_the_secret_and_the_targets(tmp_path: Path) -> None:
    replay = load(tmp_path, "replay: {database: db, kafka: {connections: [a, db, b]}}").replay
    assert replay is not None
    assert replay.connections == ("db", "waybill_webhooks", "a", "b")


def test_networks_are_ranges_and_single_addresses_of_both_kinds(tmp_path: Path) -> None:
    replay = load(tmp_path, "replay: {webhooks: {allowed_networks: [10.0.0.0/8, 10.1.2.3, 'fd12::/32']}}").replay
    assert replay is not None
    assert replay.webhooks.allowed_networks == tuple(map(ip_network, ("10.0.0.0/8", "10.1.2.3/32", "fd12::/32")))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{max_range: 0s}", "replay.max_range: must be between 1m and 3650d"),
        ("{webhooks: {allow_http: 'yes'}}", "replay.webhooks.allow_http: must be true or false"),
        ("{webhooks: {allowed_networks: [10.0.0.1/8]}}", "did you mean 10.0.0.0/8?"),
        ("{webhooks: {allowed_networks: [10]}}", "must be a range of IP addresses"),
        ("{webhooks: {allowed_networks: [example.org]}}", "must be a range of IP addresses"),
        ("{quotas: {open_requests: 10, open_requests_per_requester: 11}}", "is more than open_requests (10)"),
        ("{quotas: {open_requests: 0}}", "replay.quotas.open_requests: must be between 1 and 100000"),
        ("{kafka: {connections: ['a b']}}", "the id of a connection"),
    ],
)
def test_refused_values_are_named_with_what_is_allowed(tmp_path: Path, section: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, f"replay: {section}")
    assert message in str(refused.value)
