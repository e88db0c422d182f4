"""Send a message to a channel: by email, to Slack, or to a webhook.

Each call ends within `TIMEOUT_SECONDS`, and is made once: what failed is tried again by a later watch, with backoff.
"""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from email.message import EmailMessage
from typing import Any

import httpx

from waybill.config.alerts import Channel, EmailChannel, SlackChannel, WebhookChannel
from waybill.connections import Connection, find_connection
from waybill.connections.masking import mask_urls_in_log, without_urls
from waybill.errors import WaybillError
from waybill.notify.message import Message

__all__ = ["TIMEOUT_SECONDS", "ChannelFailed", "check_channel", "ping", "send"]

TIMEOUT_SECONDS = 20.0

FindConnection = Callable[[str], Connection]

# Both log the whole URL of a request: httpx at the level of Airflow's task logs.
for _library in ("httpx", "slack_sdk"):
    mask_urls_in_log(_library)

_SLACK_HOOKS = "https://hooks.slack.com/services"


class ChannelFailed(Exception):
    """A message could not be sent. The text names the connection and the reason; URLs in it are masked."""

    def __init__(self, text: str) -> None:
        super().__init__(without_urls(text))


def send(channel: Channel, message: Message, find: FindConnection = find_connection) -> None:
    """Send a message. Raises `ChannelFailed`, or `ConfigError` for a connection that is missing or does not fit."""
    connection = find(channel.connection)
    try:
        match channel:
            case EmailChannel():
                _send_email(channel, connection, message)
            case SlackChannel():
                _send_to_slack(channel, connection, message)
            case WebhookChannel():
                _send_to_webhook(channel, connection, message)
    except WaybillError:
        raise
    except (OSError, smtplib.SMTPException, httpx.HTTPError) as error:
        raise ChannelFailed(f"connection {channel.connection!r}: {type(error).__name__}: {error}") from error


def check_channel(channel: Channel, find: FindConnection = find_connection) -> None:
    """Raise `ConfigError` if the connection of a channel is missing, or does not have what the channel needs."""
    connection = find(channel.connection)
    match channel:
        case EmailChannel():
            connection.require(connection.host, "the SMTP server's host")
            _sender(channel, connection)
        case SlackChannel():
            connection.require(connection.password, "the webhook's token, or a token of Slack's API, as the password")
            if connection.conn_type == "slack" and channel.channel is None:
                connection.refuse("is a token of Slack's API, which needs `channel` in the config")
        case WebhookChannel():
            _url(connection)
            if channel.format == "pagerduty":
                connection.require(connection.password, "PagerDuty's routing key as the password")


def ping(connection: Connection) -> None:
    """Request the address of a dead man's switch. Raises `ChannelFailed`."""
    try:
        httpx.get(_url(connection), timeout=TIMEOUT_SECONDS).raise_for_status()
    except httpx.HTTPError as error:
        raise ChannelFailed(f"connection {connection.conn_id!r}: {type(error).__name__}: {error}") from error


# --- email ------------------------------------------------------------------------------------------------------------


def _send_email(channel: EmailChannel, connection: Connection, message: Message) -> None:
    """Send by SMTP, with the fields of the SMTP provider's connection: `disable_ssl`, `disable_tls`, `from_email`."""
    sender = _sender(channel, connection)
    email = EmailMessage()
    email["Subject"] = message.subject
    email["From"] = sender
    email["To"] = ", ".join(channel.to)
    # Mail programs show all messages about an incident as one conversation, and a second copy of a message once.
    email["Message-ID"] = f"<{message.id}@waybill>"
    email["References"] = f"<{message.incident.id}@waybill>"
    email.set_content(message.plain())
    email.add_alternative(message.html(), subtype="html")
    uses_ssl = not connection.flag("disable_ssl", False)
    uses_starttls = not uses_ssl and not connection.flag("disable_tls", False)
    context = ssl.create_default_context(cafile=connection.text("ca_file"))
    host = connection.require(connection.host, "the SMTP server's host")
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
    if refused:
        raise ChannelFailed(f"connection {channel.connection!r}: the server refused {', '.join(refused)}")


def _sender(channel: EmailChannel, connection: Connection) -> str:
    return connection.require(
        channel.sender or connection.text("from_email"), "from_email in its extra fields, or `sender` in the config"
    )


# --- Slack ------------------------------------------------------------------------------------------------------------


def _send_to_slack(channel: SlackChannel, connection: Connection, message: Message) -> None:
    from slack_sdk import WebClient, WebhookClient
    from slack_sdk.errors import SlackApiError

    token = connection.require(connection.password, "the webhook's token, or a token of Slack's API, as the password")
    timeout = int(TIMEOUT_SECONDS)
    blocks: Any = message.slack_blocks()
    try:
        if connection.conn_type == "slack":
            client = WebClient(token, base_url=connection.text("base_url") or WebClient.BASE_URL, timeout=timeout)
            client.chat_postMessage(channel=channel.channel or "", text=message.subject, blocks=blocks)
            return
        response = WebhookClient(_webhook(connection, token), timeout=timeout).send(text=message.subject, blocks=blocks)
    except SlackApiError as error:
        raise ChannelFailed(f"connection {channel.connection!r}: Slack refused: {error.response['error']}") from error
    if response.status_code != 200:
        raise ChannelFailed(
            f"connection {channel.connection!r}: Slack answered {response.status_code}: {response.body[:200]}"
        )


def _webhook(connection: Connection, token: str) -> str:
    """Return the address of an incoming webhook, as the Slack provider makes it of a connection."""
    if token.startswith(("http://", "https://")):
        return token
    base = _SLACK_HOOKS
    if connection.host:
        base = connection.host if "://" in connection.host else f"{connection.path or 'https'}://{connection.host}"
        base += f":{connection.port}" if connection.port else ""
    return f"{base.rstrip('/')}/{token}"


# --- webhooks ---------------------------------------------------------------------------------------------------------


def _send_to_webhook(channel: WebhookChannel, connection: Connection, message: Message) -> None:
    headers = {"Idempotency-Key": message.id}
    if channel.format == "pagerduty":
        body = message.pagerduty(connection.require(connection.password, "PagerDuty's routing key as the password"))
    else:
        body = message.document()
        if connection.password:
            headers["Authorization"] = f"Bearer {connection.password}"
    response = httpx.post(_url(connection), json=body, headers=headers, timeout=TIMEOUT_SECONDS)
    if response.is_error:
        raise ChannelFailed(
            f"connection {channel.connection!r}: the server answered {response.status_code}: {response.text[:200]}"
        )


def _url(connection: Connection) -> str:
    """Return the address of a connection of type `http`."""
    host = connection.require(connection.host, "the host, or the whole address")
    if "://" not in host:
        host = f"{connection.path or 'https'}://{host}"
    return f"{host}:{connection.port}" if connection.port else host
