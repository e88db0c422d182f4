"""Arrow columns as pandas columns of the types that Great Expectations evaluates without a Python call for each row.

Great Expectations compares numbers as a whole only if their type is `int64` or `float64`, and times only as
`datetime64`; of anything else it calls a function for each value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import pandas as pd

_EXACT_IN_FLOAT64 = 1 << 53
_EXACT_DIGITS = 15


def pandas_frame(rows: pa.Table, columns: Sequence[str]) -> pd.DataFrame:
    """Return these columns of `rows`; the index is the number of the row. Nulls are NaN, NaT or None.

    Integers with nulls become `float64` if that is exact, else `Int64`. Decimals of up to 15 digits become `float64`.
    """
    import pandas as pd

    index = pd.RangeIndex(rows.num_rows)
    series = {name: pd.Series(_values(rows.column(name)), index=index) for name in columns}
    return pd.DataFrame(series, index=index, copy=False)


def _values(column: pa.ChunkedArray) -> Any:
    kind = column.type
    if pa.types.is_integer(kind):
        return _integers(column)
    if pa.types.is_floating(kind):
        return column.cast(pa.float64()).to_numpy()
    if pa.types.is_decimal(kind) and kind.precision <= _EXACT_DIGITS:
        # The cast goes through text, so the result is the float with the same digits, as 99.1 in the config is. Arrow's
        # direct cast divides by a power of ten, and is off by one bit for some values.
        return column.cast(pa.string()).cast(pa.float64()).to_numpy()
    return column.to_pandas()


def _integers(column: pa.ChunkedArray) -> Any:
    import pandas as pd

    if not column.null_count:
        return column.cast(pa.int64()).to_numpy()
    bounds = pc.min_max(column).as_py()
    if bounds["min"] is None or max(-bounds["min"], bounds["max"]) <= _EXACT_IN_FLOAT64:
        return column.cast(pa.float64()).to_numpy()
    return column.cast(pa.int64()).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
