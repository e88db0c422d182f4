"""A Kafka cluster as kafka-python sees it: requests to the leaders of topic-partitions, with failover and deadlines.

kafka-python does the connections (TCP, TLS, SASL, API versions, back-off); its consumer is not used, since it decodes
records one by one. A request goes to the leader of its topic-partition; an answer that says "not me" refreshes the
metadata and asks again, until the deadline. Nothing here waits without a timeout.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, TypeVar

from kafka import errors as kafka_errors
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import MetadataRequest

from waybill.connections import KafkaEndpoint
from waybill.errors import ConfigError, KafkaUnavailable
from waybill.names import TopicPartition, is_topic
from waybill.records.framing import DEFAULT_MAX_BATCH_BYTES
from waybill.sources.transport import DirectConnectionManager, TlsExpected, TlsRefused

__all__ = ["Cluster", "Leader", "Topic"]

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_CLIENT_ID = "waybill"
_BACKOFF_SECONDS = 0.1
_MAX_BACKOFF_SECONDS = 1.0
_BRIEF_SECONDS = 3.0
_TRIES_FOR_A_TOPIC = 3
_UNANSWERED = kafka_errors.KafkaConnectionError("disconnected when asked which brokers there are")
_ANY_BROKER_FRACTION = 4


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a topic-partition."""

    node_id: int
    """-1: nobody, for now."""
    epoch: int
    """-1: Kafka did not say."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the metadata describe it."""

    name: str
    topic_id: str
    """'' before Kafka 2.8."""
    partitions: tuple[int, ...]


