"""The metrics of a real stream, as Prometheus gets them, and the rules, as promtool checks them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from archived_stream import WAYBILL, ArchivedStream
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from devstack import Stack
from devstack.cache import cached
from devstack.servers import free_ports
from waybill.watch.promises.watch_run import run_watch

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
PROMTOOL_VERSION = "v0.316.0"
PROMTOOL_MODULE = Path(__file__).with_name("data") / "promtool"


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return the samples by name and the values of their labels."""
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        for sample in family.samples
    }


def scrape(address: str) -> dict[tuple[str, ...], float]:
    """Return the samples that Prometheus gets, which asks for the OpenMetrics format."""
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    return samples(httpx.get(address, headers=accept, trust_env=False, timeout=30).raise_for_status().text)


@contextmanager
def serving(stream: ArchivedStream, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run `waybill metrics --serve`, and return the address of the metrics."""
    monkeypatch.setenv("WAYBILL_CONFIG", str(stream.file))
    [port] = free_ports(1)
    command = [WAYBILL, "metrics", "--serve", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert f"serving metrics at http://127.0.0.1:{port}/metrics" in line, line
            yield f"http://127.0.0.1:{port}/metrics"
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(20)


@pytest.mark.integration
def test_metrics_follow_a_stream_from_kafka_to_its_table(
    stack: Stack, tmp_path: Path, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = ArchivedStream(tmp_path, topic_name)
    stream.produce_events(30)
    found = samples(stream.waybill("metrics").out)
    assert found["waybill_archive_lag_messages", "events"] == 30
    assert ("waybill_archived_messages_total", "events") not in found
    stream.ingest()
    with serving(stream, monkeypatch) as address:
        first = scrape(address)
        assert first["waybill_up",] == 1
        assert first["waybill_archived_messages_total", "events"] == 30
        assert first["waybill_archive_lag_messages", "events"] == 0
        assert first["waybill_table_lag_messages", "events"] == 30
        services = ("Kafka", "ZooKeeper", "S3", "the catalog")
        assert [first["waybill_service_up", service] for service in services] == [1, 1, 1, 1]
        stream.partition()
        # A scrape stores nothing, and uses the state of the tables that a watch has stored.
        run_watch(stream.config, now_ms=lambda: int(time.time()) // 300 * 300_000, directory=tmp_path)
        time.sleep(10)
        second = scrape(address)
        assert second["waybill_table_lag_messages", "events"] == 0
        assert second["waybill_rows", "events", "main"] + second["waybill_rows", "events", "quarantine"] == 30
        assert second["waybill_promise_kept", "archive_lag", "events", ""] == 1


def test_an_address_without_a_port_is_refused() -> None:
    ran = subprocess.run([WAYBILL, "metrics", "--serve", "localhost"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert "--serve localhost: give an address and a port, such as 127.0.0.1:9464" in ran.stderr


@pytest.fixture(scope="module")
def promtool() -> Path:
    """Prometheus's own checker, which the first call builds: three minutes, once."""
    if shutil.which("go") is None:
        pytest.skip("promtool is built with Go, and there is no `go` on PATH")

    def build(target: Path) -> None:
        package = "github.com/prometheus/prometheus/cmd/promtool"
        # Without service discoveries: their clients of clouds are more than half of the build. Go compares each module
        # with its hash in go.sum.
        command = ["go", "build", "-mod=readonly", "-tags", "remove_all_sd", "-o", str(target / "promtool"), package]
        subprocess.run(command, cwd=PROMTOOL_MODULE, check=True, capture_output=True, timeout=1500)

    try:
        return cached(f"promtool-{PROMTOOL_VERSION}", build) / "promtool"
    except subprocess.SubprocessError as error:
        output = getattr(error, "stderr", None) or b""
        pytest.skip(f"promtool could not be built: {error}: {output[-300:].decode(errors='replace')}")


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_promtool_accepts_the_rules_and_their_tests_hold(promtool: Path) -> None:
    for arguments in (
        ["check", "rules", "--lint-fatal", "waybill-rules.yaml"],
        ["test", "rules", "waybill-rules-test.yaml"],
    ):
        ran = subprocess.run([promtool, *arguments], cwd=MONITORING, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.deep
@pytest.mark.integration
@pytest.mark.timeout(1800)
def test_promtool_accepts_the_metrics(promtool: Path, stack: Stack, tmp_path: Path, topic_name: str) -> None:
    stream = ArchivedStream(tmp_path, topic_name)
    stream.produce_events(3)
    # promtool reads the older text format, which has no marker of the end.
    text = stream.waybill("metrics").out.replace("# EOF\n", "")
    ran = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
