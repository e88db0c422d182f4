"""Refuse executors that have another version of Waybill than the driver, with an error that names the module.

Spark sends work to executors as pickled references to modules of `waybill`. A module that moved between two versions is
missing on executors with the other version, and the application ends with a traceback of Spark. Modules moved when the
ten rooms were introduced (CHANGELOG), so this happens if `waybill-spark-env.tar.gz` is older.
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
    """Run a Spark job. Raises `ConfigError` if executors cannot find the driver's modules."""
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
