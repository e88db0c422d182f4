"""The forms of actions: the fields that a click sends, and the equivalent command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from waybill.interfaces.operations.catalogue import PAGE_OPERATIONS
from waybill.interfaces.operations.declaration import OperationName, Role
from waybill.interfaces.web.frame import Links, Viewer


@dataclass(frozen=True, slots=True)
class ActionForm:
    """A form. It is sent with POST, with its fields, a reason and the CSRF token."""

    action: OperationName
    label: str
    explanation: str
    """What it does, in one sentence."""
    url: str
    fields: tuple[tuple[str, str], ...]
    """Hidden fields: name and value."""
    command: str
    """The equivalent command."""
    role: Role
    """The required role."""
    is_allowed: bool
    """Whether the viewer has that role."""
    is_grave: bool
    """Whether the page asks again before it sends the form."""


def form_of(name: OperationName, links: Links, viewer: Viewer, fields: Mapping[str, str]) -> ActionForm:
    """Return the form of an operation."""
    operation = PAGE_OPERATIONS[name]
    return ActionForm(
        action=name,
        label=operation.title,
        explanation=operation.explanation,
        url=links.page(f"/actions/{name}"),
        fields=tuple(fields.items()),
        command=operation.command_line(operation.values_of(fields)),
        role=operation.role,
        is_allowed=viewer.role >= operation.role,
        is_grave=operation.is_grave,
    )
