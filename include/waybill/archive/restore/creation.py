"""Create a missing topic of the target like the archived one, except for configs that would stop the restore.

The target's controller checks the topic first (`validate_only` of CreateTopics, KIP-525), so its actual version,
policies, brokers and defaults decide, not assumptions of this code. Each difference from the archived topic is a
warning, which the plan keeps:

- A config that the target refuses, such as one that its version does not know, is left out.
- `message.timestamp.type` is CreateTime while the restore runs: LogAppendTime would replace the archived timestamps.
  At the end, the archived value is set: the target keeps the type and the timestamps of batches that it has.
- `min.insync.replicas` above the number of replicas becomes that number: older brokers refuse every batch, and current
  ones treat both values alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from waybill.archive.restore.problem import RestoreProblem
from waybill.services.kafka.target import NewTopic, TargetCluster, TargetTopic

TIMESTAMP_TYPE, CREATE_TIME, APPEND_TIME = "message.timestamp.type", "CreateTime", "LogAppendTime"
_MIN_IN_SYNC = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class Creation:
    """A topic that is to be created."""

    topic: TargetTopic
    """The topic after its creation. Its `config` also holds the target's defaults, if the target states them."""
    is_described: bool
    """Whether the target stated the configs that the topic will have."""
    comes_back: Mapping[str, str | None]
    """The configs to set at the end of the restore; None: the target's default."""
    problems: tuple[RestoreProblem, ...]


def plan_creation(
    target: TargetCluster, name: str, partitions: int, replication_factor: int, archived: Mapping[str, str]
) -> Creation:
    """Return how to create a topic with the archived topic's own configs, without creating it.

    Raises `KafkaUnavailable` when the target does not answer.
    """
    config = dict(archived)
    answer = target.check_new_topic(name, partitions, replication_factor, config)
    problems: list[RestoreProblem] = []
    if answer.is_config_refused:
        problems += _leave_out_refused(target, name, partitions, replication_factor, config)
        answer = target.check_new_topic(name, partitions, replication_factor, config)
    if answer.refusal:
        problems.append(_refused(target, name, answer))
    known = dict(config if answer.config is None else answer.config)
    comes_back: dict[str, str | None] = {}
    if known.get(TIMESTAMP_TYPE) == APPEND_TIME:
        comes_back[TIMESTAMP_TYPE] = config.get(TIMESTAMP_TYPE)
        config[TIMESTAMP_TYPE] = known[TIMESTAMP_TYPE] = CREATE_TIME
        problems.append(
            _difference(
                f"topic {name!r} will be created with {TIMESTAMP_TYPE}={CREATE_TIME}, not {APPEND_TIME}, which would "
                f"replace the archived timestamps",
                f"It gets {TIMESTAMP_TYPE}={APPEND_TIME} back when everything is restored; the restored messages keep "
                f"their timestamps",
            )
        )
    wanted = int(known.get(_MIN_IN_SYNC, "1"))
    if answer.replicas is not None and wanted > answer.replicas > 0:
        config[_MIN_IN_SYNC] = known[_MIN_IN_SYNC] = str(answer.replicas)
        problems.append(
            _difference(
                f"topic {name!r} will be created with {_MIN_IN_SYNC}={answer.replicas}, not {wanted}: with "
                f"{answer.replicas} replicas, older brokers refuse every batch",
                f"Give --replication-factor {wanted} or more to keep it",
            )
        )
    topic = TargetTopic(name, "", partitions, known, config, frozenset(), answer.replicas, answer.replicas)
    return Creation(topic, answer.config is not None, comes_back, tuple(problems))


def _leave_out_refused(
    target: TargetCluster, name: str, partitions: int, replication_factor: int, config: dict[str, str]
) -> list[RestoreProblem]:
    """Remove each config that the target refuses even alone."""
    found = []
    for key, value in sorted(config.items()):
        answer = target.check_new_topic(name, partitions, replication_factor, {key: value})
        if answer.is_config_refused:
            del config[key]
            found.append(
                _difference(
                    f"topic {name!r} will be created without {key}={value} of the archived topic: the target refuses "
                    f"it ({answer.refusal})",
                    "Set what replaces it in the target's version, if the topic needs it",
                )
            )
    return found


def _refused(target: TargetCluster, name: str, answer: NewTopic) -> RestoreProblem:
    what = f"topic {name!r} cannot be created at {target.where}: {answer.refusal}"
    if answer.is_forbidden:
        return RestoreProblem(what, "Give the user the ACL Create on the topic, or create the topic yourself")
    if answer.is_config_refused:
        return RestoreProblem(what, "Create the topic yourself, with configs that the target takes")
    return RestoreProblem(
        what, "Give --replication-factor a number that the target's brokers can hold, or create the topic yourself"
    )


def _difference(what: str, remedy: str) -> RestoreProblem:
    return RestoreProblem(what, remedy, is_warning=True)
