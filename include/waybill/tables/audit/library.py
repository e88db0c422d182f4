"""Import Great Expectations when the first expectation is evaluated, without modules that an audit never uses.

The import takes 3.0 CPU seconds in a process that has PyArrow, PySpark and SQLAlchemy already. A third of that are
Altair and SciPy, which a few expectations use, and Spark's machine learning library, which only its own Spark engine
uses. Another fifth is Python's garbage collector, which finds nothing to collect. So Altair and SciPy are loaded when
they are used (`importlib.util.LazyLoader`), and the import takes 1.4 seconds (docs/decisions/0020).

This version of Great Expectations sends no usage statistics and makes no network call, unless it is configured for its
own cloud service, which an audit does not do: it uses neither a data context nor a data source.
"""

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from types import ModuleType

_LAZY = ("altair", "scipy.stats")
_LEFT_OUT = ("pyspark.ml.feature",)
"""A module of PySpark whose import is refused: Great Expectations works without it, and Waybill never imports it."""

_lock = threading.Lock()


def import_great_expectations() -> None:
    """Import Great Expectations, once in a process. Afterwards its modules can be imported as usual."""
    with _lock:
        if "great_expectations" in sys.modules:
            return
        with _lazy_modules(), _modules_left_out(), _no_garbage_collection():
            import great_expectations  # noqa: F401


class _LazyFinder(MetaPathFinder):
    """Finds the modules of `_LAZY`, whose code then runs at the first use of an attribute."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _LAZY:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


@contextmanager
def _lazy_modules() -> Iterator[None]:
    finder = _LazyFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def _modules_left_out() -> Iterator[None]:
    left_out = [name for name in _LEFT_OUT if name not in sys.modules]
    for name in left_out:
        sys.modules[name] = None  # type: ignore[assignment]  # Python then refuses to import it
    try:
        yield
    finally:
        for name in left_out:
            del sys.modules[name]


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
