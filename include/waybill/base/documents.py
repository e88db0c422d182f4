"""Versioned JSON documents: ZooKeeper nodes, small objects of S3, snapshot properties of tables.

Each document's field `v` is the version of its layout. Only this module compares a stored version with the versions
that this installation reads.

A kind of document is declared once, as a `Document`: its version, its name in errors, what to do about a damaged one,
and how its JSON is written and packed. `Document.write` and `Document.parse` are the way to and from its fields. A
dataclass that is stored derives from `Stored` and has that declaration:

    @dataclass(frozen=True, slots=True)
    class HoldDecision(Stored):
        DOCUMENT: ClassVar = Document("decision {where} cannot be read ({error}): remove the object, and decide again")

        kind: Annotated[DecisionKind, As("decision")]
        by: str
        at: datetime

Its fields are then stored in their order, by their types: an enum by its value, a time in ISO 8601, a tuple as a list.
`As` declares exceptions. A class whose JSON has another shape defines `to_fields` and `of_fields` itself.

Readers are not stricter than those of earlier versions, since documents in old stores must stay readable: unknown
fields are left out, and plain values are used unchanged, or converted (`Document.converts`).
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import logging
import math
import types
import typing
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, ClassVar, NamedTuple, NoReturn, Self, TypeVar

from waybill.base.errors import DocumentDamaged, DocumentTooNew, WaybillError

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

DAMAGES = (AttributeError, EOFError, KeyError, OSError, OverflowError, TypeError, ValueError, zlib.error)
"""The exceptions for a damaged document: from unpacking it, parsing it, and reading its fields."""


# --- how JSON is written ----------------------------------------------------------------------------------------------


def compact(document: Any) -> bytes:
    """Return JSON without spaces."""
    return json.dumps(document, separators=(",", ":")).encode()


def spaced(document: Any) -> bytes:
    """Return JSON in one line, with spaces."""
    return json.dumps(document).encode()


def readable(document: Any) -> bytes:
    """Return JSON for people who open the object: a line for each field, without escapes for letters."""
    return json.dumps(document, indent=1, ensure_ascii=False).encode()


def gzipped(document: Any) -> bytes:
    """Return gzipped JSON, made fast: for large documents that are written each minute."""
    import orjson

    return gzip.compress(orjson.dumps(document), compresslevel=1, mtime=0)


# --- a kind of document -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Document:
    """The declaration that all documents of one kind share."""

    damaged: str = ""
    """What is said of a damaged one, with the remedy. `{where}` is its key or path, `{error}` what was found, `{kind}`
    the class of that error. '': nothing is said, and the caller gets the error that was found."""
    version: int = 1
    """The version that is written, and the newest one that is read."""
    oldest: int = 1
    """The oldest version that is read."""
    name: str = "{where}"
    """The name of the document in errors about a newer version."""
    remedy: str = "Upgrade this installation"
    """The remedy for a newer version."""
    converts: bool = False
    """Whether numbers and texts are converted: `int("5")`. Otherwise the values of the JSON are used unchanged."""
    dump: Callable[[Any], bytes] = compact
    """Makes JSON of the fields, and packs it."""
    unpack: Callable[[Any], bytes] | None = None
    """Takes the JSON out of its packing; None if it is not packed."""
    error: Callable[[str], WaybillError] = DocumentDamaged
    """The class of the error about a damaged one."""

    def read(self, data: bytes | str, where: str) -> dict[str, Any]:
        """Return the fields of a document. Raises `DocumentTooNew`, or one of `DAMAGES` if it is none."""
        return _checked(_parsed(data if self.unpack is None else self.unpack(data)), self, where)

    def parse(self, where: str, data: bytes | str, make: Callable[[dict[str, Any]], _T]) -> _T:
        """Return what `make` makes of the fields.

        Raises `DocumentTooNew` for a document of a newer Waybill, `DocumentDamaged` (or `self.error`) for one that
        cannot be read, or of which `make` raises one of `DAMAGES`.
        """
        try:
            return make(self.read(data, where))
        except DAMAGES as error:
            self.refuse(where, error)

    def remembered(
        self, data: bytes | None, make: Callable[[dict[str, Any]], _T], empty: Callable[[], _T], where: str = ""
    ) -> _T:
        """Return what `make` makes of the fields; an empty value if there is no document, or none that can be read.

        The latter is logged, with the words of `damaged`.
        """
        try:
            return empty() if data is None else make(self.read(data, where))
        except (DocumentTooNew, *DAMAGES) as error:
            logger.warning("%s", self.damage(where, error))
            return empty()

    def check(self, value: Any, where: str) -> dict[str, Any]:
        """Return the fields of a document that is a part of another one. Raises as `read` does."""
        return _checked(value, self, where)

    def write(self, fields: Mapping[str, Any]) -> bytes:
        """Return the document with these fields."""
        return self.dump({"v": self.version, **fields})

    def damage(self, where: str, error: Exception) -> WaybillError:
        """Return the error for a document of which one of `DAMAGES` was raised."""
        return self.error(self.damaged.format(where=where, error=error, kind=type(error).__name__))

    def refuse(self, where: str, error: Exception) -> NoReturn:
        """Raise the error for a document of which one of `DAMAGES` was raised."""
        if not self.damaged:
            raise error
        raise self.damage(where, error) from error


def _parsed(data: bytes | str) -> Any:
    try:
        return json.loads(data, parse_float=_finite)
    except RecursionError as error:  # nested too deeply
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _checked(value: Any, document: Document, where: str) -> dict[str, Any]:
    """Return the fields of a JSON value if it is a document of a supported version."""
    fields = dict(value)
    try:
        found = int(fields["v"])
    except OverflowError as error:  # {"v": Infinity}
        raise ValueError(f"{type(error).__name__}: {error}") from None
    if found > document.version:
        raise DocumentTooNew(
            f"{document.name.format(where=where)} was written by a newer Waybill (document version {found}; this one "
            f"reads up to {document.version}). {document.remedy}"
        )
    if found < document.oldest:
        raise ValueError(
            f"document version {found} is older than {document.oldest}, the oldest that this Waybill reads"
        )
    return fields


def _finite(written: str) -> float:
    """Parse a number with a fraction.

    Infinity (from 1e999) is refused, since it raises OverflowError if read as an int.
    """
    number = float(written)
    if math.isinf(number):
        raise ValueError(f"{written[:50]} is no number that a document holds")
    return number


# --- dataclasses that are stored --------------------------------------------------------------------------------------


class Stored:
    """Base of a dataclass that is a document. It has `DOCUMENT`, which declares the kind."""

    __slots__ = ()

    DOCUMENT: ClassVar[Document]

    def to_json(self) -> bytes:
        """Return the document."""
        return self.DOCUMENT.write(self.to_fields())

    @classmethod
    def from_json(cls, where: str, data: bytes | str) -> Self:
        """Parse what `to_json` returned; `where` is its key or path.

        Raises `DocumentTooNew` for a document of a newer version of Waybill, `DocumentDamaged` for one that cannot be
        parsed.
        """
        try:
            return cls.of_fields(where, cls.DOCUMENT.read(data, where))
        except DAMAGES as error:
            cls.DOCUMENT.refuse(where, error)

    @classmethod
    def of_part(cls, where: str, value: Any) -> Self:
        """Parse a document that is a part of the one at `where`. Raises as `from_json` does."""
        try:
            return cls.of_fields(where, cls.DOCUMENT.check(value, where))
        except DAMAGES as error:
            cls.DOCUMENT.refuse(where, error)

    def to_fields(self) -> dict[str, Any]:
        """Return the fields as JSON values, without the version."""
        fields = {}
        for attribute, name, write, is_left_out in _plan_of(type(self)).writers:
            value = getattr(self, attribute)
            if value is not None or not is_left_out:
                fields[name] = value if write is None else write(value)
        return fields

    def to_part(self) -> dict[str, Any]:
        """Return the document as a part of another one."""
        return {"v": self.DOCUMENT.version, **self.to_fields()}

    @classmethod
    def of_fields(cls, where: str, fields: Mapping[str, Any]) -> Self:
        """Return the object with these fields. Raises one of `DAMAGES`."""
        values = {}
        for attribute, name, read, how in _plan_of(cls).readers:
            if how is None:
                value = fields[name]
                values[attribute] = value if read is None else read(value)
            elif how.is_place:
                values[attribute] = where
            elif not how.may_lack or name in fields:
                values[attribute] = how.of_json(where, fields[name])
        make: Callable[..., Self] = cls
        return make(**values)


@dataclass(frozen=True, slots=True)
class As:
    """How a field is stored, if its name and type do not define it: `Annotated[int, As("at")]`.

    If a lambda uses names of its module, assign the `As` to a name outside of the class: inside an annotation, the
    lambda cannot find the module's names.
    """

    name: str = ""
    """The key in the document; '' stands for the name of the field."""
    read: Callable[[Any], Any] | None = None
    """Converts JSON to the value. Not called with null if the field can be None."""
    write: Callable[[Any], Any] | None = None
    """Converts the value to JSON. Not called with None if the field can be None."""
    may_lack: bool = False
    """Whether the key may be missing, because earlier versions of Waybill did not write it. The field then has its
    default."""
    is_left_out: bool = False
    """Whether None is not written. The key may be missing then."""
    is_place: bool = False
    """Whether the field holds the key or path of the document, which is not stored."""


@dataclass(frozen=True, slots=True)
class _Field:
    """How a field of a class is stored."""

    attribute: str
    name: str
    read: Callable[[Any], Any] | None
    write: Callable[[Any], Any] | None
    part: type[Stored] | None
    is_null: bool
    may_lack: bool
    is_left_out: bool
    is_place: bool

    @property
    def is_plain(self) -> bool:
        """Whether the value is always in the document, and can be read without the document's place."""
        return not (self.part or self.may_lack or self.is_place)

    def of_json(self, where: str, value: Any) -> Any:
        """Return the value of the field."""
        if self.part is not None:
            return None if value is None and self.is_null else self.part.of_part(where, value)
        return value if self.read is None else self.read(value)


