"""Kinesis as the source of a stream: its section of the config."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from waybill.config.models.base import Section
from waybill.config.models.quantities import WholeNumberBetween
from waybill.config.models.services import ConnectionId

MAX_SLOTS = 4096


class Kinesis(Section):
    """How Kinesis is read, with `source: kinesis`."""

    connection: ConnectionId = Field("aws_default", description="Airflow connection of Kinesis (type `aws`).")
    slots: Annotated[int, WholeNumberBetween(1, MAX_SLOTS)] = Field(
        8,
        description="The number of topic-partitions that each Kinesis stream is archived as. More shards share them. "
        "It can be raised at any time.",
    )
