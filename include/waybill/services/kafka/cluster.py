"""A Kafka cluster through kafka-python: requests to the leaders of topic-partitions, with failover and timeouts.

kafka-python makes the connections (TCP, TLS, SASL, API versions, backoff). Its consumer is not used, since it decodes
every record. A request goes to the leader of its topic-partition. When a broker answers that it does not lead it, the
cluster refreshes the metadata and asks again, until the retry timeout. Every wait in this module has a timeout.

kafka-python's errors become Waybill's, which name the action that failed, the servers, the cause and what to check. An
error that no retry can remove (credentials, ACLs, certificates, an old broker) becomes a `ConfigError`, which names the
setting to correct. Every other error becomes `KafkaUnavailable`.
"""

from __future__ import annotations

import logging
import socket
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

from waybill.base.errors import ConfigError, KafkaUnavailable
from waybill.config.connections import KafkaEndpoint
from waybill.config.names import TopicPartition, is_topic
from waybill.records.batches.framing import DEFAULT_MAX_BATCH_BYTES
from waybill.services.kafka.transport import DirectConnectionManager, QuickSelector, TlsExpected, TlsRefused

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
BuildRequest = Callable[[list[TopicPartition]], Any]
"""Builds the request to one leader for some of its topic-partitions."""
ReadResponse = Callable[[Any], Iterable[tuple[TopicPartition, int, Answer]]]
"""Splits a response into topic-partition, error code and answer."""

CLIENT_ID = "waybill"
_STOP_TIMEOUT_MS = 10_000
_BACKOFF_SECONDS = 0.1
_MAX_BACKOFF_SECONDS = 1.0
_BRIEF_TIMEOUT_SECONDS = 3.0
_LEAST_WAIT_SECONDS = 0.5
"""The time for an answer that was requested shortly before the timeout."""
_ATTEMPTS_FOR_MISSING_TOPIC = 3
_ANY_BROKER_FRACTION = 4
_MAX_IN_FLIGHT_REQUESTS = 5
_DISCONNECTED = kafka_errors.KafkaConnectionError("disconnected when asked which brokers there are")


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of a topic-partition."""

    node_id: int
    """-1 while the topic-partition has no leader."""
    epoch: int
    """-1 if Kafka did not state it."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the cluster's metadata describe it."""

    name: str
    topic_id: str
    """'' before Kafka 2.8."""
    partitions: tuple[int, ...]


