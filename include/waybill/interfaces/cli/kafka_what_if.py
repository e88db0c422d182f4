"""`waybill kafka what-if` and `waybill kafka drill`: forecast the loss of brokers, and test the forecast."""

from __future__ import annotations

import importlib.util
import ipaddress
import logging
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from waybill.base.errors import ConfigError, ObjectMissing, StoreUnavailable
from waybill.config.connections import KafkaEndpoint, find_connection
from waybill.config.models import Config
from waybill.config.models.quantities import counted
from waybill.config.names import TopicPartition, samples_key
from waybill.interfaces.cli.render import PrintedColumn, count, print_json, print_table, time_text_of
from waybill.interfaces.cli.targets import load_streams, open_store
from waybill.watch.kafka_cluster.drill import DrillReport, run_drill
from waybill.watch.kafka_cluster.forecast_inputs import ForecastInputs, SeenLog, connect_cluster, read_inputs
from waybill.watch.kafka_cluster.what_if import (
    Forecast,
    OutageEffect,
    PartitionForecast,
    StreamForecast,
    brokers_of_rack,
    forecast,
    forecast_streams,
)
from waybill.watch.promises.samples import Samples

logger = logging.getLogger(__name__)

_MOST_PARTITIONS = 20
"""The number of topic-partitions that are printed; `--json` has all."""


# --- what-if ----------------------------------------------------------------------------------------------------------


def run_what_if(brokers: Sequence[int], rack: str | None, *, as_json: bool) -> None:
    """Print what the loss of brokers would do; see `waybill kafka what-if --help`."""
    config = load_streams()
    with connect_cluster(config) as cluster:
        inputs = read_inputs(config, cluster, seen=_WatchMemory(config).last_seen)
    found = forecast(inputs.state, inputs.rules, _chosen(inputs, brokers, rack))
    streams = forecast_streams(found, inputs.streams, inputs.unarchived)
    if as_json:
        print_json(_document(inputs, found, streams))
        return
    _print_forecast(inputs, found, streams)


