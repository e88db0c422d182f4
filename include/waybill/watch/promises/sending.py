"""Send the messages of a watch: each channel on its own, within a time.

A failure of one channel does not affect the others. Each channel has a thread, since a slow server would delay the
messages to other channels, and a watch must end before its claim of the messages expires: otherwise another watch would
send them again. So messages that are not sent in time return to the outbox, and after a few failures in a row the
remaining messages of a channel wait for the next watch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from waybill.base.errors import UnexpectedFailure, WaybillError
from waybill.config.connections.masking import masked_stack_trace, without_urls
from waybill.config.models import Config
from waybill.watch.incidents.incident import IncidentBook, Notification
from waybill.watch.incidents.rules import CLAIM
from waybill.watch.notify.channels import FindConnection, ping, send
from waybill.watch.notify.http import ChannelFailed
from waybill.watch.notify.message import ChannelMessage

logger = logging.getLogger(__name__)

BEGIN_SECONDS = CLAIM.total_seconds() * 0.5
"""After this time since the first message, no other message is started."""
END_SECONDS = CLAIM.total_seconds() * 0.8
"""Messages that are still being sent after this time count as failed."""
_MOST_FAILURES = 3
"""Failures in a row after which a channel is left. The messages may be the cause, so the next watch begins with
others."""


@dataclass(slots=True)
class Sent:
    """The outcomes of the messages that a watch claimed."""

    results: dict[str, str | None] = field(default_factory=dict)
    """By the message's id: None if the message was sent, else why it failed."""
    untried: set[str] = field(default_factory=set)
    """The ids of messages that the watch did not try to send."""
    unexpected: list[str] = field(default_factory=list)
    """Unexpected exceptions."""

    @property
    def failed(self) -> list[str]:
        """Return why messages were not sent."""
        return [error for error in self.results.values() if error is not None]

    @property
    def count(self) -> int:
        """Return how many messages were sent."""
        return len(self.results) - len(self.failed)


def send_all(
    config: Config,
    book: IncidentBook,
    claimed: Sequence[Notification],
    now_ms: int,
    find: FindConnection,
    clock: Callable[[], float] = time.monotonic,
) -> Sent:
    """Send messages: one after the other within a channel. `clock`: seconds."""
    by_channel: dict[str, list[Notification]] = {}
    for notification in claimed:
        by_channel.setdefault(notification.channel, []).append(notification)
    began = clock()
    channels = [_ChannelSending(config, book, each, now_ms, find, clock, began) for each in by_channel.values()]
    for channel in channels:
        channel.start()
    for channel in channels:
        channel.join(max(0.0, began + END_SECONDS - clock()))
    sent = Sent()
    for channel in channels:
        channel.add_to(sent)
    return sent


class _ChannelSending:
    """The messages of one channel, in a separate thread. It is a daemon thread, since a server may never answer."""

    def __init__(
        self,
        config: Config,
        book: IncidentBook,
        notifications: Sequence[Notification],
        now_ms: int,
        find: FindConnection,
        clock: Callable[[], float],
        began: float,
    ) -> None:
        self._config, self._book, self._now_ms, self._find = config, book, now_ms, find
        self._notifications = notifications
        self._clock, self._began = clock, began
        self._lock = threading.Lock()
        self._sent = Sent()
        self._in_hand = ""
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=f"to {notifications[0].channel}", daemon=True)
        self.start, self.join = self._thread.start, self._thread.join

    def _run(self) -> None:
        failures = 0
        for notification in self._notifications:
            with self._lock:
                if self._is_over or self._clock() - self._began > BEGIN_SECONDS or failures == _MOST_FAILURES:
                    return
                self._in_hand = notification.id
            error, is_unexpected = _send(self._config, self._book, notification, self._now_ms, self._find)
            failures = 0 if error is None else failures + 1
            with self._lock:
                self._sent.results[notification.id] = error
                self._in_hand = ""
                if error is not None and is_unexpected:
                    self._sent.unexpected.append(error)

    def add_to(self, sent: Sent) -> None:
        """Add the outcomes to `sent`. After this call, no other message is started."""
        with self._lock:
            self._is_over = True
            if self._in_hand:
                channel = self._notifications[0].channel
                self._sent.results[self._in_hand] = f"channel {channel!r}: no end within {END_SECONDS:.0f} s"
                logger.warning("%s: no end within %.0f s; tried again", self._in_hand, END_SECONDS)
            sent.results |= self._sent.results
            sent.unexpected += self._sent.unexpected
            sent.untried |= {each.id for each in self._notifications if each.id not in self._sent.results}


def _send(
    config: Config, book: IncidentBook, notification: Notification, now_ms: int, find: FindConnection
) -> tuple[str | None, bool]:
    """Send a message. Return None, or why it could not be sent and whether the exception was unexpected."""
    try:
        incident = book.find(notification.incident)
        if incident is None:
            # Incidents are kept longer than messages about them, but a book of another version may lack the incident.
            logger.error("the message %s is about an incident that is not stored: it is dropped", notification.id)
            return None, False
        message = ChannelMessage.of(notification.id, notification.kind, incident, config.alerts, now_ms)
        send(config.alerts.channels[notification.channel], message, find)
    except Exception as error:
        return _described(f"message {notification.id}", error)
    logger.info("sent to %s: %s", notification.channel, message.subject)
    return None, False


def ping_dead_man(connection: str, find: FindConnection, sent: Sent) -> str | None:
    """Ping the dead man's switch.

    Return None, or why the request failed. An unexpected exception is added to `sent`.
    """
    results: list[tuple[str | None, bool]] = []

    def run() -> None:
        try:
            ping(find(connection))
        except Exception as error:
            results.append(_described("the dead man's switch", error))
        else:
            results.append((None, False))

    thread = threading.Thread(target=run, name="to the dead man's switch", daemon=True)
    thread.start()
    thread.join(END_SECONDS)
    error, is_unexpected = results[0] if results else (f"no end within {END_SECONDS:.0f} s", False)
    if error is not None and is_unexpected:
        sent.unexpected.append(error)
    return error


def _described(what: str, error: Exception) -> tuple[str, bool]:
    """Log why something was not sent. Return the reason, and whether the exception was unexpected."""
    is_expected = isinstance(error, ChannelFailed | WaybillError) and not isinstance(error, UnexpectedFailure)
    if is_expected:
        logger.warning("%s: not sent, and tried again: %s", what, error)
        return str(error), False
    # Not `logger.exception`: an address in the text of an exception may be a secret.
    logger.error("%s: not sent, and tried again: %s", what, masked_stack_trace(error))
    return str(error if isinstance(error, UnexpectedFailure) else UnexpectedFailure(what, error, without_urls)), True
