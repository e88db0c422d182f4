"""Send a message to a channel: by email, to Slack, or to a webhook.

Each call is made once: a later watch tries a failed message again, with backoff. A call waits up to `TIMEOUT_SECONDS`
for each answer of a server.
"""

from __future__ import annotations

import logging
import smtplib
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from email.message import EmailMessage
from functools import partial
from typing import Any

from waybill.base.errors import UnexpectedFailure, WaybillError
from waybill.config.connections import Connection, find_connection
from waybill.config.connections.masking import masked_stack_trace, without_urls
from waybill.config.models.alerts import Alerts, Channel, EmailChannel, SlackChannel, WebhookChannel
from waybill.watch.incidents.finding import DEAD_MAN
from waybill.watch.notify.addresses import (
    check_login,
    http_address,
    mail_host,
    slack_api_address,
    slack_webhook,
    token,
)
from waybill.watch.notify.http import TIMEOUT_SECONDS, ChannelAnswer, ChannelFailed, failure, request, without_secrets
from waybill.watch.notify.message import ChannelMessage
from waybill.watch.notify.texts import ascii_id

logger = logging.getLogger(__name__)

FindConnection = Callable[[str], Connection]

_API_TOKEN = "the webhook's token, or a token of Slack's API, as the password"
_ROUTING_KEY = "PagerDuty's routing key as the password"


def send(channel: Channel, message: ChannelMessage, find: FindConnection = find_connection) -> None:
    """Send a message.

    Raises `ChannelFailed`, `ConfigError` for a connection that is missing or does not fit, and `UnexpectedFailure` for
    any other exception: so the caller can go on with the other channels after any failure.
    """
    connection = None
    try:
        connection = find(channel.connection)
        match channel:
            case EmailChannel():
                _send_email(channel, connection, message)
            case SlackChannel():
                _send_to_slack(channel, connection, message)
            case WebhookChannel():
                _send_to_webhook(channel, connection, message)
    except (WaybillError, ChannelFailed):
        raise
    except Exception as error:
        raise _unexpected(connection or Connection(conn_id=channel.connection), error) from None


def check_channel(channel: Channel, find: FindConnection = find_connection) -> None:
    """Raise `ConfigError` if the connection of a channel is missing, or does not have what the channel needs."""
    connection = find(channel.connection)
    match channel:
        case EmailChannel():
            mail_host(connection)
            check_login(connection)
            connection.flag("disable_ssl", False)
            connection.flag("disable_tls", False)
            _sender(channel, connection)
        case SlackChannel():
            _slack_address(channel, connection)
        case WebhookChannel():
            http_address(connection)
            if channel.format == "pagerduty":
                token(connection, _ROUTING_KEY)
            elif connection.password:
                token(connection, "a token")


def unusable_channels(alerts: Alerts, find: FindConnection = find_connection) -> dict[str, str]:
    """Return why connections of channels cannot be used, by channel name.

    `DEAD_MAN` stands for the dead man's switch.
    """
    checks: dict[str, Callable[[], object]] = {
        name: lambda channel=channel: check_channel(channel, find)  # type: ignore[misc]
        for name, channel in alerts.channels.items()
    }
    if (dead_man := alerts.dead_man) is not None:
        checks[DEAD_MAN] = lambda: http_address(find(dead_man))
    found = {}
    for name, check in checks.items():
        try:
            check()
        except WaybillError as error:
            found[name] = str(error)
        except Exception as error:
            logger.error("channel %s: %s", name, masked_stack_trace(error))
            found[name] = str(UnexpectedFailure(f"channel {name}", error, without_urls))
    return found


def ping(connection: Connection) -> None:
    """Request the address of a dead man's switch. Raises `ChannelFailed`, `ConfigError`, or `UnexpectedFailure`."""
    try:
        request(connection, "GET", http_address(connection))
    except (WaybillError, ChannelFailed):
        raise
    except Exception as error:
        raise _unexpected(connection, error) from None


def _unexpected(connection: Connection, error: Exception) -> UnexpectedFailure:
    """Log an unexpected exception, and return its failure; both without secrets.

    Raise it `from None`: otherwise a log of the failure would print the text of its cause.
    """
    mask = partial(without_secrets, connection)
    logger.error("connection %r: %s", connection.conn_id, mask(masked_stack_trace(error)))
    return UnexpectedFailure(f"connection {connection.conn_id!r}", error, mask)


# --- email ------------------------------------------------------------------------------------------------------------


