"""Imports of kafka-python's modules without the schemas of messages that Waybill never sends.

When they are imported, kafka-python's modules read the schemas of their messages and make classes of them. The packages
`kafka` (its clients) and `kafka.protocol.admin` read those of more than a hundred, of which Waybill needs one, and a
plan runs in a new process every minute.

So `skip_packages` puts these packages into `sys.modules` without running their code, and lets Python find the modules
below them. The first use of another name of such a package, as in `from kafka import KafkaConsumer`, runs its code, so
everything else in the process finds the packages as they are.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Mapping
from typing import Any

_SKIPPED: Mapping[str, Mapping[str, str]] = {
    "kafka": {},
    "kafka.protocol.admin": {"ListGroupsRequest": "kafka.protocol.admin.groups"},
}
"""Packages whose code is not run, and the modules of the names that kafka-python's own modules import from them."""


def skip_packages() -> None:
    """Let the next imports of modules below these packages not run the packages' own code. Call it before them."""
    if "kafka" in sys.modules:
        return
    for package, modules in _SKIPPED.items():
        _skip(package, modules)
    # As the package `kafka` does: without a handler, Python would print the library's warnings.
    logging.getLogger("kafka").addHandler(logging.NullHandler())


def _skip(package: str, modules: Mapping[str, str]) -> None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.loader is None:
        return  # the import will raise an error that says so
    module, loader = importlib.util.module_from_spec(spec), spec.loader

    def find(name: str) -> Any:
        if name in modules:
            return getattr(importlib.import_module(modules[name]), name)
        # The import system asks here for the modules below, too, before it imports them. Their names are in lower case.
        if not name[:1].isupper() and name not in ("__all__", "__version__"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        vars(module).pop("__getattr__", None)
        loader.exec_module(module)
        return getattr(module, name)

    vars(module)["__getattr__"] = find
    sys.modules[package] = module
    parent, _, name = package.rpartition(".")
    if parent:
        setattr(sys.modules[parent], name, module)
