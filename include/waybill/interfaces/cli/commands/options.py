"""Options that commands of several subjects have."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class LedgerBy(StrEnum):
    """What a ledger has a line for."""

    TOPIC_PARTITION = "topic-partition"
    DAY = "day"


StreamName = Annotated[str, typer.Argument(help="The stream.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OneStream = Annotated[str | None, typer.Option("--stream", "-s", help="Only this stream.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is stored with the decision.")]
By = Annotated[str | None, typer.Option("--by", help="Who decides; default: USER@HOST.")]
Yes = Annotated[bool, typer.Option("--yes", help="Write; without it, only print what would be written.")]
