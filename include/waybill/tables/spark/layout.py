"""Executors that have another Waybill than the driver are refused by name.

Spark sends work to executors as pickled references to modules of `waybill`. A module that moved between two versions is
missing on executors that still have the other one, and the application ends with a traceback of Spark's. Modules moved
with the ten rooms (CHANGELOG), so this is met when `waybill-spark-env.tar.gz` was made before them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError

from waybill.base.errors import ConfigError

_MISSING = re.compile(
    r"No module named '?(?P<module>waybill[\w.]*)"
    r"|module '(?P<attribute_of>waybill[\w.]*)' has no attribute"
    r"|cannot import name '\w+' from '(?P<name_of>waybill[\w.]*)'"
)


@contextmanager
def executors_have_this_waybill() -> Iterator[None]:
    """Run a Spark job. Raises `ConfigError` if executors cannot find what the driver refers to."""
    try:
        yield
    except Py4JJavaError as error:
        found = _MISSING.search(str(error.java_exception.toString()))
        if found is None:
            raise
        module = next(name for name in found.groups() if name)
        raise ConfigError(
            f"the executors have another Waybill than the driver: {module!r} is not as it is here. Make their "
            f"environment again with this version (make spark-env), and give spark-submit that (docs/spark-clusters.md)"
        ) from None
