"""The forms of actions: what a click sends, and the command that does the same."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from waybill.interfaces.web.frame import Links, Role, Viewer


class ActionName(StrEnum):
    """What can be done from a page."""

    ACKNOWLEDGE = "acknowledge"
    RELEASE = "release"
    REJECT = "reject"
    RETRY = "retry"
    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"
    UNDO = "undo"
    CANCEL = "cancel"
    ACCEPT_GAP = "accept-gap"


ACTION_ROLES: Mapping[ActionName, Role] = {
    **dict.fromkeys(ActionName, Role.OPERATOR),
    ActionName.UNDO: Role.ADMIN,
    ActionName.ACCEPT_GAP: Role.ADMIN,
}
"""The role that each action needs."""

_TEXTS: Mapping[ActionName, tuple[str, str, bool]] = {
    ActionName.ACKNOWLEDGE: ("Acknowledge", "Reminders and escalation end; its end is still told.", False),
    ActionName.RELEASE: ("Release", "The held rows are published as they are.", True),
    ActionName.REJECT: ("Reject", "The held rows are dropped; the next run parses the same messages again.", True),
    ActionName.RETRY: ("Retry", "The messages are parsed again; those that can be parsed move to the table.", False),
    ActionName.PAUSE: ("Pause", "The stream is left out of scheduled runs until it is resumed.", True),
    ActionName.RESUME: ("Resume", "The stream takes part in scheduled runs again.", False),
    ActionName.PROMOTE: ("Promote", "The table's rows of the range are replaced by those of the backfill.", True),
    ActionName.UNDO: ("Undo", "The rows that the promotion replaced are restored.", True),
    ActionName.CANCEL: ("Cancel", "The backfill is given up, and its branches are removed.", True),
    ActionName.ACCEPT_GAP: ("Accept the gap", "The offsets are recorded as lost, and ingest resumes after them.", True),
}


@dataclass(frozen=True, slots=True)
class ActionForm:
    """A form. It is sent with POST, with its fields, a reason and the CSRF token."""

    action: ActionName
    label: str
    explanation: str
    """What it does, in one sentence."""
    url: str
    fields: tuple[tuple[str, str], ...]
    """Hidden fields: name and value."""
    command: str
    """The command that does the same."""
    role: Role
    """The role that it needs."""
    is_allowed: bool
    """Whether the viewer has that role."""
    is_grave: bool
    """Whether the page asks again before it sends the form."""


def form_of(action: ActionName, links: Links, viewer: Viewer, fields: Mapping[str, str]) -> ActionForm:
    """Return the form of an action."""
    label, explanation, is_grave = _TEXTS[action]
    role = ACTION_ROLES[action]
    return ActionForm(
        action=action,
        label=label,
        explanation=explanation,
        url=links.page(f"/actions/{action}"),
        fields=tuple(fields.items()),
        command=command_of(action, fields),
        role=role,
        is_allowed=viewer.role >= role,
        is_grave=is_grave,
    )


def command_of(action: ActionName, fields: Mapping[str, str], reason: str = "…", by: str = "") -> str:
    """Return the command that does what a form does."""
    stream = fields.get("stream", "")
    words = {
        ActionName.ACKNOWLEDGE: ["incidents", "ack", fields.get("incident", "")],
        ActionName.RELEASE: ["quality", "release", stream, "--plan", fields.get("plan", "")],
        ActionName.REJECT: ["quality", "reject", stream, "--plan", fields.get("plan", "")],
        ActionName.RETRY: ["quarantine", "retry", stream],
        ActionName.PAUSE: ["pause", stream],
        ActionName.RESUME: ["resume", stream],
        ActionName.PROMOTE: ["backfill", "promote", stream, fields.get("backfill", "")],
        ActionName.UNDO: ["backfill", "undo", stream, fields.get("backfill", "")],
        ActionName.CANCEL: ["backfill", "cancel", stream, fields.get("backfill", "")],
        ActionName.ACCEPT_GAP: ["gaps", "accept", fields.get("topic", ""), fields.get("partition", "")],
    }[action]
    if action is ActionName.ACCEPT_GAP:
        words += ["--stream", stream, "--within", fields.get("within", "")]
    if action is ActionName.RETRY:  # its option --reason selects messages, and it stores no reason
        if kind := fields.get("kind"):
            words += ["--reason", kind]
        if topic := fields.get("topic"):
            words += ["--topic-partition", topic]
    else:
        words += ["--reason", reason]
        if by:
            words += ["--by", by]
    return f"waybill {_joined(words)}"


def _joined(words: list[str]) -> str:
    # `shlex.join` quotes with ', which a reader of a page replaces less easily than "…".
    return " ".join('"…"' if word == "…" else shlex.quote(word) for word in words)