class Cluster:
    """Connections to one cluster. A context manager: it connects on entry. Use it from one thread at a time.

    `request_timeout` limits one request. `retry_timeout` limits all attempts of one call, and then the call raises
    `KafkaUnavailable`.
    """

    def __init__(
        self,
        endpoint: KafkaEndpoint,
        *,
        request_timeout: timedelta,
        retry_timeout: timedelta,
    ) -> None:
        self.servers = endpoint.where
        """The bootstrap servers, for messages."""
        self._endpoint = endpoint
        self._retry_timeout_seconds = retry_timeout.total_seconds()
        self._timeout_ms = int(request_timeout.total_seconds() * 1000)
        self._metadata = _MetadataCache(self.servers)
        security = _security_options(endpoint)
        self._net = NetworkSelector(client_id=CLIENT_ID, selector=QuickSelector)
        self._manager = DirectConnectionManager(
            self._net,
            bootstrap_servers=list(endpoint.bootstrap_servers),
            client_id=CLIENT_ID,
            request_timeout_ms=self._timeout_ms,
            socket_connection_setup_timeout_ms=self._timeout_ms,
            max_in_flight_requests_per_connection=_MAX_IN_FLIGHT_REQUESTS,
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
            cause: BaseException = error
            if isinstance(error, kafka_errors.KafkaTimeoutError):
                # A timeout hides the cause: raise the last connection error instead.
                cause = self._manager.last_failure or _DISCONNECTED
            raise self.translate("could not connect", cause) from error
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        try:
            # The IO thread ends within its current step, so this timeout is only reached on a stalled machine.
            self._net.stop(timeout_ms=_STOP_TIMEOUT_MS)
            self._manager.close()
            self._net.close()
        finally:
            self._manager.close_sockets()

    # --- metadata ---

    def describe_topics(
        self, names: Collection[str] | None, *, refused: dict[str, ConfigError] | None = None
    ) -> dict[str, Topic]:
        """Return the topics of these names that exist; with None, all topics. Also refreshes the known leaders.

        Raises `KafkaUnavailable` when no broker answers, and `ConfigError` when the user is not allowed to describe a
        topic. If `refused` is given, such topics are left out, and their errors are added to it.
        """
        action = "could not list topics"
        with self._translated_errors(action):
            for _ in self.attempts(action):
                try:
                    response = self._send_and_wait(None, _metadata_request(names))
                except kafka_errors.RetriableError as error:
                    logger.debug("metadata: %s", error)
                    continue
                self._manager.cluster.update_metadata(response)
                described, not_allowed = self._metadata.update(response)
                errors = {name: self.translate(action, error) for name, error in not_allowed.items()}
                if refused is None and errors:
                    raise next(iter(errors.values()))
                if refused is not None:
                    refused.update({name: error for name, error in errors.items() if isinstance(error, ConfigError)})
                return described
        raise AssertionError("unreachable")

    def leader(self, tp: TopicPartition) -> Leader | None:
        """Return the leader from the last metadata; None if the topic-partition is unknown or has no leader."""
        leader = self._metadata.leaders.get(tp)
        return None if leader is None or leader.node_id < 0 else leader

    def topic_id(self, topic: str) -> str:
        """Return a topic's id from the last metadata; '' if it is unknown."""
        return self._metadata.topics[topic].topic_id if topic in self._metadata.topics else ""

    # --- requests to leaders ---

    def ask_leaders(
        self,
        action: str,
        tps: Iterable[TopicPartition],
        build_request: BuildRequest,
        read_response: ReadResponse[Answer],
    ) -> dict[TopicPartition, Answer]:
        """Ask the leader of each topic-partition until each has answered, and return the answers.

        Raises `KafkaUnavailable` at the retry timeout, and `ConfigError` when Kafka refuses access.
        """
        answers: dict[TopicPartition, Answer] = {}
        self._ask_all(action, tps, build_request, read_response, answers, self._retry_timeout_seconds)
        return answers

    def ask_leaders_briefly(
        self,
        action: str,
        tps: Iterable[TopicPartition],
        build_request: BuildRequest,
        read_response: ReadResponse[Answer],
    ) -> dict[TopicPartition, Answer]:
        """Ask the leaders like `ask_leaders`, but for 3 seconds at most, and return the answers until then."""
        answers: dict[TopicPartition, Answer] = {}
        timeout_seconds = min(_BRIEF_TIMEOUT_SECONDS, self._retry_timeout_seconds)
        try:
            self._ask_all(action, tps, build_request, read_response, answers, timeout_seconds)
        except KafkaUnavailable as error:
            logger.warning("%s; continuing without these topic-partitions", error)
        return answers

    def _ask_all(
        self,
        action: str,
        tps: Iterable[TopicPartition],
        build_request: BuildRequest,
        read_response: ReadResponse[Answer],
        answers: dict[TopicPartition, Answer],
        timeout_seconds: float,
    ) -> None:
        """Fill `answers`, so that the caller has the answers that came before an error."""
        missing = set(tps)
        if not missing:
            return
        deadline = time.monotonic() + timeout_seconds
        for attempt, _ in enumerate(self.attempts(f"{action} ({_list_briefly(missing)})", timeout_seconds)):
            if attempt or any(tp not in self._metadata.leaders for tp in missing):
                self._refresh_leaders(action, missing, attempt)
            # Send to all leaders at once, so that a leader that does not answer does not delay the others.
            asked = [
                (node_id, self.send(node_id, build_request(group))) for node_id, group in self._group_by_leader(missing)
            ]
            for node_id, future in asked:
                wait_seconds = max(_LEAST_WAIT_SECONDS, deadline - time.monotonic())
                for tp, code, answer in self._read_leader(action, node_id, future, wait_seconds, read_response):
                    error = kafka_errors.for_code(code)
                    if error is kafka_errors.NoError:
                        answers[tp] = answer
                        missing.discard(tp)
                    elif not issubclass(error, kafka_errors.RetriableError):
                        raise self.translate(f"{action} ({tp})", error())
            if not missing:
                return
        raise AssertionError("unreachable")

    def _refresh_leaders(self, action: str, tps: Collection[TopicPartition], attempt: int) -> None:
        topics = {tp.topic for tp in tps}
        unknown = topics - self.describe_topics(topics).keys()
        # A broker that has just started may not know all topics yet, so ask more than once.
        if unknown and attempt >= _ATTEMPTS_FOR_MISSING_TOPIC:
            raise KafkaUnavailable(f"Kafka at {self.servers}: {action}: there is no topic {sorted(unknown)[0]!r}")

    def _read_leader(
        self,
        action: str,
        node_id: int,
        future: Future[Any],
        wait_seconds: float,
        read_response: ReadResponse[Answer],
    ) -> Iterable[tuple[TopicPartition, int, Answer]]:
        try:
            return read_response(self.wait(future, wait_seconds))
        except kafka_errors.RetriableError as error:
            logger.debug("%s: node %s: %s", action, node_id, error)
            return ()
        except kafka_errors.KafkaError as error:
            raise self.translate(action, error) from error

    def _group_by_leader(self, tps: Iterable[TopicPartition]) -> list[tuple[int, list[TopicPartition]]]:
        groups: dict[int, list[TopicPartition]] = {}
        for tp in sorted(tps):
            leader = self.leader(tp)
            if leader is not None:
                groups.setdefault(leader.node_id, []).append(tp)
        return list(groups.items())

    # --- one request ---

    def send(self, node_id: int | None, request: Any) -> Future[Any]:
        """Send a request without waiting. The future gets the response or kafka-python's error.

        With `node_id` None the request goes to any broker.
        """
        future: Future[Any] = Future()
        try:
            self._manager.call_soon(self._deliver, future, node_id, request)
        except Exception as error:  # the IO thread has ended, and the call raises the error that ended it
            future.set_exception(kafka_errors.KafkaConnectionError(error))
        return future

    def wait(self, future: Future[Any], timeout_seconds: float | None = None) -> Any:
        """Wait for the response to `send` and return it. Raises kafka-python's errors.

        `timeout_seconds`: the longest wait; None: the timeout of one request.
        """
        # The request has its own timeout; this one is for the case that the IO thread has died.
        longest_seconds = 2 * self._timeout_ms / 1000
        is_brief = timeout_seconds is not None and timeout_seconds < longest_seconds
        try:
            return future.result(timeout=timeout_seconds if is_brief else longest_seconds)
        except TimeoutError:
            why = "no answer in time" if is_brief else "no answer from kafka-python's IO thread"
            raise kafka_errors.KafkaTimeoutError(why) from None

    def open_socket(self, node_id: int) -> Future[socket.socket]:
        """Connect to a broker and authenticate, without waiting. The future gets the socket or kafka-python's error.

        The socket is non-blocking, and is used only by the caller. It is closed with the cluster at the latest.
        """
        future: Future[socket.socket] = Future()
        try:
            self._manager.call_soon(self._open_socket, future, node_id)
        except Exception as error:  # as in `send`
            future.set_exception(kafka_errors.KafkaConnectionError(error))
        return future

    async def _open_socket(self, future: Future[socket.socket], node_id: int) -> None:
        try:
            future.set_result(await self._manager.open_socket(node_id))
        except OSError as error:  # for example, a host name that does not resolve
            future.set_exception(kafka_errors.KafkaConnectionError(error))
        except BaseException as error:  # raised in the thread that uses the socket
            future.set_exception(error)

    def _send_and_wait(self, node_id: int | None, request: Any) -> Any:
        return self.wait(self.send(node_id, request))

    async def _deliver(self, future: Future[Any], node_id: int | None, request: Any) -> None:
        try:
            future.set_result(await self._send(node_id, request))
        except BaseException as error:  # raised in the thread that waits for the future
            future.set_exception(error)

    async def _send(self, node_id: int | None, request: Any) -> Any:
        # If any broker can answer, use a shorter timeout for each, so that another broker can be tried.
        timeout_ms = self._timeout_ms if node_id is not None else self._timeout_ms // _ANY_BROKER_FRACTION
        chosen = self._manager.least_loaded_node() if node_id is None else node_id
        try:
            sent = self._manager.send(request, node_id=chosen, request_timeout_ms=timeout_ms)
            answer = await self._manager.wait_for(sent, timeout_ms)
        except OSError as error:  # for example, a host name that does not resolve
            self._manager.note_answer(chosen, answered=False)
            raise kafka_errors.KafkaConnectionError(error) from error
        except kafka_errors.RetriableError:
            self._manager.note_answer(chosen, answered=False)
            raise
        except kafka_errors.UnknownBrokerIdError as error:
            # Metadata come from several brokers, and one of them still listed this broker, although it has left the
            # cluster.
            raise kafka_errors.KafkaConnectionError(f"broker {chosen} is not in the cluster") from error
        self._manager.note_answer(chosen, answered=True)
        return answer

    # --- retries and errors ---

    def attempts(self, action: str, timeout_seconds: float | None = None) -> Iterator[None]:
        """Yield once for each attempt, with exponential backoff in between; at the timeout raise `KafkaUnavailable`.

        The default of `timeout_seconds` is the retry timeout.
        """
        if timeout_seconds is None:
            timeout_seconds = self._retry_timeout_seconds
        deadline, pause = time.monotonic() + timeout_seconds, _BACKOFF_SECONDS
        while True:
            yield
            if time.monotonic() + pause > deadline:
                raise KafkaUnavailable(f"Kafka at {self.servers}: {action}: no usable answer for {timeout_seconds:g} s")
            time.sleep(pause)
            pause = min(2 * pause, _MAX_BACKOFF_SECONDS)

    def translate(self, action: str, error: BaseException, acl: str | None = None) -> ConfigError | KafkaUnavailable:
        """Return Waybill's error for one of kafka-python's; see `translate_error`."""
        return translate_error(action, error, self._endpoint, acl)

    @contextmanager
    def _translated_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except kafka_errors.KafkaError as error:
            raise self.translate(action, error) from error


class _MetadataCache:
    """Topics and leaders from the metadata responses so far."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self.topics: dict[str, Topic] = {}
        self.leaders: dict[TopicPartition, Leader] = {}

    def update(self, response: Any) -> tuple[dict[str, Topic], dict[str, kafka_errors.AuthorizationError]]:
        """Keep a response's topics. Return them, and the errors of topics that the user is not allowed to describe."""
        described: dict[str, Topic] = {}
        refused: dict[str, kafka_errors.AuthorizationError] = {}
        for metadata in response.topics:
            error = kafka_errors.for_code(metadata.error_code)
            if issubclass(error, kafka_errors.AuthorizationError):
                refused[metadata.name] = error(metadata.name)
            elif error is not kafka_errors.NoError:
                logger.debug("topic %s: %s", metadata.name, error.__name__)
            elif is_topic(metadata.name):
                described[metadata.name] = self._read_topic(metadata)
            else:
                logger.warning("Kafka at %s lists a topic with invalid name %r; ignored", self._servers, metadata.name)
        self.topics |= described
        return described, refused

    def _read_topic(self, metadata: Any) -> Topic:
        for partition in metadata.partitions:
            epoch = -1 if partition.leader_epoch is None else partition.leader_epoch
            tp = TopicPartition(metadata.name, partition.partition_index)
            self.leaders[tp] = Leader(partition.leader_id, epoch)
        topic_id = "" if metadata.topic_id is None or not metadata.topic_id.int else str(metadata.topic_id)
        numbers = tuple(sorted(partition.partition_index for partition in metadata.partitions))
        return Topic(metadata.name, topic_id, numbers)


def _metadata_request(names: Collection[str] | None) -> Any:
    topics = None if names is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(
        topics=topics,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def _security_options(endpoint: KafkaEndpoint) -> dict[str, Any]:
    """Return the endpoint's security as options of kafka-python. Raises `ConfigError` for an unusable file."""
    options: dict[str, Any] = {"security_protocol": endpoint.protocol.value}
    if endpoint.tls is not None:
        options["ssl_context"] = endpoint.tls.context()
    if endpoint.sasl is not None:
        options["sasl_mechanism"] = endpoint.sasl.mechanism.value
        options["sasl_plain_username"] = endpoint.sasl.username
        options["sasl_plain_password"] = endpoint.sasl.password
        _keep_password_out_of_logs()
    return options


def _keep_password_out_of_logs() -> None:
    """Raise the level of the loggers that print every request at DEBUG: one of the requests holds the password."""
    for name in ("kafka.net.connection", "kafka.protocol.parser"):
        library_logger = logging.getLogger(name)
        library_logger.setLevel(max(library_logger.getEffectiveLevel(), logging.INFO))


def _list_briefly(tps: Collection[TopicPartition]) -> str:
    first = ", ".join(str(tp) for tp in sorted(tps)[:3])
    return first if len(tps) <= 3 else f"{first} and {len(tps) - 3} more"


_TOO_OLD = kafka_errors.IncompatibleBrokerVersion | kafka_errors.UnsupportedVersionError


def translate_error(
    action: str, error: BaseException, endpoint: KafkaEndpoint, acl: str | None = None
) -> ConfigError | KafkaUnavailable:
    """Return Waybill's error for one of kafka-python's. `action` states what failed: "could not list topics".

    `acl`: the ACL for the action, such as "Alter on the cluster"; by default, the ACLs for reading a topic.
    """
    message = f"Kafka at {endpoint.where}: {action}: {_describe(error)}"
    remedy = _find_remedy(error, endpoint, acl)
    if remedy is not None:
        return ConfigError(f"{message}. {remedy}")
    return KafkaUnavailable(f"{message}{_protocol_hint(error, endpoint)}")


def _describe(error: BaseException) -> str:
    text = str(error.args[0]).removeprefix(f"{type(error).__name__}: ") if error.args else str(error)
    if isinstance(error, kafka_errors.AuthorizationError):
        return f"not allowed ({type(error).__name__}: {text})"
    if isinstance(error, kafka_errors.SaslAuthenticationFailedError):
        return f"the credentials are refused ({text})"
    if isinstance(error, _TOO_OLD):
        return f"the brokers are too old ({text})"
    return text


def _find_remedy(error: BaseException, endpoint: KafkaEndpoint, acl: str | None) -> str | None:
    """Return the remedy for an error that no retry can remove; None for every other error."""
    connection = endpoint.remedy
    if isinstance(error, kafka_errors.AuthorizationError):
        user = f"user {endpoint.sasl.username!r}" if endpoint.sasl else "the user"
        if acl is not None:
            return f"Give {user} of {connection} the ACL {acl}"
        resource = "group" if isinstance(error, kafka_errors.GroupAuthorizationFailedError) else "topic"
        return f"Give {user} of {connection} the ACLs Describe and Read on the {resource}"
    if isinstance(error, kafka_errors.SaslAuthenticationFailedError):
        assert endpoint.sasl is not None
        return f"Check user {endpoint.sasl.username!r}, the password and sasl.mechanism of {connection}"
    if isinstance(error, kafka_errors.UnsupportedSaslMechanismError | kafka_errors.IllegalSaslStateError):
        return f"Check sasl.mechanism and security.protocol of {connection}: the port's listener has other ones"
    if isinstance(error, TlsRefused):
        return f"Check ssl.ca.location, ssl.certificate.location, the host name and security.protocol of {connection}"
    if isinstance(error, TlsExpected):
        return f"Set security.protocol SSL or SASL_SSL in {connection}; it is {endpoint.protocol}"
    if isinstance(error, _TOO_OLD):
        return "Waybill needs Kafka 2.8 or newer"
    return None


def _protocol_hint(error: BaseException, endpoint: KafkaEndpoint) -> str:
    """Return a hint for a connection that the server closed without a reason: often its port has another protocol."""
    if "disconnected" not in str(error) and "handshake" not in str(error):
        return ""
    return f". Is security.protocol {endpoint.protocol} of {endpoint.remedy} the protocol of this port?"
