"""Options that commands of several subjects have."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from waybill.interfaces.operations import parameters as p
from waybill.interfaces.operations.declaration import Parameter


class LedgerBy(StrEnum):
    """The subject of a line in a ledger."""

    TOPIC_PARTITION = "topic-partition"
    DAY = "day"


def option(parameter: Parameter, *names: str) -> Any:
    """Return the option that gives a parameter of an operation. `names`: further names of it."""
    return typer.Option(
        parameter.option, *names, metavar=parameter.metavar, min=parameter.at_least, help=parameter.command_help
    )


def argument(parameter: Parameter) -> Any:
    """Return the argument that gives a parameter of an operation."""
    return typer.Argument(metavar=parameter.metavar, min=parameter.at_least, help=parameter.command_help)


StreamName = Annotated[str, argument(p.STREAM)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OneStream = Annotated[str | None, typer.Option("--stream", "-s", help="Only this stream.")]
Reason = Annotated[str, option(p.REASON)]
By = Annotated[str | None, typer.Option("--by", help="Who decides; default: USER@HOST.")]
Yes = Annotated[bool, typer.Option("--yes", help="Write; without it, only print what would be written.")]
