"""Where a PostgreSQL database is, as its URL says, and how to name it without the password."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

SCHEMES = ("postgresql", "postgres", "postgresql+asyncpg")


class PostgresAddress:
    """A URL as libpq takes it, which the driver reads: several hosts, `?host=/socket/directory`,
    `sslmode`, `sslrootcert`, `passfile`, `target_session_attrs`, `connect_timeout`, and settings
    for the session. What the URL does not say is in PGHOST, PGUSER, PGPASSWORD and so on.

    Raises ValueError, without what may be the password, if it can't be read.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            query = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
            timeout = query.pop("connect_timeout", None)
            self._timeout = None if timeout is None else float(timeout)
        except ValueError:
            raise _unreadable() from None
        if parts.fragment or ("@" not in parts.netloc and "@" in parts.path):
            raise _unreadable()
        self._dsn = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(query), ""))
        self._settings = query
        user, _, hosts = parts.netloc.rpartition("@")
        user = user.partition(":")[0] or query.get("user", "")
        hosts = hosts or query.get("host", "")
        database = parts.path.lstrip("/") or query.get("dbname", query.get("database", ""))
        self._name = f"postgresql://{user}{'@' if user else ''}{hosts}/{database}"

    def __str__(self) -> str:
        return self._name

    async def connect(
        self, *, connect_timeout: float, command_timeout: float, settings: dict[str, str]
    ) -> asyncpg.Connection[Any]:
        """A new connection; the URL's settings go before the given ones.

        It waits for the disk before it says that something is stored, whatever the database's
        default is; a setting that waits for more, such as `remote_apply`, stays.

        Args:
            connect_timeout: seconds to connect, unless the URL says otherwise.
            command_timeout: seconds for each command.
            settings: of the session.
        """
        mine = {name: value for name, value in settings.items() if name not in self._settings}
        connection = await asyncpg.connect(
            self._dsn,
            timeout=self._timeout or connect_timeout,
            command_timeout=command_timeout,
            server_settings=mine,
        )
        try:
            if "synchronous_commit" not in self._settings:
                await connection.execute(_SYNCHRONOUS)
        except BaseException:
            connection.terminate()
            raise
        return connection


_SYNCHRONOUS = (
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') = 'off'"
)


def _unreadable() -> ValueError:
    return ValueError(
        "the PostgreSQL URL can't be read; use postgresql://user:password@host:5432/database, with "
        "special characters in the password percent-encoded"
    )
