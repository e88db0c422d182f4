"""`waybill kafka health`: the promises about the Kafka cluster, now and earlier."""

from __future__ import annotations

import time
from typing import Any

import typer

from waybill.config.models.kafka_promises import KafkaPromiseName
from waybill.config.models.quantities import rough_duration
from waybill.config.names import kafka_memory_key
from waybill.interfaces.cli.render import PrintedColumn, count, print_json, print_table, time_text_of
from waybill.interfaces.cli.targets import load_streams, open_store
from waybill.watch.incidents.failures import Failures
from waybill.watch.incidents.finding import Finding, Verdict
from waybill.watch.kafka_cluster.forecast_inputs import connect_cluster
from waybill.watch.kafka_cluster.isr_history import IsrHistory, ReplicaState
from waybill.watch.promises.kafka_figures import KafkaMeasured, KafkaMemory, measure_kafka


def show_health(*, history: bool, as_json: bool) -> None:
    """Print the promises about the Kafka cluster; see `waybill kafka health --help`."""
    config = load_streams()
    with open_store(config) as store:
        memory = KafkaMemory.parse(store.read_if_exists(kafka_memory_key(store.prefix)))
    now_ms = time.time_ns() // 1_000_000
    with connect_cluster(config) as cluster:
        failures = Failures()
        measured = measure_kafka(config, cluster, memory, now_ms, failures)
    if as_json:
        print_json(_document(measured))
    else:
        _print_brokers(measured)
        _print_findings(measured.findings)
        if history:
            _print_history(measured.memory.history, now_ms)
    for text in failures.texts:
        typer.echo(f"not measured: {text}", err=True)
    if failures.texts or any(finding.verdict is Verdict.BROKEN for finding in measured.findings):
        raise typer.Exit(1)


def _print_brokers(measured: KafkaMeasured) -> None:
    state, quorum = measured.readings.state, measured.readings.quorum
    leaders, replicas = dict.fromkeys(state.brokers, 0), dict.fromkeys(state.brokers, 0)
    for partition in state.partitions.values():
        if partition.leader in leaders:
            leaders[partition.leader] += 1
        for node_id in partition.replicas:
            replicas[node_id] = replicas.get(node_id, 0) + 1
    columns = [
        PrintedColumn("broker"),
        PrintedColumn("rack"),
        PrintedColumn("leads", figure=True),
        PrintedColumn("replicas", figure=True),
        PrintedColumn("controller"),
    ]
    rows = []
    for node_id in sorted(replicas):
        broker = state.brokers.get(node_id)
        role = "" if quorum is None or node_id not in quorum.voters else "votes"
        if quorum is not None and node_id == quorum.leader:
            role = "leads"
        rack = "not alive" if broker is None else broker.rack or ""
        rows.append([str(node_id), rack, count(leaders.get(node_id, 0)), count(replicas[node_id]), role])
    print_table(columns, rows)
    typer.echo()


def _print_findings(findings: list[Finding]) -> None:
    columns = [
        PrintedColumn("promise"),
        PrintedColumn(""),
        PrintedColumn("figure"),
        PrintedColumn("limit"),
        PrintedColumn("detail"),
    ]
    rows = []
    for finding in sorted(findings, key=lambda each: each.verdict is not Verdict.BROKEN):
        name = KafkaPromiseName(finding.promise).key + (f" ({finding.subject})" if finding.subject else "")
        rows.append([name, str(finding.verdict), finding.figure, finding.limit, finding.detail])
    print_table(columns, rows)
    for finding in findings:
        if not all(name in finding.detail for name in finding.names):  # the detail names the first only
            typer.echo(f"\n{KafkaPromiseName(finding.promise).key}:")
            for name in finding.names:
                typer.echo(f"  {name}")


def _print_history(history: IsrHistory, now_ms: int) -> None:
    typer.echo()
    columns = [
        PrintedColumn("state"),
        PrintedColumn("topic"),
        PrintedColumn("topic-partitions", figure=True),
        PrintedColumn("since"),
        PrintedColumn("for", figure=True),
    ]
    rows = []
    for state in ReplicaState:
        by_topic: dict[str, list[int]] = {}
        for tp, since in history.open.get(state, {}).items():
            by_topic.setdefault(tp.topic, []).append(since)
        for topic, times in sorted(by_topic.items()):
            lasts = f"{rough_duration((now_ms - min(times)) / 1000)} so far"
            rows.append([state.value, topic, count(len(times)), time_text_of(min(times)), lasts])
    for each in reversed(history.ended):
        lasted = rough_duration((each.until_ms - each.since_ms) / 1000)
        rows.append([each.state.value, each.topic, count(each.partitions), time_text_of(each.since_ms), lasted])
    if rows:
        print_table(columns, rows)
    else:
        typer.echo("The watch has seen no topic-partition that lacked a replica in the last 14 days.")


def _document(measured: KafkaMeasured) -> dict[str, Any]:
    state, history = measured.readings.state, measured.memory.history
    return {
        "brokers": [
            {"id": broker.node_id, "host": broker.host, "port": broker.port, "rack": broker.rack}
            for _, broker in sorted(state.brokers.items())
        ],
        "topic_partitions": len(state.partitions),
        "promises": [
            {
                "promise": KafkaPromiseName(each.promise).key,
                "subject": each.subject,
                "verdict": str(each.verdict),
                "severity": str(each.severity),
                "figure": each.figure,
                "limit": each.limit,
                "detail": each.detail,
                "names": list(each.names),
                "value": each.value,
                "since_ms": each.since_ms,
                "command": each.command,
            }
            for each in measured.findings
        ],
        "history": [
            {
                "state": each.state.value,
                "topic": each.topic,
                "topic_partitions": each.partitions,
                "since_ms": each.since_ms,
                "until_ms": each.until_ms,
            }
            for each in history.ended
        ],
    }