class Cluster:
    """Connections to one cluster. A context manager: it connects on entry. For one thread at a time.

    `request_timeout`: how long one broker may take to answer. `patience`: how long answers may stay away, over all
    retries, until `KafkaUnavailable` is raised.
    """

    def __init__(self, endpoint: KafkaEndpoint, *, request_timeout: timedelta, patience: timedelta) -> None:
        self.servers = endpoint.where
        """For messages."""
        self._endpoint = endpoint
        self.patience_seconds = patience.total_seconds()
        self._timeout_ms = int(request_timeout.total_seconds() * 1000)
        self._leaders: dict[TopicPartition, Leader] = {}
        self._topics: dict[str, Topic] = {}
        security = _security(endpoint)
        self._net = NetworkSelector(client_id=_CLIENT_ID)
        self._manager = DirectConnectionManager(
            self._net,
            bootstrap_servers=list(endpoint.bootstrap_servers),
            client_id=_CLIENT_ID,
            request_timeout_ms=self._timeout_ms,
            socket_connection_setup_timeout_ms=self._timeout_ms,
            reconnect_backoff_max_ms=int(_MAX_BACKOFF_SECONDS * 1000),
            receive_message_max_bytes=DEFAULT_MAX_BATCH_BYTES + (1 << 20),
            **security,
        )

    def __enter__(self) -> Self:
        self._net.start()
        try:
            self._manager.bootstrap(self._timeout_ms)
        except kafka_errors.KafkaError as error:
            self.close()
            # That time was up for many tries says nothing; the last of them says why.
            timed_out = isinstance(error, kafka_errors.KafkaTimeoutError)
            reason = (self._manager.last_failure or _UNANSWERED) if timed_out else error
            raise self.failure("could not connect", reason) from error
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._net.stop(timeout_ms=self._timeout_ms)
        self._manager.close()
        self._net.close()

    # --- metadata ---

    def describe(self, topics: Collection[str] | None) -> dict[str, Topic]:
        """The topics of those names that exist; all there are for None. Refreshes what is known of their leaders.

        Raises `ConfigError` when a topic may not be described, `KafkaUnavailable` when no broker answers.
        """
        wanted = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
        with self._mapped("could not list topics"):
            for _ in self.tries("could not list topics"):
                try:
                    response = self._ask_node(None, _metadata_request(wanted))
                except kafka_errors.RetriableError as error:
                    logger.debug("metadata: %s", error)
                    continue
                self._manager.cluster.update_metadata(response)
                return dict(self._read_topics(response))
        raise AssertionError("unreachable")

    def _read_topics(self, response: Any) -> Iterator[tuple[str, Topic]]:
        for found in response.topics:
            error = kafka_errors.for_code(found.error_code)
            if issubclass(error, kafka_errors.AuthorizationError):
                raise error(found.name)
            if error is not kafka_errors.NoError:
                logger.debug("topic %s: %s", found.name, error.__name__)
                continue
            if not is_topic(found.name):
                logger.warning(
                    "Kafka at %s names a topic %r, which it does not allow; ignored", self.servers, found.name
                )
                continue
            for partition in found.partitions:
                epoch = -1 if partition.leader_epoch is None else partition.leader_epoch
                self._leaders[TopicPartition(found.name, partition.partition_index)] = Leader(
                    partition.leader_id, epoch
                )
            topic_id = "" if found.topic_id is None or not found.topic_id.int else str(found.topic_id)
            numbers = tuple(sorted(partition.partition_index for partition in found.partitions))
            self._topics[found.name] = Topic(found.name, topic_id, numbers)
            yield found.name, self._topics[found.name]

    def leader(self, tp: TopicPartition) -> Leader | None:
        """Who leads a topic-partition, as last heard; None if nobody does or it is unknown."""
        leader = self._leaders.get(tp)
        return None if leader is None or leader.node_id < 0 else leader

    def topic_id(self, topic: str) -> str:
        """A topic's id as last heard; '' if there is none."""
        return self._topics[topic].topic_id if topic in self._topics else ""

    # --- requests ---

    def ask_leaders(
        self,
        what: str,
        tps: Iterable[TopicPartition],
        request: Callable[[list[TopicPartition]], Any],
        read: Callable[[Any], Iterable[tuple[TopicPartition, int, Answer]]],
    ) -> dict[TopicPartition, Answer]:
        """Ask the leader of each topic-partition, until each has answered.

        `request` builds the request to one leader, `read` takes an answer apart into topic-partition, error code and
        answer. Raises `KafkaUnavailable` when patience ends and `ConfigError` when Kafka refuses access.
        """
        answers: dict[TopicPartition, Answer] = {}
        self._ask_all(what, tps, request, read, answers, self.patience_seconds)
        return answers

    def ask_leaders_briefly(
        self,
        what: str,
        tps: Iterable[TopicPartition],
        request: Callable[[list[TopicPartition]], Any],
        read: Callable[[Any], Iterable[tuple[TopicPartition, int, Answer]]],
    ) -> dict[TopicPartition, Answer]:
        """`ask_leaders`, without those that do not answer soon: nobody waits long for a leader that is away."""
        answers: dict[TopicPartition, Answer] = {}
        try:
            self._ask_all(what, tps, request, read, answers, min(_BRIEF_SECONDS, self.patience_seconds))
        except KafkaUnavailable as error:
            logger.warning("%s; going on without", error)
        return answers

    def _ask_all(
        self,
        what: str,
        tps: Iterable[TopicPartition],
        request: Callable[[list[TopicPartition]], Any],
        read: Callable[[Any], Iterable[tuple[TopicPartition, int, Answer]]],
        answers: dict[TopicPartition, Answer],
        patience_seconds: float,
    ) -> None:
        """Ask until all `answers` are there."""
        missing = set(tps)
        if not missing:
            return
        for number, _ in enumerate(self.tries(f"{what} ({_some(missing)})", patience_seconds)):
            if number or any(tp not in self._leaders for tp in missing):
                topics = {tp.topic for tp in missing}
                # More than once: a broker that has just started knows fewer topics than there are.
                if (gone := topics - self.describe(topics).keys()) and number >= _TRIES_FOR_A_TOPIC:
                    raise KafkaUnavailable(f"Kafka at {self.servers}: {what}: there is no topic {sorted(gone)[0]!r}")
            for node_id, group in self._by_leader(missing):
                for tp, code, answer in self._ask(what, node_id, request(group), read):
                    error = kafka_errors.for_code(code)
                    if error is kafka_errors.NoError:
                        answers[tp] = answer
                        missing.discard(tp)
                    elif not issubclass(error, kafka_errors.RetriableError):
                        raise self.failure(f"{what} ({tp})", error())
            if not missing:
                return
        raise AssertionError("unreachable")

    def _ask(
        self, what: str, node_id: int, request: Any, read: Callable[[Any], Iterable[tuple[TopicPartition, int, Answer]]]
    ) -> Iterable[tuple[TopicPartition, int, Answer]]:
        try:
            return read(self._ask_node(node_id, request))
        except kafka_errors.RetriableError as error:
            logger.debug("%s: node %s: %s", what, node_id, error)
            return ()
        except kafka_errors.KafkaError as error:
            raise self.failure(what, error) from error

    def _by_leader(self, tps: Iterable[TopicPartition]) -> list[tuple[int, list[TopicPartition]]]:
        groups: dict[int, list[TopicPartition]] = {}
        for tp in sorted(tps):
            leader = self.leader(tp)
            if leader is not None:
                groups.setdefault(leader.node_id, []).append(tp)
        return list(groups.items())

    def send(self, node_id: int | None, request: Any) -> Future[Any]:
        """Send a request and go on; the response, or kafka-python's error, comes by the future."""
        out: Future[Any] = Future()
        try:
            self._manager.call_soon(self._deliver, out, node_id, request)
        except Exception as error:  # the IO thread has ended: it raises whatever ended it
            out.set_exception(kafka_errors.KafkaConnectionError(error))
        return out

    async def _deliver(self, out: Future[Any], node_id: int | None, request: Any) -> None:
        try:
            out.set_result(await self._send(node_id, request))
        except BaseException as error:  # it belongs to whoever waits for it
            out.set_exception(error)

    async def _send(self, node_id: int | None, request: Any) -> Any:
        # Any broker can answer a question that goes to none in particular: one that does not is soon left alone.
        timeout_ms = self._timeout_ms if node_id is not None else self._timeout_ms // _ANY_BROKER_FRACTION
        try:
            sent = self._manager.send(request, node_id=node_id, request_timeout_ms=timeout_ms)
            return await self._manager.wait_for(sent, timeout_ms)
        except OSError as error:  # a name that does not resolve, for one
            raise kafka_errors.KafkaConnectionError(error) from error

    def _ask_node(self, node_id: int | None, request: Any) -> Any:
        """Send a request and wait for the response. Raises kafka-python's errors."""
        return self.response(self.send(node_id, request))

    def response(self, future: Future[Any]) -> Any:
        """Wait for a response. Raises kafka-python's errors."""
        try:
            # Its own timeout is the one that counts; this one is in case that the IO thread has died.
            return future.result(timeout=2 * self._timeout_ms / 1000)
        except TimeoutError:
            raise kafka_errors.KafkaTimeoutError("no answer from kafka-python's IO thread") from None

    def tries(self, what: str, patience_seconds: float | None = None) -> Iterator[None]:
        """Yield until patience ends, with pauses; then raise `KafkaUnavailable`."""
        patience_seconds = self.patience_seconds if patience_seconds is None else patience_seconds
        end, pause = time.monotonic() + patience_seconds, _BACKOFF_SECONDS
        while True:
            yield
            if time.monotonic() + pause > end:
                raise KafkaUnavailable(f"Kafka at {self.servers}: {what}: no answer of use for {patience_seconds:g} s")
            time.sleep(pause)
            pause = min(2 * pause, _MAX_BACKOFF_SECONDS)

    @contextmanager
    def _mapped(self, what: str) -> Iterator[None]:
        try:
            yield
        except kafka_errors.KafkaError as error:
            raise self.failure(what, error) from error

    def failure(self, what: str, error: BaseException) -> ConfigError | KafkaUnavailable:
        """Our error for kafka-python's: what failed, where, why, and what to look at."""
        return _failure(f"Kafka at {self.servers}: {what}", error, self._endpoint)