class _Plan(NamedTuple):
    """How a class is stored; precomputed, so that plain fields are read and written fast."""

    readers: tuple[tuple[str, str, Callable[[Any], Any] | None, _Field | None], ...]
    """For each field, its name, its key, the function that reads it, and the field if it is not plain."""
    writers: tuple[tuple[str, str, Callable[[Any], Any] | None, bool], ...]
    """For each stored field, its name, its key, the function that writes it, and whether None is left out."""


_PLANS: dict[type[Stored], _Plan] = {}


def _plan_of(cls: type[Stored]) -> _Plan:
    """Return how a class is stored. It is computed once, when its first document is read or written."""
    plan = _PLANS.get(cls)
    if plan is None:
        fields = _fields_of(cls)
        plan = _PLANS[cls] = _Plan(
            tuple((each.attribute, each.name, each.read, None if each.is_plain else each) for each in fields),
            tuple((each.attribute, each.name, each.write, each.is_left_out) for each in fields if not each.is_place),
        )
    return plan


def _fields_of(cls: type[Stored]) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(_field(each.name, hints[each.name], cls.DOCUMENT.converts) for each in dataclasses.fields(cls))  # type: ignore[arg-type]


def _field(attribute: str, hint: Any, converts: bool) -> _Field:
    kind, notes = hint, list[Any]()
    if typing.get_origin(hint) is Annotated:
        kind, *notes = typing.get_args(hint)
    how = next((note for note in notes if isinstance(note, As)), As())
    others = [each for each in typing.get_args(kind) if each is not types.NoneType]
    is_optional = typing.get_origin(kind) is types.UnionType and len(others) < len(typing.get_args(kind))
    plain = others[0] if is_optional and len(others) == 1 else kind
    read, write = how.read or _reader(plain, converts), how.write or _writer(plain)
    part = plain if isinstance(plain, type) and issubclass(plain, Stored) and not how.read else None
    return _Field(
        attribute,
        how.name or attribute,
        _or_none(read) if is_optional else read,
        _or_none(write) if is_optional else write,
        part,
        is_optional and not how.is_left_out,
        how.may_lack or how.is_left_out,
        how.is_left_out,
        how.is_place,
    )


def _or_none(make: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    return None if make is None else lambda value: None if value is None else make(value)


def _reader(kind: Any, converts: bool) -> Callable[[Any], Any] | None:
    """Return the function that converts JSON to a value of this type; None if no conversion is needed."""
    if typing.get_origin(kind) is tuple:
        read = _reader(typing.get_args(kind)[0], converts)
        return tuple if read is None else lambda values: tuple(map(read, values))
    if kind is datetime:
        return datetime.fromisoformat
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    return kind if converts and kind in (int, str, float) else None


def _writer(kind: Any) -> Callable[[Any], Any] | None:
    """Return the function that converts a value of this type to JSON; None if no conversion is needed."""
    if isinstance(kind, type) and issubclass(kind, Stored):
        return kind.to_part
    return datetime.isoformat if kind is datetime else None