class _WatchMemory:
    """The readings that the watch has stored about the logs. They are read at the first use."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._samples: Samples | None = None

    def last_seen(self, stream: str, tp: TopicPartition) -> SeenLog | None:
        """Return the log of a topic-partition when a watch last read it; None if no watch has stored it."""
        if self._samples is None:
            self._samples = self._read()
        for at_ms, sample in reversed(self._samples.samples):
            offsets = sample.get((stream, tp))
            if offsets is not None:
                return SeenLog(at_ms, offsets.start, offsets.end)
        return None

    def _read(self) -> Samples:
        try:
            with open_store(self._config) as store:
                return Samples.parse(store.read_if_exists(samples_key(store.prefix)))
        except (ConfigError, ObjectMissing, StoreUnavailable) as error:
            logger.warning("what the watch saw of logs without a leader is not known: %s", error)
            return Samples()


def _chosen(inputs: ForecastInputs, brokers: Sequence[int], rack: str | None) -> list[int]:
    """Return the brokers of the options. Raises `ConfigError` if there are none."""
    state = inputs.state
    chosen = list(brokers)
    if rack is not None:
        of_rack = brokers_of_rack(state, rack)
        if not of_rack:
            racks = ", ".join(sorted({each.rack for each in state.brokers.values() if each.rack})) or "none"
            raise ConfigError(f"no live broker is in rack {rack!r}; the racks of live brokers are: {racks}")
        chosen += of_rack
    if not chosen:
        raise ConfigError("name what is lost: --broker ID (which can be repeated), or --rack NAME")
    known = set(state.brokers) | {each for partition in state.partitions.values() for each in partition.replicas}
    unknown = sorted(set(chosen) - known)
    if unknown:
        raise ConfigError(f"no broker has the id {unknown[0]}; the brokers are: {', '.join(map(str, sorted(known)))}")
    return sorted(set(chosen))


def _print_forecast(inputs: ForecastInputs, found: Forecast, streams: Sequence[StreamForecast]) -> None:
    lost = ", ".join(map(str, found.lost))
    typer.echo(f"If {counted(len(found.lost), 'broker')} ({lost}) of {len(inputs.state.brokers)} ends now:")
    typer.echo()
    if not found.had_quorum:
        typer.echo("The controllers have no majority already: no leader is elected until a controller comes back.")
    elif not found.keeps_quorum:
        typer.echo("The controllers lose their majority: no leader is elected until a controller comes back.")
    effects = Counter(each.effect for each in found.partitions)
    effects[OutageEffect.NONE] += found.total - len(found.partitions)
    rows = [[effect.title, count(effects[effect])] for effect in sorted(effects, reverse=True) if effects[effect]]
    print_table([PrintedColumn("effect"), PrintedColumn("topic-partitions", figure=True)], rows)
    _print_worst(found)
    _print_streams(streams)
    if inputs.quorum_error:
        typer.echo()
        typer.echo(f"The controllers are not known, and taken to survive: {inputs.quorum_error}")
    if inputs.unknown_topics:
        names = ", ".join(inputs.unknown_topics[:3])
        typer.echo()
        typer.echo(
            f"The configuration of {counted(len(inputs.unknown_topics), 'topic')} ({names}) is not known, and taken to "
            f"be Kafka's default. Give the user the ACL DescribeConfigs on the topics."
        )


def _print_worst(found: Forecast) -> None:
    worst = sorted((each for each in found.partitions if each.effect >= OutageEffect.NO_WRITES), key=_by_effect)
    if not worst:
        return
    typer.echo()
    columns = [
        PrintedColumn("topic-partition"),
        PrintedColumn("effect"),
        PrintedColumn("leader"),
        PrintedColumn("in sync"),
        PrintedColumn("before"),
    ]
    print_table(columns, [_row(each) for each in worst[:_MOST_PARTITIONS]])
    if len(worst) > _MOST_PARTITIONS:
        typer.echo(f"and {len(worst) - _MOST_PARTITIONS} more; --json prints all")


def _by_effect(each: PartitionForecast) -> tuple[int, str, int]:
    return -each.effect, each.tp.topic, each.tp.partition


def _row(each: PartitionForecast) -> list[str]:
    in_sync = ",".join(map(str, each.in_sync)) or "none"
    leader = "none" if each.leader < 0 else str(each.leader)
    before = each.before.title if each.before >= OutageEffect.NO_WRITES else ""
    return [str(each.tp), each.effect.title, leader, f"{in_sync} (min {each.min_in_sync})", before]


def _print_streams(streams: Sequence[StreamForecast]) -> None:
    typer.echo()
    if not streams:
        typer.echo("No stream has a replica on these brokers.")
        return
    columns = [
        PrintedColumn("stream"),
        PrintedColumn("archiving"),
        PrintedColumn("offline", figure=True),
        PrintedColumn("unclean", figure=True),
        PrintedColumn("no writes", figure=True),
        PrintedColumn("lost for ever at most", figure=True),
    ]
    rows = []
    for each in streams:
        stopped = each.offline + each.unclean
        archiving = f"stops for {stopped} of {each.partitions}" if each.stops else "goes on"
        figures = count(each.offline), count(each.unclean), count(each.no_writes)
        rows.append([each.stream, archiving, *figures, _at_risk_text(each)])
    print_table(columns, rows)
    typer.echo()
    typer.echo(
        "Lost for ever: messages that no other broker has in sync and that are not archived, if these brokers never "
        "come back. Writes with acks=1 that no follower has yet are not counted: only the leader knows them."
    )
    for each in streams:
        for line in _at_risk_notes(each):
            typer.echo(line)


def _at_risk_text(each: StreamForecast) -> str:
    if each.is_at_risk_exact:
        return count(each.at_risk)
    return f"not known, {count(each.at_risk)} or more" if each.at_risk else "not known"


def _at_risk_notes(each: StreamForecast) -> Iterator[str]:
    """Yield why the number of messages at risk is unknown, and the known bounds."""
    for tp, seen in sorted(each.at_risk_seen.items()):
        yield (
            f"{tp}: no leader answers. When a watch saw its log last, at {time_text_of(seen.seen_at_ms or 0)}, "
            f"{counted(seen.offsets, 'offset')} of it were not archived; what was written later is not known."
        )
    if each.at_risk_not_known:
        names = ", ".join(map(str, each.at_risk_not_known[:_MOST_PARTITIONS]))
        left = len(each.at_risk_not_known) - _MOST_PARTITIONS
        yield (
            f"{names}{f' and {left} more' if left > 0 else ''}: it is not known how many messages are not archived. "
            f"No leader answers, or ZooKeeper does not, and no watch saw where the log ends. It is not 0."
        )


def _document(inputs: ForecastInputs, found: Forecast, streams: Sequence[StreamForecast]) -> dict[str, Any]:
    return {
        "lost": list(found.lost),
        "has_quorum": found.had_quorum,
        "keeps_quorum": found.keeps_quorum,
        "quorum_error": inputs.quorum_error or None,
        "topic_partitions": found.total,
        "partitions": [
            {
                "topic": each.tp.topic,
                "partition": each.tp.partition,
                "effect": each.effect.title,
                "before": each.before.title,
                "leader": None if each.leader < 0 else each.leader,
                "in_sync": list(each.in_sync),
                "min_in_sync": each.min_in_sync,
            }
            for each in found.partitions
        ],
        "streams": [
            {
                "stream": each.stream,
                "stops": each.stops,
                "topic_partitions": each.partitions,
                "offline": each.offline,
                "unclean": each.unclean,
                "no_writes": each.no_writes,
                "lost_at_most": each.at_risk if each.is_at_risk_exact else None,
                "known_offsets_at_risk": each.at_risk,
                "seen_by_watch": [
                    {
                        "topic": tp.topic,
                        "partition": tp.partition,
                        "offsets_not_archived": seen.offsets,
                        "at_ms": seen.seen_at_ms,
                    }
                    for tp, seen in sorted(each.at_risk_seen.items())
                ],
                "not_known": [{"topic": tp.topic, "partition": tp.partition} for tp in each.at_risk_not_known],
            }
            for each in streams
        ],
        "unknown_topics": list(inputs.unknown_topics),
    }


# --- drill ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Commands:
    """Ends and starts brokers with commands of the operating system, in which `{broker}` stands for the id."""

    kill_command: str
    start_command: str

    def kill(self, node_id: int) -> None:
        typer.echo(f"ending broker {node_id}", err=True)
        _run(_words(self.kill_command, node_id))

    def start(self, node_id: int) -> None:
        typer.echo(f"starting broker {node_id}", err=True)
        _run(_words(self.start_command, node_id))

    def start_text(self, node_id: int) -> str:
        return shlex.join(_words(self.start_command, node_id))


def start_drill(
    brokers: Sequence[int],
    rack: str | None,
    *,
    kill_command: str | None,
    start_command: str | None,
    timeout_seconds: float,
    as_json: bool,
) -> None:
    """End brokers, compare with the forecast, and start them again; see `waybill kafka drill --help`."""
    config = load_streams()
    breaker = _breaker(config, kill_command, start_command)
    with connect_cluster(config) as cluster:
        inputs = read_inputs(config, cluster)
        expected = forecast(inputs.state, inputs.rules, _chosen(inputs, brokers, rack))
        if len(expected.lost) >= len(inputs.state.brokers):
            raise ConfigError("the drill would end every broker: leave one that can be asked for the outcome")
        report = run_drill(
            cluster, inputs.state, expected, inputs.rules.of_topic, breaker, timeout_seconds=timeout_seconds
        )
    if as_json:
        print_json(_drill_document(expected, report))
    else:
        _print_drill(expected, report, timeout_seconds)
    if not report.is_as_forecast or report.recovered_seconds is None:
        raise typer.Exit(1)


def _breaker(config: Config, kill_command: str | None, start_command: str | None) -> _Commands:
    """Return the commands that were given, or those of the local stack. Raises `ConfigError` if there are none."""
    if kill_command is not None and start_command is not None:
        return _Commands(kill_command, start_command)
    if kill_command is not None or start_command is not None:
        raise ConfigError("give both --kill-with and --start-with, or neither: then the drill is for the local stack")
    endpoint = KafkaEndpoint.of(find_connection(config.kafka.connection))
    if not all(_is_local(server) for server in endpoint.bootstrap_servers):
        raise ConfigError(
            f"Kafka at {endpoint.where} is not the local stack, and a drill ends brokers. For another cluster, give "
            f"the commands: --kill-with 'ssh broker-{{broker}} systemctl kill -s KILL kafka' --start-with '…'"
        )
    if importlib.util.find_spec("devstack") is None:
        raise ConfigError("the local stack is not installed here; give --kill-with and --start-with")
    devstack = f"{shlex.quote(sys.executable)} -m devstack"
    return _Commands(f"{devstack} kill-broker {{broker}}", f"{devstack} start-broker {{broker}}")


def _is_local(server: str) -> bool:
    host = server.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _words(command: str, node_id: int) -> list[str]:
    return [word.replace("{broker}", str(node_id)) for word in shlex.split(command)]


def _run(words: Sequence[str]) -> None:
    """Run the command of a broker. Raises `ConfigError` if it fails."""
    try:
        ran = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ConfigError(f"{shlex.join(words)}: {error}") from error
    if ran.returncode:
        output = (ran.stderr or ran.stdout).strip()
        raise ConfigError(f"{shlex.join(words)} ended with code {ran.returncode}: {output}")


def _print_drill(expected: Forecast, report: DrillReport, timeout_seconds: float) -> None:
    wrong = [outcome for outcome in report.outcomes if not outcome.is_as_forecast]
    effects = Counter(each.effect for each in expected.partitions)
    seen = Counter(outcome.effect for outcome in report.outcomes)
    columns = [PrintedColumn("effect"), PrintedColumn("forecast", figure=True), PrintedColumn("happened", figure=True)]
    print_table(
        columns,
        [[effect.title, count(effects[effect]), count(seen[effect])] for effect in sorted({*effects, *seen})],
    )
    typer.echo()
    for outcome in wrong[:_MOST_PARTITIONS]:
        typer.echo(
            f"{outcome.forecast.tp}: forecast {outcome.forecast.effect.title}, leader {outcome.forecast.leader}; "
            f"happened {outcome.effect.title}, leader {outcome.leader}"
        )
    if report.settled_seconds is not None:
        typer.echo(
            f"All {counted(len(report.outcomes), 'topic-partition')} were as forecast after "
            f"{report.settled_seconds:.1f} s."
        )
    else:
        typer.echo(f"{counted(len(wrong), 'topic-partition')} not as forecast after {timeout_seconds:g} s.")
    if report.recovered_seconds is None:
        typer.echo(f"The replicas were not in sync again within {timeout_seconds:g} s: see `waybill kafka what-if`.")
    else:
        typer.echo(f"All replicas were in sync again {report.recovered_seconds:.1f} s after the start.")


def _drill_document(expected: Forecast, report: DrillReport) -> dict[str, Any]:
    return {
        "lost": list(expected.lost),
        "is_as_forecast": report.is_as_forecast,
        "settled_seconds": report.settled_seconds,
        "recovered_seconds": report.recovered_seconds,
        "partitions": [
            {
                "topic": outcome.forecast.tp.topic,
                "partition": outcome.forecast.tp.partition,
                "forecast": {"effect": outcome.forecast.effect.title, "leader": outcome.forecast.leader},
                "happened": {"effect": outcome.effect.title, "leader": outcome.leader},
            }
            for outcome in report.outcomes
        ],
    }
