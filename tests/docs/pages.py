"""A page as a program: its fenced blocks, run one after another.

- A block that begins with a comment such as `# greeter.py` is a file of that name.
- `.venv/bin/a2a-grpc serve ...` starts a server, which takes the calls of the blocks below it, in
  place of the one before on the same port; if the page shows what it prints, it must not start.
- Any other `sh` block is run, and so is a `python` block that is no file. What they print is in a
  `text` or `json` block that follows; if there is none, they have to succeed.
- Commands that set up an environment or run the tests are left alone.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cli.process import PATIENCE, Process, environment_of
from tests.docs.readme import Block, Ids, blocks, comparable
from tests.environments import ROOT, environment
from tests.interop.grpcurl import grpcurl_program
from tests.interop.test_a2a_sdk_client import REQUIREMENTS

ADDRESS = "127.0.0.1:50051"
DATABASE = "postgresql://postgres@127.0.0.1:5432/agents"
NATS = "nats://127.0.0.1:4222"
COMMAND = ".venv/bin/a2a-grpc"
SERVE = f"{COMMAND} serve "
LANGUAGES = {"python", "sh", "text", "json", "yaml", "toml", "mermaid"}
SHOWN = ("text", "json")

_FILE = re.compile(r"# ([\w-]+\.(?:py|yaml|toml))\n")
_SET_UP = re.compile(r"(\.venv/bin/)?pip install |.* -m pytest$")


class Page:
    """Runs one page; a context manager that stops what the page started.

    Args:
        path: the page.
        cwd: an empty directory, where its files and databases go.
        services: what the URLs of other services that the page names are here.
    """

    def __init__(self, path: Path, cwd: Path, services: Mapping[str, str] | None = None) -> None:
        self._services = dict(services or {})
        self._blocks = blocks(path)
        self._name = path.name
        self._cwd = cwd
        self._ids = Ids()
        self._stack = ExitStack()
        self._servers: dict[str, Process] = {}  # by the address that the page has
        (cwd / "examples").symlink_to(ROOT / "examples")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def run(self) -> int:
        """Run every block, and fail at the first that is wrong; returns how many were run."""
        count = 0
        for position, block in enumerate(self._blocks):
            after = self._blocks[position + 1 : position + 2]
            shown = after[0] if after and after[0].language in SHOWN else None
            assert block.language in LANGUAGES, f"{self._where(block)}: {block.language}"
            file = _FILE.match(block.text)
            if file is not None:
                (self._cwd / file[1]).write_text(block.text, encoding="utf-8")
            elif block.language == "sh" and SERVE in block.command and shown is None:
                self._serve(block.command.partition(SERVE)[2])
            elif block.language == "sh" and _SET_UP.match(block.command):
                continue
            elif block.language in ("sh", "python") and not self._is_the_example(block):
                self.check(block, shown)
            else:
                continue
            count += 1
        self._stop()
        return count

    def _where(self, block: Block) -> str:
        return f"{self._name}, line {block.line}"

    @staticmethod
    def _is_the_example(block: Block) -> bool:
        """Whether it shows what examples/ has, which is served from there."""
        if block.language != "python":
            return False
        return any(
            block.command in path.read_text(encoding="utf-8")
            for path in (ROOT / "examples").glob("*.py")
        )

    def _serve(self, command: str) -> None:
        port = re.search(r"--port (\d+)", command)
        shown = ADDRESS if port is None else f"127.0.0.1:{port[1]}"
        if shown in self._servers:
            self._stop(shown)
        how = ["--port", "0", "--grace", "0", "--allow-private-webhooks"]
        server = Process("serve", *shlex.split(self._here(command)), *how, cwd=self._cwd)
        self._servers[shown] = self._stack.enter_context(server)

    def _here(self, command: str) -> str:
        for named, url in self._services.items():
            command = command.replace(named, url)
        return command

    def _stop(self, *shown: str) -> None:
        for address in shown or list(self._servers):
            server = self._servers.pop(address)
            assert server.stop() == 0, server.lines

    def check(self, block: Block, shown: Block | None) -> None:
        """Run a block, and compare what it prints with what the page shows."""
        code, output = self.output(block)
        if shown is None:
            assert code == 0, f"{self._where(block)}: {output}"
            return
        self._ids.learn(shown.text, output)
        got, wanted = comparable(output), comparable(shown.text)
        assert got == wanted, f"{self._where(block)} prints\n{got}\nand the page shows\n{wanted}"

    def output(self, block: Block) -> tuple[int, str]:
        """The exit code of a block's program or command, and all that it prints.

        Where the server's address is in it, it is the one that the page has.
        """
        addresses = {shown: server.address for shown, server in self._servers.items()}
        text = self._ids.put_in(block.text)
        for shown, address in addresses.items():
            text = text.replace(shown, address)
        address = addresses.get(ADDRESS, ADDRESS)
        command: Sequence[str] = (sys.executable, "-W", "error", "-c", text)
        if block.language == "sh":
            ours = f"{shlex.quote(sys.executable)} -W error -m a2a_grpc"
            text = text.replace(COMMAND, ours)
            if text.startswith("grpcurl "):
                text = shlex.quote(str(grpcurl_program())) + text.removeprefix("grpcurl")
            command = ("bash", "-c", text)
        elif "from a2a.client import" in text:
            command = (str(environment("a2a-sdk-client", REQUIREMENTS)), "-I", "-c", text)
        result = subprocess.run(
            command,
            cwd=self._cwd,
            env=environment_of(A2A_GRPC_TARGET=address),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        output = result.stdout
        for shown, address in addresses.items():
            output = output.replace(address, shown)
        return result.returncode, output
