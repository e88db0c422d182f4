"""The declaration of an operation: its name, role, parameters with their checks, and where it runs.

Each surface derives its own part: the command line its options, a DAG its form, the pages their fields and the command
that they show, the audit log the arguments that it stores.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum, StrEnum, auto
from typing import Any, Self

from waybill.base.errors import ConfigError


class Role(IntEnum):
    """The roles of users. Each role includes the rights of the earlier ones."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


class Kind(Enum):
    """The kinds of values of parameters."""

    TEXT = auto()
    TEXTS = auto()
    NUMBER = auto()
    FLAG = auto()
    TIME = auto()
    """ISO 8601 with a time zone."""
    STREAM = auto()
    """The name of a stream of the config."""


TIME_PATTERN = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:\d{2})$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of an operation, with its texts and names for each surface."""

    name: str
    """The name in the form of a DAG, and in the audit log if no page has the parameter."""
    title: str
    help: str = ""
    """The description, without the full stop at the end."""
    form_help: str | None = None
    """The description in the form of a DAG; None: `help`."""
    if_empty: str = ""
    """The meaning of an empty value, for the form of a DAG: `all of the stream`."""
    kind: Kind = Kind.TEXT
    is_required: bool = False
    default: str | int | bool | None = None
    choices: tuple[str, ...] = ()
    pattern: str = ""
    at_least: int | None = None
    """The smallest allowed number; for texts, the smallest number of texts."""
    at_most: int | None = None
    option: str = ""
    """The option on the command line; '' for an argument."""
    metavar: str | None = None
    field: str = ""
    """The field on the pages; '' if they do not have the parameter."""
    is_seen: bool = False
    """Whether the value is the state that the person saw: a page always sends it, and the action is refused without
    it."""

    def but(self, **changes: Any) -> Self:
        """Return this parameter with changes for another operation."""
        return replace(self, **changes)

    @property
    def key(self) -> str:
        """The name in the audit log."""
        return self.field or self.name

    @property
    def command_help(self) -> str:
        """The help text on the command line."""
        return f"{self.help}; repeatable." if self.kind is Kind.TEXTS else f"{self.help}."

    @property
    def description(self) -> str:
        """The description in the form of a DAG; '' if the title is enough."""
        text = self.help if self.form_help is None else self.form_help
        lines = "; one per line" if self.kind is Kind.TEXTS and text else ""
        sentences = [f"{text}{lines}."] if text else []
        if self.if_empty:
            sentences.append(f"Empty: {self.if_empty}.")
        return " ".join(sentences)

    def check(self, text: str) -> None:
        """Raise `ConfigError` unless a text that a page sent is a value of this parameter."""
        if not text:
            if self.is_required or self.is_seen:
                raise ConfigError(f"the form names no {self.title.lower()}: load the page again, or use the command")
        elif self.choices and text not in self.choices:
            raise ConfigError(f"{text!r} is no {self.title.lower()}: give one of {', '.join(self.choices)}")
        elif self.pattern and re.fullmatch(self.pattern, text) is None:
            raise ConfigError(f"{text!r} is no {self.title.lower()}: {self.help}")
        elif self.kind is Kind.NUMBER:
            self._check_number(text)

    def _check_number(self, text: str) -> None:
        least, most = self.at_least or 0, self.at_most
        is_number = text.isascii() and text.isdecimal() and len(text) < 20
        if not is_number or int(text) < least or (most is not None and int(text) > most):
            up_to = "" if most is None else f" up to {most:,}"
            raise ConfigError(f"{text!r} is no {self.title.lower()}: give a whole number{up_to}")

    def text_of(self, value: object) -> str:
        """Return a value as the audit log stores it."""
        if value is None or value is False:
            return ""
        if isinstance(value, list | tuple):
            return " ".join(map(str, value))
        return "yes" if value is True else str(value)

    def words_of(self, value: object) -> Iterator[str]:
        """Yield the words of the command line that give this value."""
        if not self.option:
            yield self.text_of(value)
        elif value is True:
            yield self.option
        elif isinstance(value, list | tuple):
            for each in value:
                yield from (self.option, str(each))
        elif self.is_seen or value not in (None, False, ""):
            yield from (self.option, self.text_of(value))


@dataclass(frozen=True, slots=True)
class DagRun:
    """The DAG that executes an operation."""

    dag: str
    choice: tuple[str, str] | None = None
    """The field of the form that chooses the operation, and its value; None: the DAG has only this operation."""


class OperationName(StrEnum):
    """The operations. The pages have these names in their addresses, and the audit log stores them."""

    ACKNOWLEDGE = "acknowledge"
    RELEASE = "release"
    REJECT = "reject"
    RETRY = "retry"
    PAUSE = "pause"
    RESUME = "resume"
    BUILD = "build"
    PROMOTE = "promote"
    UNDO = "undo"
    CANCEL = "cancel"
    ACCEPT_GAP = "accept-gap"
    PROMOTE_GENERATION = "promote-generation"
    RESTORE = "restore"
    REPLAY = "replay"
    CANCEL_REPLAY = "cancel-replay"
    SET_OFFSET = "set-offset"
    REBUILD_OFFSETS = "rebuild-offsets"
    IMPORT_OFFSETS = "import-offsets"
    REPUBLISH = "republish"
    ABANDON = "abandon"
    APPLY_TOPICS = "apply-topics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation that people can order."""

    name: OperationName
    title: str
    explanation: str
    """The effect, in one sentence."""
    role: Role
    """The role that the pages require."""
    command: tuple[str, ...]
    """The command with the same effect: `("quality", "reject")`."""
    parameters: tuple[Parameter, ...]
    """All parameters except the reason and the person who decides."""
    reason: Parameter | None
    """The reason that is stored with the decision; None if the command has none."""
    runs: DagRun | None = None
    """None: the called process executes the operation itself."""
    is_grave: bool = False
    """Whether a page asks for a confirmation before it sends the form."""
    is_on_pages: bool = False

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the form on the pages, without the reason."""
        return tuple(each.field for each in self.parameters if each.field)

    def check(self, fields: Mapping[str, str]) -> None:
        """Raise `ConfigError` for a field of a page that is missing, or has an invalid value."""
        for each in self.parameters:
            if each.field:
                each.check(fields.get(each.field, ""))

    def values_of(self, fields: Mapping[str, str]) -> dict[str, object]:
        """Return the values of the parameters, by name, that a page sent as fields."""
        values: dict[str, object] = {}
        for each in self.parameters:
            if each.field:
                text = fields.get(each.field, "")
                values[each.name] = ([text] if text else []) if each.kind is Kind.TEXTS else text
        return values

    def arguments_of(self, values: Mapping[str, object]) -> dict[str, str]:
        """Return the values for the audit log: all fields of the pages, and other given parameters."""
        texts = {each: each.text_of(values.get(each.name)) for each in self.parameters}
        return {each.key: text for each, text in texts.items() if text or each.field}

    def form_of_run(self, fields: Mapping[str, str], reason: str) -> dict[str, object]:
        """Return the form values that a page sends to the DAG of this operation."""
        assert self.runs is not None
        form = self.values_of(fields)
        if self.runs.choice is not None:
            form[self.runs.choice[0]] = self.runs.choice[1]
        if self.reason is not None:
            form[self.reason.name] = reason
        return form

    def command_line(self, values: Mapping[str, object], reason: str = "…", by: str = "") -> str:
        """Return the command with the same effect. `reason` "…" and `by` "" stand for values that are not known yet."""
        words = ["waybill", *self.command]
        for each in sorted(self.parameters, key=lambda each: bool(each.option)):
            words += each.words_of(values.get(each.name))
        if self.reason is not None:
            words += [self.reason.option, reason, *(("--by", by) if by else ())]
        # `shlex.join` quotes with ', which a reader of a page replaces less easily than "…".
        return " ".join('"…"' if word == "…" else shlex.quote(word) for word in words)


@dataclass(frozen=True, slots=True)
class DagForm:
    """The form of a DAG that people trigger, which may offer several operations."""

    dag: str
    parameters: tuple[Parameter, ...]
