"""Deliver the messages of a request step by step, to any kind of target.

A step is done when the target has its messages: then the worker stores the cursor after them. `open_delivery` returns
the delivery of a request, which continues from the stored state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple, Protocol

from waybill.base.errors import ReplayRefused
from waybill.config.connections import KafkaEndpoint, find_connection
from waybill.config.models import Config
from waybill.replay.requests.delivery.batches import cut_batches
from waybill.replay.requests.delivery.outcome import TargetUnavailable
from waybill.replay.requests.delivery.s3_objects import RequestObjects, deliver_objects
from waybill.replay.requests.delivery.signature import Keys
from waybill.replay.requests.delivery.webhook import (
    Delivered,
    Outcome,
    Refused,
    Rejection,
    Unavailable,
    WebhookDelivery,
    webhook_client,
)
from waybill.replay.requests.message import ReplayedMessage
from waybill.replay.requests.request import ReplayRequest, replay_of
from waybill.replay.requests.stored import RejectedMessage
from waybill.replay.requests.targets import KafkaTarget, S3Target, WebhookTarget
from waybill.services.store import Store

_TOPIC_MESSAGES = 2_000
_TOPIC_BYTES = 4 << 20


class DeliveryStep(NamedTuple):
    """Messages that are done: the target has each of them, or rejected it."""

    messages: int
    """The number of messages after the previous step."""
    rejections: tuple[RejectedMessage, ...] = ()


class Delivery(Protocol):
    """The delivery of one request.

    Its methods raise `TargetUnavailable`, or `ReplayRefused` if the delivery cannot go on.
    """

    @property
    def state(self) -> dict[str, Any]:
        """The state for the next worker, as JSON, after the messages of the previous steps."""
        ...

    def expected_messages(self) -> int:
        """Return how many messages the next step must have, because an earlier worker has begun it; 0: any number."""
        ...

    def steps(self, messages: Iterable[ReplayedMessage]) -> Iterator[DeliveryStep]:
        """Deliver the messages after those of the state, and yield each finished step. The call can be repeated."""
        ...

    def finish(self) -> None:
        """Tell the target that everything is delivered."""
        ...


@contextmanager
def open_delivery(
    config: Config,
    request: ReplayRequest,
    state: Mapping[str, Any],
    store: Store,
    *,
    save: Callable[[dict[str, Any]], None],
    pause: Callable[[float], None],
) -> Iterator[Delivery]:
    """Open the delivery of a request with the state of the previous worker; `{}` at first.

    `save` stores a state at once. `pause` waits for a number of seconds, keeps the claim in the meantime, and may
    raise.

    Raises `ReplayRefused` or `ConfigError` when there can be no delivery.
    """
    replay = replay_of(config)
    match request.requested.target:
        case WebhookTarget(url):
            keys = Keys.of(find_connection(replay.webhooks.connection))
            client = webhook_client(url, replay)
            try:
                webhook = WebhookDelivery(client, request.id, keys, replay, state.get("breaker"), pause=pause)
                limits = replay.webhooks.batch_messages, int(replay.webhooks.batch_bytes)
                yield _WebhookDelivery(webhook, request.id, limits, state, save)
            finally:
                client.close()
        case S3Target(compression):
            yield _ObjectDelivery(RequestObjects(store, request.id, compression), state)
        case KafkaTarget(connection, topic):
            # Checked again: the config may have changed since the request was created.
            if connection not in replay.kafka.connections:
                raise ReplayRefused(f"{connection!r} is no longer in replay.kafka.connections", "target.connection")
            from waybill.replay.requests.delivery.kafka_topic import TopicDelivery
            from waybill.services.kafka.target import TargetCluster as Cluster

            with Cluster(KafkaEndpoint.of(find_connection(connection))) as cluster:
                delivery = TopicDelivery(cluster, topic, state.get("topic"), keep_claim=lambda: pause(0.0))
                yield _TopicDelivery(delivery, save)


class _WebhookDelivery:
    def __init__(
        self,
        webhook: WebhookDelivery,
        request_id: str,
        limits: tuple[int, int],
        state: Mapping[str, Any],
        save: Callable[[dict[str, Any]], None],
    ) -> None:
        self._webhook, self._request_id, self._save = webhook, request_id, save
        self._max_messages, self._max_bytes = limits
        self._is_proved = bool(state.get("proved"))
        self._batch = int(state.get("batch", 0))

    @property
    def state(self) -> dict[str, Any]:
        return {"proved": self._is_proved, "batch": self._batch, "breaker": self._webhook.breaker.document()}

    def expected_messages(self) -> int:
        return 0

    def steps(self, messages: Iterable[ReplayedMessage]) -> Iterator[DeliveryStep]:
        if not self._is_proved:
            _check(self._webhook.prove_ownership())
            self._is_proved = True
            self._save(self.state)
        batches = cut_batches(
            messages, self._request_id, self._batch, max_messages=self._max_messages, max_bytes=self._max_bytes
        )
        for batch in batches:
            rejections = _check(self._webhook.deliver(batch))
            self._batch += 1
            yield DeliveryStep(len(batch.messages), rejections)

    def finish(self) -> None:
        """Do nothing: the webhook already has all messages."""


class _ObjectDelivery:
    def __init__(self, objects: RequestObjects, state: Mapping[str, Any]) -> None:
        self._objects = objects
        self._part = int(state.get("part", 0))

    @property
    def state(self) -> dict[str, Any]:
        return {"part": self._part}

    def expected_messages(self) -> int:
        return self._objects.count_messages(self._part)

    def steps(self, messages: Iterable[ReplayedMessage]) -> Iterator[DeliveryStep]:
        for part in deliver_objects(self._objects, messages, self._part):
            self._part = part.number + 1
            yield DeliveryStep(len(part.messages))

    def finish(self) -> None:
        self._objects.finish(self._part)


class _TopicDelivery:
    def __init__(self, topic: Any, save: Callable[[dict[str, Any]], None]) -> None:
        self._topic, self._save = topic, save

    @property
    def state(self) -> dict[str, Any]:
        return {"topic": self._topic.state}

    def expected_messages(self) -> int:
        return 0

    def steps(self, messages: Iterable[ReplayedMessage]) -> Iterator[DeliveryStep]:
        self._topic.prepare()
        self._save(self.state)  # before the first message is sent: the next worker must have the same producer id
        for part in _parts(messages):
            yield DeliveryStep(len(part), _rejected(self._topic.deliver(part)))

    def finish(self) -> None:
        """Do nothing: every step ends with the acknowledgement of the target's replicas."""


def _parts(messages: Iterable[ReplayedMessage]) -> Iterator[list[ReplayedMessage]]:
    source = iter(messages)
    while part := list(islice(_up_to_bytes(source), _TOPIC_MESSAGES)):
        yield part


def _up_to_bytes(source: Iterator[ReplayedMessage]) -> Iterator[ReplayedMessage]:
    size_bytes = 0
    for message in source:
        yield message
        size_bytes += len(message.key or b"") + len(message.value or b"")
        if size_bytes >= _TOPIC_BYTES:
            return


def _check(outcome: Outcome) -> tuple[RejectedMessage, ...]:
    match outcome:
        case Delivered(rejections):
            return _rejected(rejections)
        case Unavailable(reason, wait_seconds):
            raise TargetUnavailable(f"the webhook {reason}", wait_seconds)
        case Refused(reason):
            raise ReplayRefused(f"the webhook {reason}", "target")


def _rejected(rejections: Iterable[Rejection]) -> tuple[RejectedMessage, ...]:
    return tuple(
        RejectedMessage(
            each.message.topic_partition.topic, each.message.topic_partition.partition, each.message.offset, each.reason
        )
        for each in rejections
    )
