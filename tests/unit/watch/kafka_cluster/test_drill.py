"""A drill starts all brokers that it ended, whatever fails meanwhile."""

from __future__ import annotations

import os
import signal
from typing import Any, cast

import pytest

from waybill.base.errors import ConfigError, KafkaUnavailable
from waybill.services.kafka.cluster import Cluster
from waybill.services.kafka.cluster_state import ClusterState
from waybill.watch.kafka_cluster import drill
from waybill.watch.kafka_cluster.drill import run_drill
from waybill.watch.kafka_cluster.what_if import Forecast, TopicRules

BEFORE = ClusterState("c", 1, {}, {})


class Brokers:
    """Ends and starts brokers. `broken`: those that do not start; `stubborn`: those that do not end."""

    def __init__(self, *, broken: tuple[int, ...] = (), stubborn: tuple[int, ...] = ()) -> None:
        self.broken, self.stubborn = broken, stubborn
        self.calls: list[str] = []

    def kill(self, node_id: int) -> None:
        self.calls.append(f"kill {node_id}")
        if node_id in self.stubborn:
            raise ConfigError(f"kill {node_id} ended with code 1")

    def start(self, node_id: int) -> None:
        self.calls.append(f"start {node_id}")
        if node_id in self.broken:
            raise ConfigError(f"start {node_id} ended with code 1")

    def start_text(self, node_id: int) -> str:
        return f"./start {node_id}"


def run(brokers: Brokers, monkeypatch: pytest.MonkeyPatch, wait: Any = lambda *_: ([], 0.0)) -> None:
    monkeypatch.setattr(drill, "_wait_for_forecast", wait)
    monkeypatch.setattr(drill, "_wait_for_recovery", lambda *_: 0.0)
    expected = Forecast((1, 2, 3), True, True, [], 0)
    run_drill(cast("Cluster", None), BEFORE, expected, lambda _: TopicRules(), brokers, timeout_seconds=1)


def test_broker_that_does_not_start_is_named_and_the_others_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(broken=(1,))
    with pytest.raises(ConfigError, match=r"broker 1 \(start 1 ended with code 1\): \./start 1") as raised:
        run(brokers, monkeypatch)
    assert brokers.calls[3:] == ["start 1", "start 2", "start 3"]
    assert "broker 2" not in str(raised.value)


def test_failing_comparison_starts_all_and_is_named_with_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise KafkaUnavailable("nobody answers")

    brokers = Brokers()
    with pytest.raises(KafkaUnavailable):
        run(brokers, monkeypatch, fail)
    assert brokers.calls[3:] == ["start 1", "start 2", "start 3"]
    with pytest.raises(ConfigError, match="The drill ended early: nobody answers"):
        run(Brokers(broken=(2,)), monkeypatch, fail)


def test_broker_that_does_not_end_is_started_with_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(stubborn=(2,))
    with pytest.raises(ConfigError, match="kill 2 ended with code 1"):
        run(brokers, monkeypatch)
    assert brokers.calls == ["kill 1", "kill 2", "start 1", "start 2"]


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit)]
)
def test_signal_starts_all_brokers_before_it_ends_the_drill(
    number: signal.Signals, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    brokers = Brokers()

    def wait(*_: Any) -> Any:
        os.kill(os.getpid(), number)
        return [], 0.0

    with pytest.raises(error):
        run(brokers, monkeypatch, wait)
    assert brokers.calls[3:] == ["start 1", "start 2", "start 3"]
    assert signal.getsignal(signal.SIGTERM) is handler