def _send_email(channel: EmailChannel, connection: Connection, message: ChannelMessage) -> None:
    """Send by SMTP, with the fields of the SMTP provider's connection: `disable_ssl`, `disable_tls`, `from_email`."""
    sender = _sender(channel, connection)
    email = EmailMessage()
    email["Subject"] = message.subject
    email["From"] = sender
    email["To"] = ", ".join(channel.to)
    # Mail programs show all messages about an incident as one conversation, and a second copy of a message once.
    email["Message-ID"] = f"<{ascii_id(message.id)}@waybill>"
    email["References"] = f"<{ascii_id(message.incident.id)}@waybill>"
    email.set_content(message.plain())
    email.add_alternative(message.html(), subtype="html")
    uses_ssl = not connection.flag("disable_ssl", False)
    uses_starttls = not uses_ssl and not connection.flag("disable_tls", False)
    host = mail_host(connection)
    check_login(connection)
    try:
        context = ssl.create_default_context(cafile=connection.text("ca_file"))
        with ExitStack() as stack:
            if uses_ssl:
                server: smtplib.SMTP = smtplib.SMTP_SSL(
                    host, connection.port or 465, timeout=TIMEOUT_SECONDS, context=context
                )
            else:
                server = smtplib.SMTP(host, connection.port or 587, timeout=TIMEOUT_SECONDS)
            stack.enter_context(server)
            if uses_starttls:
                server.starttls(context=context)
            if connection.login:
                server.login(connection.login, connection.password or "")
            refused = server.send_message(email)
    except (OSError, smtplib.SMTPException) as error:
        raise failure(connection, f"{type(error).__name__}: {error}") from error
    if refused:
        raise failure(connection, f"the server refused {', '.join(refused)}")


def _sender(channel: EmailChannel, connection: Connection) -> str:
    return connection.require(
        channel.sender or connection.text("from_email"), "from_email in its extra fields, or `sender` in the config"
    )


# --- Slack ------------------------------------------------------------------------------------------------------------


def _send_to_slack(channel: SlackChannel, connection: Connection, message: ChannelMessage) -> None:
    url = _slack_address(channel, connection)
    body: dict[str, Any] = {"text": message.slack_summary, "blocks": message.slack_blocks()}
    headers = {}
    if connection.conn_type == "slack":
        body["channel"] = channel.channel
        headers["Authorization"] = f"Bearer {token(connection, _API_TOKEN)}"
    answer = request(connection, "POST", url, body, headers)
    document = answer.document()
    if connection.conn_type == "slack":
        # The API answers 200 to what it refuses.
        if document is None or document.get("ok") is not True:
            reason = (document or {}).get("error")
            raise failure(connection, f"Slack refused: {reason}" if reason else f"Slack answered {answer.excerpt}")
    elif answer.is_page or (document is not None and _has_error(document)):
        raise failure(connection, f"Slack answered {answer.excerpt}")


def _has_error(document: dict[str, Any]) -> bool:
    """Return whether a JSON answer to a webhook states an error, in the form of Slack or of similar servers."""
    return document.get("ok", True) is False or document.get("success", True) is False or bool(document.get("error"))


def _slack_address(channel: SlackChannel, connection: Connection) -> str:
    if connection.conn_type != "slack":
        return slack_webhook(connection)
    token(connection, _API_TOKEN)
    if channel.channel is None:
        connection.refuse("is a token of Slack's API, which needs `channel` in the config")
    return slack_api_address(connection, "chat.postMessage")


# --- webhooks ---------------------------------------------------------------------------------------------------------


def _send_to_webhook(channel: WebhookChannel, connection: Connection, message: ChannelMessage) -> None:
    headers = {"Idempotency-Key": ascii_id(message.id)}
    url = http_address(connection)
    if channel.format == "pagerduty":
        body = message.pagerduty(token(connection, _ROUTING_KEY))
        _check_pagerduty(connection, request(connection, "POST", url, body, headers))
        return
    if connection.password:
        headers["Authorization"] = f"Bearer {token(connection, 'a token')}"
    request(connection, "POST", url, message.document(), headers)


def _check_pagerduty(connection: Connection, answer: ChannelAnswer) -> None:
    """Raise `ChannelFailed` for an answer that is 2xx and states that the event was not taken."""
    document = answer.document()
    if answer.is_page or (document is not None and document.get("status", "success") != "success"):
        raise failure(connection, f"PagerDuty answered {answer.excerpt}")
