"""The probe of the store, against a real S3 server and proxies in front of it that break its promises."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.credentials import Credentials
from chaos.loop import ProxyLoop
from chaos.s3_proxy import CallFault, Effect, S3Call, S3Proxy
from ingest_scenes import Archive, Cluster
from typer.testing import CliRunner

from devstack import Stack
from waybill.archive.ingest.lane_report import Outcome
from waybill.base.errors import StoreUnavailable
from waybill.config import names
from waybill.config.connections import Checksums, S3Endpoint
from waybill.config.names import TopicPartition
from waybill.interfaces.cli.app import app
from waybill.services.store import Ability, Store, fitness

pytestmark = pytest.mark.integration

CONDITIONAL = {
    Ability.PUT_OVER_PUT,
    Ability.PUT_OVER_MULTIPART,
    Ability.MULTIPART_OVER_PUT,
    Ability.MULTIPART_OVER_MULTIPART,
}
OPERATIONS = {"put": "PutObject", "multipart": "CompleteMultipartUpload"}


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    fitness._known.clear()
    yield
    fitness._known.clear()


@pytest.fixture
def store_at(stack: Stack, topic_name: str) -> Iterator[Callable[..., Store]]:
    opened: list[Store] = []

    def open_store(url: str | None = None, checksums: Checksums = Checksums.CRC32C) -> Store:
        endpoint = S3Endpoint(
            endpoint_url=url or stack.s3_endpoint_url,
            access_key=stack.s3_access_key,
            secret_key=stack.s3_secret_key,
            checksums=checksums,
        )
        opened.append(Store(endpoint, stack.bucket, topic_name))
        return opened[-1]

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture
def proxied(stack: Stack) -> Iterator[Callable[..., S3Proxy]]:
    with ProxyLoop() as loop:
        opened: list[S3Proxy] = []

        def open_proxy(*faults: CallFault, guard: bool = True) -> S3Proxy:
            keys = Credentials(stack.s3_access_key, stack.s3_secret_key)
            opened.append(S3Proxy(loop, stack.s3_endpoint_url, keys, faults, guard=guard))
            return opened[-1]

        yield open_proxy
        for proxy in opened:
            proxy.close()


@pytest.mark.parametrize("checksums", Checksums)
def test_the_local_s3_server_is_fit_and_keeps_only_the_result(
    store_at: Callable[..., Store], checksums: Checksums
) -> None:
    store = store_at(checksums=checksums)
    result = store.probe()
    assert result.is_fit, [str(finding) for finding in result.findings]
    assert list(store.keys(f"{store.prefix}/")) == [names.probe_result_key(store.prefix)]
    assert json.loads(store.read(names.probe_result_key(store.prefix)))["checksums"] == checksums
    assert not store.client.list_multipart_uploads(Bucket=store.bucket, Prefix=f"{store.prefix}/").get("Uploads")


@pytest.mark.parametrize("ability", sorted(CONDITIONAL))
def test_a_store_that_ignores_the_condition_in_one_combination_is_found(
    store_at: Callable[..., Store], ability: Ability
) -> None:
    store, create = store_at(), OPERATIONS[ability.partition("-")[0]]

    def ignore_condition(request: Any, **_: Any) -> None:
        if request.url.partition("?")[0].endswith(ability):
            del request.headers["If-None-Match"]

    store.client.meta.events.register(f"before-sign.s3.{create}", ignore_condition)
    assert {each.ability for each in store.probe().findings if each.lacks is not None} == {ability}
    assert list(store.keys(f"{store.prefix}/")) == []


@pytest.mark.parametrize(
    ("ability", "call"), [(Ability.CHECKSUM_OF_PUT, "PutObject"), (Ability.CHECKSUM_OF_PART, "UploadPart")]
)
def test_a_store_that_ignores_checksums_is_found(store_at: Callable[..., Store], ability: Ability, call: str) -> None:
    store = store_at(checksums=Checksums.MD5)

    def ignore_checksum(request: Any, **_: Any) -> None:
        del request.headers["Content-MD5"]

    store.client.meta.events.register(f"before-sign.s3.{call}", ignore_checksum)
    assert {each.ability for each in store.probe().findings if each.lacks is not None} == {ability}


def test_a_proxy_that_takes_the_condition_away_is_found(
    store_at: Callable[..., Store], proxied: Callable[..., S3Proxy]
) -> None:
    store = store_at(proxied(guard=False).endpoint_url)
    assert {each.ability for each in store.probe().findings if each.lacks is not None} == CONDITIONAL


@pytest.mark.parametrize("effect", [Effect.APPLIED_500, Effect.APPLIED_RESET])
@pytest.mark.parametrize("call", [S3Call.PUT_OBJECT, S3Call.COMPLETE_MULTIPART_UPLOAD])
def test_a_lost_answer_makes_no_store_unfit(
    store_at: Callable[..., Store], proxied: Callable[..., S3Proxy], call: S3Call, effect: Effect
) -> None:
    proxy = proxied(CallFault(call, effect))
    assert store_at(proxy.endpoint_url).probe().is_fit
    assert proxy.injected.total() == 1


def test_a_store_that_answers_500_is_not_judged(
    store_at: Callable[..., Store], proxied: Callable[..., S3Proxy]
) -> None:
    proxy = proxied(CallFault(S3Call.PUT_OBJECT, Effect.ERROR_500, 2, times=100))
    with pytest.raises(StoreUnavailable):
        store_at(proxy.endpoint_url).probe()


def test_a_lane_writes_nothing_to_an_unfit_store_and_names_what_it_lacks(
    stack: Stack,
    cluster: Cluster,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
    proxied: Callable[..., S3Proxy],
    store_at: Callable[..., Store],
) -> None:
    cluster.create(topic_name, partitions=2)
    for partition in (0, 1):
        cluster.produce(TopicPartition(topic_name, partition), [(None, b"{}")] * 3)
    archive = Archive(stack, topic_name, [topic_name])
    proxy = proxied(guard=False)
    with monkeypatch.context() as patch:
        extra = {"endpoint_url": proxy.endpoint_url, "region_name": "us-east-1"}
        keys = {"login": stack.s3_access_key, "password": stack.s3_secret_key}
        patch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps({"conn_type": "aws", **keys, "extra": extra}))
        report = archive.run()
    assert {each.outcome for each in report.partitions} == {Outcome.FAILED}
    assert {each.failure.error for each in report.partitions if each.failure} == {"StoreUnfit"}
    store = store_at()
    assert list(store.keys(f"{store.prefix}/")) == []
    fitness._known.clear()
    assert {each.outcome for each in archive.run().partitions} == {Outcome.UP_TO_DATE}
    assert names.probe_result_key(store.prefix) in set(store.keys(f"{store.prefix}/"))


def test_config_check_prints_the_abilities_of_the_store(
    stack: Stack, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "streams.yaml"
    stream = {"topics": ["a"], "parser": {"event_time": {"field": "t"}}, "table": "x.y"}
    storage = {"bucket": stack.bucket, "prefix": topic_name}
    file.write_text(json.dumps({"version": 1, "storage": storage, "streams": {"a": stream}}))
    monkeypatch.setenv("WAYBILL_CONFIG", str(file))
    ran = CliRunner().invoke(app, ["config", "check", "--store"])
    assert ran.exit_code == 0, ran.output
    assert all(f"can {ability.text}" in ran.stdout for ability in Ability)