def _metadata_request(topics: list[Any] | None) -> Any:
    return MetadataRequest(
        topics=topics,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def _security(endpoint: KafkaEndpoint) -> dict[str, Any]:
    """The endpoint's security as kafka-python's options. Raises `ConfigError` when a file of it cannot be used."""
    options: dict[str, Any] = {"security_protocol": endpoint.protocol.value}
    if endpoint.tls is not None:
        options["ssl_context"] = endpoint.tls.context()
    if endpoint.sasl is not None:
        options["sasl_mechanism"] = endpoint.sasl.mechanism.value
        options["sasl_plain_username"] = endpoint.sasl.username
        options["sasl_plain_password"] = endpoint.sasl.password
        _keep_out_of_logs()
    return options


def _keep_out_of_logs() -> None:
    """kafka-python logs every request at the level DEBUG, and the password is in one."""
    for name in ("kafka.net.connection", "kafka.protocol.parser"):
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.getEffectiveLevel(), logging.INFO))


def _failure(what: str, error: BaseException, endpoint: KafkaEndpoint) -> ConfigError | KafkaUnavailable:
    """Our error for one of kafka-python's. `ConfigError` where trying again cannot help."""
    remedy = _remedy(error, endpoint)
    if remedy is not None:
        return ConfigError(f"{what}: {_reason(error)}. {remedy}")
    return KafkaUnavailable(f"{what}: {_reason(error)}{_hint(error, endpoint)}")


