"""Replay: who may request how much, where requests are stored, and where their messages may be delivered."""

from __future__ import annotations

from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any, Self

from pydantic import ByteSize, Field, model_validator
from pydantic.json_schema import JsonSchemaValue

from waybill.config.models.base import Section, ValueType, section_error
from waybill.config.models.quantities import DurationBetween, SizeBetween, WholeNumberBetween
from waybill.config.models.services import ConnectionId

Network = IPv4Network | IPv6Network


class IsFlag(ValueType):
    """True or false. Words and numbers that could mean either are refused."""

    type_name = "flag"
    allowed = "`true` or `false`"

    def parse(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError("must be true or false")
        return value

    def json_schema(self) -> JsonSchemaValue:
        return {"type": "boolean"}


class IsNetwork(ValueType):
    """A range of IP addresses, as `ipaddress` holds it."""

    type_name = "network"
    allowed = "a range of IP addresses: 10.20.0.0/16, 10.20.1.7 or fd12:3456::/32"

    def parse(self, value: Any) -> Network:
        if isinstance(value, IPv4Network | IPv6Network):
            return value
        try:
            # ip_network also reads numbers.
            return ip_network(value) if isinstance(value, str) else ip_network("")
        except ValueError:
            hint = _with_host_bits_cleared(value)
            raise ValueError(f"must be {self.allowed}{hint}") from None

    def format(self, value: Any) -> str:
        return str(value)


def _with_host_bits_cleared(value: Any) -> str:
    try:
        return f"; did you mean {ip_network(value, strict=False)}?" if isinstance(value, str) else ""
    except ValueError:
        return ""


class ReplayQuotas(Section):
    """How many requests are accepted. Others are refused, with the time or the event to wait for."""

    open_requests: Annotated[int, WholeNumberBetween(1, 100_000)] = Field(
        1_000, description="How many requests of all requesters may be open: not completed, failed or cancelled."
    )
    open_requests_per_requester: Annotated[int, WholeNumberBetween(1, 100_000)] = Field(
        20, description="How many requests of one requester may be open."
    )
    requests_per_day: Annotated[int, WholeNumberBetween(1, 1_000_000)] = Field(
        200, description="How many requests one requester may create within 24 hours."
    )

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.open_requests_per_requester > self.open_requests:
            raise section_error(
                "open_requests_per_requester", f"is more than open_requests ({self.open_requests}) of all requesters"
            )
        return self


class ReplayWebhooks(Section):
    """Delivery to webhooks."""

    connection: ConnectionId = Field(
        "waybill_webhooks",
        description="Airflow connection whose password is the secret key of the signatures (HMAC-SHA256).",
    )
    allow_http: Annotated[bool, IsFlag()] = Field(
        False, description="Whether a webhook's URL may begin with `http://`."
    )
    accept_proofs_without_url: Annotated[bool, IsFlag()] = Field(
        False,
        description="Whether a receiver may answer the challenge as in versions up to 0.1, without its URL. Such an "
        "answer can be forwarded by another server. For the time in which receivers are changed.",
    )
    allowed_networks: tuple[Annotated[Network, IsNetwork()], ...] = Field(
        (),
        description="Private, loopback and link-local addresses that webhooks may have. All others of these kinds are "
        "refused.",
    )
    timeout: Annotated[timedelta, DurationBetween("1s", "2m")] = Field(
        timedelta(seconds=10), description="How long one request may take, from the name lookup to the whole answer."
    )
    max_answer_bytes: Annotated[ByteSize, SizeBetween("1KiB", "16MiB")] = Field(
        ByteSize(64 << 10), description="How much of an answer is read."
    )
    rate_per_second: Annotated[int, WholeNumberBetween(1, 10_000)] = Field(
        10, description="How many requests a second one webhook gets."
    )
    attempts: Annotated[int, WholeNumberBetween(1, 100)] = Field(
        8, description="How often one batch is sent before the worker gives the request back, and a later one goes on."
    )
    batch_messages: Annotated[int, WholeNumberBetween(1, 10_000)] = Field(
        500, description="How many messages one request to a webhook holds at most."
    )
    batch_bytes: Annotated[ByteSize, SizeBetween("1KiB", "64MiB")] = Field(
        ByteSize(1 << 20), description="The size of such a request at most, but for a message that alone is larger."
    )


class ReplayKafka(Section):
    """Delivery to Kafka topics."""

    connections: tuple[ConnectionId, ...] = Field(
        (), description="Airflow connections of the clusters that requests may name. Default: none."
    )


class ReplayS3(Section):
    """Delivery to objects in the archive's bucket, below `<storage.prefix>/replays/`."""

    link_lifetime: Annotated[timedelta, DurationBetween("1m", "7d")] = Field(
        timedelta(days=1), description="How long the presigned URLs of a request's objects work."
    )


class Replay(Section):
    """Requests for the messages of some keys between two times. Without this section, there are none."""

    database: ConnectionId = Field(
        "waybill_replay",
        description="Airflow connection of the database of the requests (type `sqlite`, `postgres` or `mysql`). The "
        "host of a `sqlite` connection is the path of its file, which must be on a local disk.",
    )
    max_range: Annotated[timedelta, DurationBetween("1m", "3650d")] = Field(
        timedelta(days=31), description="The longest range of one request."
    )
    quotas: ReplayQuotas = Field(ReplayQuotas(), description="How many requests are accepted.")
    workers: Annotated[int, WholeNumberBetween(1, 256)] = Field(
        2, description="How many workers serve requests at the same time."
    )
    claim_timeout: Annotated[timedelta, DurationBetween("10s", "1h")] = Field(
        timedelta(minutes=2),
        description="A worker that has sent no heartbeat for so long has lost its request, and another one goes on.",
    )
    give_up_after: Annotated[timedelta, DurationBetween("1m", "90d")] = Field(
        timedelta(days=3),
        description="How long a request may make no progress, because its target or the archive fails, before it "
        "fails.",
    )
    keep_requests: Annotated[timedelta, DurationBetween("1d", "3650d")] = Field(
        timedelta(days=90),
        description="How long a request that has ended is kept in the database. Delivered objects in S3 stay.",
    )
    drop_duplicates: Annotated[bool, IsFlag()] = Field(
        True,
        description="Whether a message is dropped that has the key, value, headers and timestamp of an earlier one of "
        "the request: a producer that repeats a send does that. Up to 200,000 different messages are remembered.",
    )
    webhooks: ReplayWebhooks = Field(ReplayWebhooks(), description="Delivery to webhooks.")
    kafka: ReplayKafka = Field(ReplayKafka(), description="Delivery to Kafka topics.")
    s3: ReplayS3 = Field(ReplayS3(), description="Delivery to S3.")

    @property
    def connections(self) -> tuple[str, ...]:
        """Return the connection ids of the database, of the webhooks' secret and of Kafka targets, each once."""
        return tuple(dict.fromkeys((self.database, self.webhooks.connection, *self.kafka.connections)))
