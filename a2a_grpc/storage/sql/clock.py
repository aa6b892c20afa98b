"""The clock of the database, in SQL: leases and waiting times are judged by it alone.

The clocks of several processes disagree; what one of them wrote and another compares is therefore
never a time of theirs.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class clock(FunctionElement[float]):
    """Seconds since the epoch, as a float; it goes on within a transaction."""

    type = Double()
    inherit_cache = True


@compiles(clock, "postgresql")
def _postgresql(element: clock, compiler: Any, **options: Any) -> str:
    return "(EXTRACT(EPOCH FROM clock_timestamp())::double precision)"


@compiles(clock, "sqlite")
def _sqlite(element: clock, compiler: Any, **options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"