def _reason(error: BaseException) -> str:
    said = str(error.args[0]).removeprefix(f"{type(error).__name__}: ") if error.args else str(error)
    if isinstance(error, kafka_errors.AuthorizationError):
        return f"not allowed ({type(error).__name__}: {said})"
    if isinstance(error, kafka_errors.SaslAuthenticationFailedError):
        return f"the credentials are refused ({said})"
    if isinstance(error, kafka_errors.IncompatibleBrokerVersion | kafka_errors.UnsupportedVersionError):
        return f"the brokers are too old ({said})"
    return said


def _remedy(error: BaseException, endpoint: KafkaEndpoint) -> str | None:
    """What to do about an error that goes away by no trying again; None for others."""
    where = endpoint.remedy
    if isinstance(error, kafka_errors.AuthorizationError):
        user = f"user {endpoint.sasl.username!r}" if endpoint.sasl else "the user"
        what = "group" if isinstance(error, kafka_errors.GroupAuthorizationFailedError) else "topic"
        return f"Give {user} of {where} the ACLs Describe and Read on the {what}"
    if isinstance(error, kafka_errors.SaslAuthenticationFailedError):
        assert endpoint.sasl is not None
        return f"Check user {endpoint.sasl.username!r}, the password and sasl.mechanism of {where}"
    if isinstance(error, kafka_errors.UnsupportedSaslMechanismError | kafka_errors.IllegalSaslStateError):
        return f"Check sasl.mechanism and security.protocol of {where}: the port's listener takes others"
    if isinstance(error, TlsRefused):
        return f"Check ssl.ca.location, ssl.certificate.location, the host's name and security.protocol of {where}"
    if isinstance(error, TlsExpected):
        return f"Set security.protocol SSL or SASL_SSL in {where}; it is {endpoint.protocol}"
    if isinstance(error, kafka_errors.IncompatibleBrokerVersion | kafka_errors.UnsupportedVersionError):
        return "Kafka 2.8 or newer is needed"
    return None


def _hint(error: BaseException, endpoint: KafkaEndpoint) -> str:
    """A server that closes the connection says no more: often it speaks another protocol."""
    if "disconnected" not in str(error) and "handshake" not in str(error):
        return ""
    return f". Is security.protocol {endpoint.protocol} of {endpoint.remedy} what the port speaks?"


def _some(tps: Collection[TopicPartition]) -> str:
    first = ", ".join(str(tp) for tp in sorted(tps)[:3])
    return first if len(tps) <= 3 else f"{first} and {len(tps) - 3} more"
