"""Select rows of a quarantine: by kind of reason, message and offset range."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression

from waybill.base.errors import ConfigError
from waybill.config.names import check_topic
from waybill.tables.partition.statistics import reason_kinds

if TYPE_CHECKING:
    Bools = np.ndarray[Any, np.dtype[np.bool_]]

_TARGET = re.compile(r"(?P<topic>[^/@]+)(?:/(?P<partition>[0-9]{1,9})(?:@(?P<offset>[0-9]{1,18}))?)?")
_KIND = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Target:
    """A topic, a topic-partition, or one message."""

    topic: str
    partition: int | None = None
    offset: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """`flights`, `flights/3` or `flights/3@1200`. Raises `ConfigError` for anything else."""
        match = _TARGET.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"{text!r} names no message: give a topic (flights), a topic-partition (flights/3) or one message "
                f"(flights/3@1200)"
            )
        partition, offset = match["partition"], match["offset"]
        return cls(
            check_topic(match["topic"]),
            None if partition is None else int(partition),
            None if offset is None else int(offset),
        )

    def __str__(self) -> str:
        partition = "" if self.partition is None else f"/{self.partition}"
        return f"{self.topic}{partition}{'' if self.offset is None else f'@{self.offset}'}"

    @property
    def scan_filter(self) -> str:
        """Condition for PyIceberg's scan of the table."""
        wanted = [f"topic = '{self.topic}'"]
        wanted += [] if self.partition is None else [f"partition = {self.partition}"]
        wanted += [] if self.offset is None else [f"offset = {self.offset}"]
        return " and ".join(wanted)

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        """Return a boolean Arrow array: which rows belong to the target."""
        found = pc.equal(rows.column("topic"), self.topic)
        if self.partition is not None:
            found = pc.and_(found, pc.equal(rows.column("partition"), self.partition))
        if self.offset is not None:
            found = pc.and_(found, pc.equal(rows.column("offset"), self.offset))
        return found


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Selects the rows that fulfil all given conditions; without any, every row."""

    kinds: tuple[str, ...] = ()
    """The reason is of one of these kinds."""
    targets: tuple[Target, ...] = ()
    """The message belongs to one of these targets."""
    first_offset: int | None = None
    last_offset: int | None = None

    @classmethod
    def parse(
        cls,
        *,
        reasons: Sequence[str] = (),
        targets: Sequence[str] = (),
        first_offset: int | None = None,
        last_offset: int | None = None,
    ) -> Self:
        """Parse the options of a command line or a form. Raises `ConfigError` for options that can select no row."""
        for reason in reasons:
            if not _KIND.fullmatch(reason):
                raise ConfigError(f"{reason!r} is no kind of reason: give the word before the colon, such as not_json")
        if first_offset is not None and last_offset is not None and first_offset > last_offset:
            raise ConfigError(f"--from {first_offset} is behind --to {last_offset}")
        return cls(tuple(reasons), tuple(map(Target.parse, targets)), first_offset, last_offset)

    @property
    def scan_filter(self) -> str | BooleanExpression:
        """Condition by which a scan of the table can skip files. The scan may return rows that are not selected."""
        wanted = [f"({' or '.join(f'({target.scan_filter})' for target in self.targets)})"] if self.targets else []
        wanted += [] if self.first_offset is None else [f"offset >= {self.first_offset}"]
        wanted += [] if self.last_offset is None else [f"offset <= {self.last_offset}"]
        return " and ".join(wanted) or AlwaysTrue()

    def mask(self, rows: pa.RecordBatch) -> Bools:
        """Return a boolean NumPy array: which rows of the quarantine are selected."""
        found = pa.repeat(pa.scalar(True), rows.num_rows)
        if self.kinds:
            found = pc.and_(found, pc.is_in(reason_kinds(rows.column("reason")), pa.array(self.kinds)))
        if self.targets:
            one = self.targets[0].mask(rows)
            for target in self.targets[1:]:
                one = pc.or_(one, target.mask(rows))
            found = pc.and_(found, one)
        if self.first_offset is not None:
            found = pc.and_(found, pc.greater_equal(rows.column("offset"), self.first_offset))
        if self.last_offset is not None:
            found = pc.and_(found, pc.less_equal(rows.column("offset"), self.last_offset))
        return np.asarray(found.to_numpy(zero_copy_only=False))

    def document(self) -> dict[str, Any]:
        """Return the conditions for a JSON document."""
        return {
            "reasons": list(self.kinds),
            "targets": [str(target) for target in self.targets],
            "first_offset": self.first_offset,
            "last_offset": self.last_offset,
        }
