"""A person's decision: who, why, when, and through which surface."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self


class Surface(StrEnum):
    """The surfaces through which people decide."""

    TERMINAL = "terminal"
    PAGE = "page"
    AIRFLOW = "Airflow"
    """A form of a DAG, or Airflow's API."""
    API = "API"
    """The HTTP API of replay requests."""


_RUN_OF_NOBODY = "airflow"
"""The name that is recorded for a DAG run without a user."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision, before it is stored together with its subject."""

    reason: str
    by: str
    surface: Surface = Surface.TERMINAL
    at_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    """Epoch ms."""

    @classmethod
    def of_run(cls, user: str | None, reason: str | None) -> Self:
        """Return the decision of the user who triggered a DAG run; None: Airflow names none."""
        return cls((reason or "").strip(), user or _RUN_OF_NOBODY, Surface.AIRFLOW)
