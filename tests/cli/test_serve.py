"""`a2a-grpc serve`, run as a user or a supervisor runs it: in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import grpc
import pytest

from a2a_grpc import pb
from a2a_grpc.commands import values
from tests.cli.process import Process
from tests.environments import unavailable
from tests.support import (
    COMPLETED,
    FAILED,
    WORKING,
    collect,
    connected,
    outline,
    refused,
    request,
    take,
    text,
    within,
)

ECHO = """
async def agent(context):
    return f"Echo: {context.get_user_input()}"
"""
SERVER = """
from a2a_grpc import A2AServer, ServerSettings

async def echo(context):
    return "from the server"

server = A2AServer(echo, storage={storage!r}, settings=ServerSettings(port=0, grace=3.0))
agent = echo
"""
# Says what it would serve, and does not; the ports that it names may be taken.
PROBE = """
import json
from dataclasses import asdict

from a2a_grpc import A2AServer, ServerSettings
from a2a_grpc.commands import serve

serve.check_address = lambda host, port: None

class Probe(A2AServer):
    def run(self, *, on_started=None):
        print(json.dumps({"storage": self.storage, "broker": self.broker, **asdict(self.settings)}))

async def agent(context):
    return "never"

bare = Probe(agent)
own = Probe(
    agent,
    storage="memory:",
    settings=ServerSettings(
        host="::1", port=1, external_url="own:1", grace=1.0, deduplicate="never",
        retain_tasks=1.0, allow_private_webhooks=True, assume_version="1.0", lease=2.0,
        concurrency=3, compact_after=4.0,
    ),
)
"""


def write(directory: Path, source: str, name: str = "echo.py") -> Path:
    file = directory / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(source), encoding="utf-8")
    return file


def serve(cwd: Path, *arguments: str | Path, **variables: str) -> Process:
    """`a2a-grpc serve` on a free port."""
    return Process("serve", *arguments, "--port", "0", cwd=cwd, variables=variables)


def failure(cwd: Path, *arguments: str | Path, **variables: str) -> tuple[int, str]:
    """The exit code and the one line that say why nothing is served."""
    with Process("serve", *arguments, cwd=cwd, variables=variables) as process:
        code = process.wait()
        assert process.output == ""
        assert len(process.lines) == 1, process.lines
        return code, process.lines[0]


def databases(directory: Path) -> list[str]:
    return [file.name for file in directory.glob("*.db")]


async def answer(address: str, said: str = "hello") -> str:
    """The text of the artifact that the agent answers with."""
    async with connected(address) as client:
        task = await client.send(said)
        assert task.status.state == COMPLETED
        return text(task.artifacts[0])


# What can be served.


@pytest.mark.parametrize(
    ("source", "name", "expected"),
    [
        pytest.param(ECHO, "", "Echo: hello", id="function"),
        pytest.param(ECHO, ":agent", "Echo: hello", id="name"),
        pytest.param(
            """
            async def agent(context):
                yield "Echo: "
                yield context.get_user_input()
            """,
            "",
            "Echo: hello",
            id="generator",
        ),
        pytest.param(
            """
            class Echo:
                def __init__(self):
                    self.prefix = "Echo: "

                async def run(self, context):
                    return self.prefix + context.get_user_input()
            """,
            ":Echo",
            "Echo: hello",
            id="class",
        ),
        pytest.param(
            """
            from a2a_grpc import AgentExecutor

            class Echo(AgentExecutor):
                async def run(self, context):
                    return "Echo: " + context.get_user_input()

            class agents:
                echo = Echo()
            """,
            ":agents.echo",
            "Echo: hello",
            id="object-inside-a-class",
        ),
        pytest.param(SERVER.format(storage=None), "", "from the server", id="server-before-agent"),
        pytest.param(SERVER.format(storage=None), ":echo", "from the server", id="its-agent"),
        pytest.param(
            """
            import functools

            def decorated(function):
                @functools.wraps(function)
                def call(context):
                    return function(context)
                return call

            @decorated
            async def agent(context):
                return "Echo: " + context.get_user_input()
            """,
            "",
            "Echo: hello",
            id="decorated",
        ),
    ],
)
async def test_every_form_of_agent_is_served(
    tmp_path: Path, source: str, name: str, expected: str
) -> None:
    write(tmp_path, source, "some/echo.py")
    with serve(tmp_path, f"some/echo.py{name}") as process:
        assert await answer(process.address) == expected
        assert process.stop() == 0


async def test_a_module_is_found_in_the_current_directory(tmp_path: Path) -> None:
    write(tmp_path, "", "agents/__init__.py")
    write(tmp_path, "PREFIX = 'Echo: '", "agents/words.py")
    write(
        tmp_path,
        """
        from .words import PREFIX

        async def echo(context):
            return PREFIX + context.get_user_input()
        """,
        "agents/echo.py",
    )
    with serve(tmp_path, "agents.echo:echo") as process:
        assert await answer(process.address) == "Echo: hello"


async def test_a_file_finds_what_lies_beside_it(tmp_path: Path) -> None:
    write(tmp_path, "PREFIX = 'Echo: '", "some/words.py")
    # The name is one of the standard library's, which must stay importable.
    source = "from words import PREFIX\nimport json\njson.dumps\n" + ECHO.replace(
        "Echo: ", "File: "
    )
    write(tmp_path, source, "some/json.py")
    with Process(
        "serve", tmp_path / "some" / "json.py", "--port", "0", "--store", "memory:", cwd=tmp_path
    ) as process:
        assert await answer(process.address) == "File: hello"


async def test_the_console_script_serves(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("a2a-grpc")
    if not script.exists():
        unavailable("the package is not installed in this environment")
    write(tmp_path, ECHO)
    with Process("serve", "echo:agent", "--port", "0", cwd=tmp_path, command=[script]) as process:
        assert await answer(process.address) == "Echo: hello"
        assert process.stop() == 0


# The line that programs wait for.


@pytest.mark.parametrize("level", ["debug", "info", "error"])
def test_one_line_with_serving_and_the_address_goes_to_stderr(tmp_path: Path, level: str) -> None:
    write(tmp_path, ECHO)
    with serve(tmp_path, "echo.py", "--log-level", level) as process:
        address = process.address
        assert process.stop() == 0
        assert [line for line in process.lines if "serving" in line] == [f"serving {address}"]
        assert process.output == ""
    host, _, port = address.rpartition(":")
    assert host == "127.0.0.1"
    assert 0 < int(port) < 65536


async def test_calls_are_answered_as_soon_as_the_line_is_there(tmp_path: Path) -> None:
    write(tmp_path, ECHO)
    with serve(tmp_path, "echo.py", "--store", "memory:") as process:
        assert await answer(process.address) == "Echo: hello"


async def test_an_ipv6_address_may_be_bound(tmp_path: Path) -> None:
    write(tmp_path, ECHO)
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with serve(tmp_path, "echo.py", "--host", "[::1]") as process:
        assert process.address.startswith("[::1]:")
        assert await answer(process.address) == "Echo: hello"


def test_binding_all_addresses_without_an_external_url_is_warned_of(tmp_path: Path) -> None:
    write(tmp_path, ECHO)
    with serve(tmp_path, "echo.py", "--host", "0.0.0.0") as process:
        assert process.stop() == 0
        assert [line for line in process.lines if "--external-url" in line]
    with serve(
        tmp_path, "echo.py", "--host", "0.0.0.0", "--external-url", "example.com:443"
    ) as process:
        assert process.stop() == 0
        assert not [line for line in process.lines if "--external-url" in line]


# What can't be served.


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        ("missing.py", 1, ["missing.py", "No such file", "give the path"]),
        ("directory.py", 1, ["directory.py", "Is a directory"]),
        ("notes.txt", 2, ["notes.txt", "path/to/file.py"]),
        (".", 2, ["neither a Python file nor a module's name"]),
        ("some/echo", 2, ["some/echo is neither", "did you mean some/echo.py?"]),
        ("some/other", 2, ["some/other is neither", "path/to/file.py"]),
        ("syntax.py", 1, ["syntax.py, line 2", "SyntaxError"]),
        ("bytes.py", 1, ["bytes.py", "SyntaxError"]),
        ("raises.py", 1, ["raises.py, line 3", "ZeroDivisionError: division by zero"]),
        ("wants.py", 1, ["wants.py, line 1", "No module named 'surely_missing'", "install it"]),
        ("wants", 1, ["wants", "No module named 'surely_missing'", "install it"]),
        ("exits.py", 1, ["exits.py, line 2", "SystemExit", "__main__"]),
        ("relative.py", 1, ["relative.py, line 1", "package.module:name"]),
        ("surely_missing", 1, ["no module surely_missing", "start in the directory"]),
        ("surely_missing.sub:agent", 1, ["no module surely_missing", "path/to/file.py"]),
        ("echo.sub", 1, ["no module echo.sub"]),
        ("echo.py:nothing", 1, ["echo.py has no nothing", "echo.py:agent"]),
        ("echo.py:agent.nothing", 1, ["echo.py has no agent.nothing", "echo.py:agent"]),
        ("others.py", 1, ["neither server nor agent", "others.py:first", "first, Second"]),
        ("empty.py", 1, ["neither server nor agent", "define one"]),
        ("bad.py:number", 1, ["bad.py:number", "42 is not an agent", "AgentExecutor"]),
        ("bad.py:sync", 1, ["bad.py:sync", "not async", "async def"]),
        ("bad.py:Nothing", 1, ["bad.py:Nothing", "is not an agent"]),
        ("bad.py:Picky", 1, ["class bad.py:Picky", "without arguments"]),
        ("bad.py:nullary", 1, ["bad.py:nullary", "one parameter", "the context"]),
        ("bad.py:Nullary", 1, ["bad.py:Nullary", "give run one parameter"]),
        ("bad.py:greedy", 1, ["bad.py:greedy", "'other'"]),
        ("bad.py:", 2, ["is not a target", "package.module:name"]),
        ("bad.py:not-a-name", 2, ["is not a target", "package.module:name"]),
        (":agent", 2, ["is not a target"]),
    ],
)
def test_a_bad_target_is_refused_in_one_line(
    tmp_path: Path, target: str, code: int, words: list[str]
) -> None:
    (tmp_path / "directory.py").mkdir()
    (tmp_path / "bytes.py").write_bytes(b"agent = '\xff'\n")
    write(tmp_path, "nothing", "notes.txt")
    write(tmp_path, ECHO)
    write(tmp_path, ECHO, "some/echo.py")
    write(tmp_path, "x = 1\nasync def agent(context:\n", "syntax.py")
    write(tmp_path, "def agent():\n    '''Text.'''\n1 / 0\n", "raises.py")
    write(tmp_path, "import surely_missing\n", "wants.py")
    write(tmp_path, "import sys\nsys.exit('bye')\n", "exits.py")
    write(tmp_path, "from .words import PREFIX\n", "relative.py")
    write(
        tmp_path,
        """
        from a2a_grpc import AgentExecutor

        async def first(context):
            return ""

        class Second(AgentExecutor):
            async def run(self, context):
                return ""
        """,
        "others.py",
    )
    write(tmp_path, "", "empty.py")
    write(
        tmp_path,
        """
        number = 42

        def sync(context):
            return ""

        async def nullary():
            return ""

        async def greedy(context, other):
            return ""

        class Nullary:
            async def run(self):
                return ""

        class Nothing:
            pass

        class Picky:
            def __init__(self, needed):
                pass

            async def run(self, context):
                return ""
        """,
        "bad.py",
    )
    found, line = failure(tmp_path, target)
    assert found == code, line
    assert line.startswith("error: ")
    for word in words:
        assert word in line
    assert databases(tmp_path) == []


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--host", "", ["--host", "127.0.0.1"]),
        ("--host", "http://example.com", ["--host", "not an address"]),
        ("--port", "http", ["--port", "'http' is not a port", "0 to 65535"]),
        ("--port", "65536", ["--port", "65536"]),
        ("--port", "-1", ["--port", "-1"]),
        ("--store", "agents.db", ["--store", "sqlite:///file.db", "memory:"]),
        ("--store", "memory", ["--store", "sqlite:///file.db", "memory:"]),
        ("--store", "mongodb://host/db", ["--store", "'mongodb://host/db'", "sqlite:///file.db"]),
        ("--store", "sqlite://file.db", ["--store", "sqlite:///file.db"]),
        ("--store", "sqlite://", ["--store", "sqlite:///file.db", "memory:"]),
        ("--store", "sqlite", ["--store", "sqlite:///file.db", "memory:"]),
        ("--store", "postgresql:", ["--store", "postgresql://user@host/database"]),
        ("--broker", "kafka://host", ["--broker", "'kafka://host'", "nats://host:4222", "memory:"]),
        ("--broker", "nats:host", ["--broker", "nats://host:4222"]),
        ("--role", "boss", ["--role", "all", "frontend", "worker"]),
        ("--processes", "0", ["--processes", "'0'", "1 to 999"]),
        ("--processes", "many", ["--processes", "'many'", "1 to 999"]),
        ("--processes", "1000", ["--processes", "1 to 999"]),
        ("--concurrency", "0", ["--concurrency", "'0'", "1 to 2147483647"]),
        ("--concurrency", "9999999999", ["--concurrency", "1 to 2147483647"]),
        ("--lease", "0.5", ["--lease", "'0.5'", "1 second or more"]),
        ("--lease", "long", ["--lease", "'long'", "seconds"]),
        ("--compact-after", "1", ["--compact-after", "30d, 12h, 45m or 90s", "forever"]),
        ("--grace", "soon", ["--grace", "'soon'", "seconds"]),
        ("--grace", "-1", ["--grace", "'-1'", "0 or more"]),
        ("--grace", "nan", ["--grace", "'nan'"]),
        ("--grace", "inf", ["--grace", "'inf'"]),
        ("--deduplicate", "sometimes", ["--deduplicate", "marked", "always", "never"]),
        ("--retain-tasks", "30", ["--retain-tasks", "30d, 12h, 45m or 90s", "forever"]),
        ("--retain-tasks", "1w", ["--retain-tasks", "30d, 12h, 45m or 90s", "forever"]),
        ("--retain-tasks", "-1d", ["--retain-tasks", "'-1d'"]),
        ("--retain-tasks", "9999999999d", ["--retain-tasks", "'9999999999d'"]),
        ("--assume-version", "0.3", ["--assume-version", "'0.3'", "1.0"]),
        ("--external-url", "two words", ["--external-url", "host:port"]),
        ("--log-format", "xml", ["--log-format", "human", "json"]),
        ("--log-level", "loud", ["--log-level", "debug"]),
        ("--prot", "1", ["--prot", "--port"]),
    ],
)
def test_a_bad_option_is_refused_in_one_line(
    tmp_path: Path, option: str, value: str, words: list[str]
) -> None:
    write(tmp_path, ECHO)
    code, line = failure(tmp_path, "echo.py", f"{option}={value}")
    assert code == 2, line
    assert line.startswith("error: ")
    for word in [*words, "a2a-grpc serve --help"]:
        assert word in line


POSTGRES = "postgresql://db/agents"
NATS = "nats://127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--role", "worker"], ["--role worker", "sqlite:///a2a-grpc.db", "--store postgresql://"]),
        (["--role", "frontend", "--store", "memory:"], ["--role frontend", "memory:", "--store"]),
        (["--role", "worker", "--store", POSTGRES], ["--role worker", "memory:", "--broker nats"]),
        (["--processes", "2"], ["--processes 2", "sqlite:///a2a-grpc.db", "--store postgresql://"]),
        (["--processes", "2", "--store", "memory:"], ["--processes 2", "memory:", "--store"]),
        (["--processes", "2", "--store", POSTGRES], ["--processes 2", "memory:", "--broker nats"]),
        (["--processes", "2", "--broker", NATS], ["--processes 2", "sqlite", "--store postgresql"]),
        (["--broker", NATS], [f"--broker {NATS}", "sqlite:///a2a-grpc.db", "--store postgresql"]),
        (["--broker", "tls://h", "--store", "memory:"], ["--broker tls://h", "leave --broker out"]),
    ],
)
def test_what_one_process_has_to_itself_is_not_shared(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    write(tmp_path, ECHO)
    code, line = failure(tmp_path, "echo.py", *arguments)
    assert code == 2, line
    for word in [*words, "a2a-grpc serve --help"]:
        assert word in line
    assert databases(tmp_path) == []


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ("storage=InMemoryStorage()", ["InMemoryStorage is not", "--store postgresql://"]),
        (f"storage={POSTGRES!r}, broker=InMemoryBroker()", ["InMemoryBroker", "--broker nats"]),
        (f"storage={POSTGRES!r}", ["memory: does not", "--broker nats"]),
    ],
)
def test_what_a_server_has_to_itself_is_not_shared(
    tmp_path: Path, parts: str, words: list[str]
) -> None:
    source = f"""
        from a2a_grpc import A2AServer, InMemoryBroker, InMemoryStorage

        async def agent(context):
            return ""

        server = A2AServer(agent, {parts})
    """
    write(tmp_path, source)
    code, line = failure(tmp_path, "echo.py", "--role", "frontend")
    assert code == 2
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("module", "said", "arguments"),
    [
        (
            "asyncpg",
            "PostgreSQL needs asyncpg: pip install 'a2a-grpc[postgres]'",
            ["--store", POSTGRES],
        ),
        (
            "nats",
            "NATS needs nats-py: pip install 'a2a-grpc[nats]'",
            ["--store", POSTGRES, "--broker", NATS],
        ),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, module: str, said: str, arguments: list[str]
) -> None:
    write(tmp_path, f"import sys\nsys.modules[{module!r}] = None\n{ECHO}")
    code, line = failure(tmp_path, "echo.py", "--port", "0", *arguments)
    assert code == 1
    assert line == f"error: {said}"


def test_no_target_and_no_such_command_are_refused_in_one_line(tmp_path: Path) -> None:
    code, line = failure(tmp_path)
    assert code == 2
    assert "TARGET" in line
    with Process("sevre", cwd=tmp_path) as process:
        assert process.wait() == 2
        assert len(process.lines) == 1
        assert "sevre" in process.lines[0]


def test_a_taken_port_is_refused(tmp_path: Path) -> None:
    write(tmp_path, ECHO)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, line = failure(tmp_path, "echo.py", "--port", str(port))
    assert code == 1
    assert f"127.0.0.1:{port}" in line
    assert "taken" in line
    assert "--port" in line


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    write(tmp_path, ECHO)
    code, line = failure(tmp_path, "echo.py", "--host", "192.0.2.1", "--port", "0")
    assert code == 1
    assert "192.0.2.1" in line
    assert "not this machine's" in line
    assert "--host" in line


def test_a_name_of_no_machine_is_refused(tmp_path: Path) -> None:
    write(tmp_path, ECHO)
    code, line = failure(tmp_path, "echo.py", "--host", "no.such.host.invalid", "--port", "0")
    assert code == 1
    assert "no.such.host.invalid" in line
    assert "--host" in line


def test_a_second_process_on_the_same_database_is_refused(tmp_path: Path) -> None:
    write(tmp_path, ECHO)
    with serve(tmp_path, "echo.py") as first:
        assert first.address
        code, line = failure(tmp_path, "echo.py", "--port", "0")
        assert code == 1
        assert "a2a-grpc.db" in line
        assert "in use by another process" in line
        assert first.stop() == 0
    with serve(tmp_path, "echo.py") as third:
        assert third.stop() == 0


@pytest.mark.parametrize(
    ("store", "words"),
    [
        ("sqlite:///no/such/directory/file.db", ["directory", "must exist"]),
        ("sqlite:///text.db", ["text.db", "must be a database"]),
        ("sqlite:///directory.py", ["directory.py"]),
    ],
)
def test_a_database_that_cannot_be_opened_is_refused(
    tmp_path: Path, store: str, words: list[str]
) -> None:
    write(tmp_path, ECHO)
    write(tmp_path, "This is no database.\n" * 100, "text.db")
    (tmp_path / "directory.py").mkdir()
    code, line = failure(tmp_path, "echo.py", "--store", store, "--port", "0")
    assert code == 1
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("arguments", "traceback_of"),
    [
        (["raises.py"], "ZeroDivisionError: division by zero"),
        (["echo.py", "--host", "192.0.2.1"], "OSError"),
    ],
)
def test_the_log_level_debug_shows_the_traceback(
    tmp_path: Path, arguments: list[str], traceback_of: str
) -> None:
    write(tmp_path, ECHO)
    write(tmp_path, "1 / 0\n", "raises.py")
    with serve(tmp_path, *arguments, "--log-level", "debug") as process:
        assert process.wait() == 1
        errors = "\n".join(process.lines)
    assert "Traceback (most recent call last)" in errors
    assert traceback_of in errors


def test_what_nobody_foresaw_is_one_line_too(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        from a2a_grpc import A2AServer, InMemoryStorage

        class Broken(InMemoryStorage):
            async def __aenter__(self):
                raise KeyError("colour")

        async def agent(context):
            return ""

        server = A2AServer(agent, storage=Broken())
        """,
    )
    code, line = failure(tmp_path, "echo.py", "--port", "0")
    assert code == 1
    assert "KeyError: 'colour'" in line
    assert "--log-level debug" in line


# Options and environment.


def probe(cwd: Path, target: str, *arguments: str, **variables: str) -> dict[str, object]:
    """Everything that would be served."""
    write(cwd, PROBE, "probe.py")
    with Process(
        "serve", f"probe.py:{target}", *arguments, cwd=cwd, variables=variables
    ) as process:
        assert process.wait() == 0, process.lines
        found: dict[str, object] = json.loads(process.output)
        return found


OPTIONS = [
    ("--host", "localhost", "host", "localhost"),
    ("--port", "1234", "port", 1234),
    ("--store", "postgresql://db/agents", "storage", "postgresql://db/agents"),
    ("--broker", "nats://a:1,nats://b:2?x=y", "broker", "nats://a:1,nats://b:2?x=y"),
    ("--role", "worker", "role", "worker"),
    ("--lease", "2.5", "lease", 2.5),
    ("--concurrency", "17", "concurrency", 17),
    ("--compact-after", "90s", "compact_after", 90.0),
    ("--grace", "2.5", "grace", 2.5),
    ("--deduplicate", "always", "deduplicate", "always"),
    ("--retain-tasks", "12h", "retain_tasks", 12 * 3600.0),
    ("--external-url", "https://agents.example.com", "external_url", "https://agents.example.com"),
    ("--assume-version", "1.0", "assume_version", "1.0"),
]


def variable(option: str) -> str:
    return "A2A_GRPC_" + option.removeprefix("--").replace("-", "_").upper()


@pytest.mark.parametrize("target", ["bare", "own"])
def test_every_option_arrives_from_the_command_line_and_from_the_environment(
    tmp_path: Path, target: str
) -> None:
    arguments = [f"{option}={given}" for option, given, _, _ in OPTIONS]
    variables = {variable(option): given for option, given, _, _ in OPTIONS}
    for found in (probe(tmp_path, target, *arguments), probe(tmp_path, target, **variables)):
        for _, _, name, expected in OPTIONS:
            assert found[name] == expected


def test_a_flag_may_be_set_and_unset_in_the_environment(tmp_path: Path) -> None:
    name = "allow_private_webhooks"
    assert probe(tmp_path, "bare")[name] is False
    assert probe(tmp_path, "bare", "--allow-private-webhooks")[name] is True
    assert probe(tmp_path, "bare", A2A_GRPC_ALLOW_PRIVATE_WEBHOOKS="1")[name] is True
    assert probe(tmp_path, "own", A2A_GRPC_ALLOW_PRIVATE_WEBHOOKS="false")[name] is False


def test_the_command_line_wins_over_the_environment(tmp_path: Path) -> None:
    assert probe(tmp_path, "bare", "--grace", "1", A2A_GRPC_GRACE="2")["grace"] == 1.0


def test_a_default_leaves_what_the_server_says(tmp_path: Path) -> None:
    own = probe(tmp_path, "own")
    expected = {
        "storage": "memory:",
        "broker": None,
        "host": "::1",
        "port": 1,
        "external_url": "own:1",
        "grace": 1.0,
        "deduplicate": "never",
        "retain_tasks": 1.0,
        "allow_private_webhooks": True,
        "assume_version": "1.0",
        "lease": 2.0,
        "concurrency": 3,
        "compact_after": 4.0,
        "reuse_port": False,
    }
    assert {name: own[name] for name in expected} == expected


def test_the_defaults_are_those_of_the_settings_and_a_file_for_the_store(tmp_path: Path) -> None:
    bare = probe(tmp_path, "bare")
    expected = {
        "storage": "sqlite:///a2a-grpc.db",
        "host": "127.0.0.1",
        "port": 50051,
        "external_url": "",
        "grace": 10.0,
        "deduplicate": "marked",
        "retain_tasks": 30 * 86400.0,
        "allow_private_webhooks": False,
        "assume_version": None,
        "role": "all",
        "lease": 15.0,
        "concurrency": 10_000,
        "compact_after": 3600.0,
        "reuse_port": False,
    }
    assert {name: bare[name] for name in expected} == expected


def test_a_bad_value_in_the_environment_is_named(tmp_path: Path) -> None:
    write(tmp_path, ECHO)
    code, line = failure(tmp_path, "echo.py", A2A_GRPC_RETAIN_TASKS="soon")
    assert code == 2
    assert "A2A_GRPC_RETAIN_TASKS" in line
    assert "'soon'" in line
    code, line = failure(tmp_path, "echo.py", A2A_GRPC_PORT="abc")
    assert code == 2
    assert "'A2A_GRPC_PORT': 'abc' is not a port: use 0 to 65535" in line


def test_the_port_that_kubernetes_sets_for_a_service_of_our_name_is_ignored(tmp_path: Path) -> None:
    assert probe(tmp_path, "bare", A2A_GRPC_PORT="tcp://10.0.0.1:50051")["port"] == 50051


def test_an_empty_variable_is_none(tmp_path: Path) -> None:
    assert probe(tmp_path, "bare", A2A_GRPC_PORT="", A2A_GRPC_STORE="")["port"] == 50051


def test_help_shows_every_option_with_its_default_and_variable(tmp_path: Path) -> None:
    with Process("serve", "--help", cwd=tmp_path, variables={"COLUMNS": "200"}) as process:
        assert process.wait() == 0
        text = " ".join(process.output.split())
    for option, _, _, _ in OPTIONS:
        assert f" {option} " in text
        assert variable(option) in text
    defaults = ("127.0.0.1", "50051", "sqlite:///a2a-grpc.db", "30d", "marked", "human", "10")
    for default in (*defaults, "all", "15", "1h", "10000", "1"):
        assert f"default: {default}" in text


def test_the_command_alone_prints_its_help(tmp_path: Path) -> None:
    with Process("--help", cwd=tmp_path) as process:
        assert process.wait() == 0
        expected = process.output
    with Process(cwd=tmp_path) as process:
        assert process.wait() == 0
        assert process.lines == []
        assert process.output == expected
    assert "serve" in expected


def test_the_version_is_shown(tmp_path: Path) -> None:
    with Process("--version", cwd=tmp_path) as process:
        assert process.wait() == 0
        assert process.output.startswith("a2a-grpc ")


async def test_assume_version_lets_calls_without_a_version_in(tmp_path: Path) -> None:
    write(tmp_path, ECHO)
    with serve(tmp_path, "echo.py") as process:
        async with grpc.aio.insecure_channel(process.address) as channel:
            status = await refused(pb.A2AServiceStub(channel).SendMessage(request("hello")))
            assert status.reason == "VERSION_NOT_SUPPORTED"
        assert process.stop() == 0
    with serve(tmp_path, "echo.py", "--assume-version", "1.0") as process:
        async with grpc.aio.insecure_channel(process.address) as channel:
            found = await within(pb.A2AServiceStub(channel).SendMessage(request("hello")))
            assert found.task.status.state == COMPLETED


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("90s", timedelta(seconds=90)),
        ("45m", timedelta(minutes=45)),
        ("12h", timedelta(hours=12)),
        ("30d", timedelta(days=30)),
        ("0s", timedelta()),
    ],
)
def test_ages_are_seconds(value: str, expected: timedelta) -> None:
    command = click.Command("any")
    context, option = click.Context(command), click.Option(["--age"])
    assert values.age(context, option, value) == expected.total_seconds()
    assert values.age(context, option, "forever") == float("inf")


# Stopping.

GATED = """
import asyncio

async def agent(context):
    await asyncio.to_thread(lambda: open("gate").read())
    return "went on"
"""
ENDLESS = """
import asyncio

class agent:
    on_interruption = {on_interruption!r}

    async def run(self, context):
        if context.attempt == 1:
            await asyncio.Event().wait()
        return f"attempt {{context.attempt}}"
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_with_0(tmp_path: Path, number: signal.Signals) -> None:
    write(tmp_path, ECHO)
    with serve(tmp_path, "echo.py") as process:
        assert process.stop(number) == 0
        assert not [line for line in process.lines if "Traceback" in line]


def test_a_signal_while_the_agent_is_imported_ends_the_process_with_0(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    write(tmp_path, "import sys\nprint('importing', file=sys.stderr)\nopen('gate').read()\n")
    with serve(tmp_path, "echo.py") as process:
        process.line("importing")
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        assert not [line for line in process.lines if "Traceback" in line]


async def test_sigterm_lets_a_running_task_end(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    write(tmp_path, GATED)
    with serve(tmp_path, "echo.py", "--grace", "30") as process:
        async with connected(process.address) as client, connected(process.address) as late:
            stream = client.stream()
            assert outline(await take(stream, 1)) == ["task WORKING"]
            process.send_signal(signal.SIGTERM)
            process.line("stopping")
            status = await refused(late.get("any"))
            assert status.code is grpc.StatusCode.UNAVAILABLE
            gate.write_text("go on", encoding="utf-8")
            assert outline(await take(stream, 2)) == ["artifact went on", "status COMPLETED"]
        assert await asyncio.to_thread(process.wait) == 0


@pytest.mark.parametrize("on_interruption", ["fail", "restart"])
async def test_a_task_that_outlives_the_grace_fails_or_starts_again(
    tmp_path: Path, on_interruption: str
) -> None:
    write(tmp_path, ENDLESS.format(on_interruption=on_interruption))
    with serve(tmp_path, "echo.py", "--grace", "0") as process:
        async with connected(process.address) as client:
            stream = client.stream()
            task_id = (await take(stream, 1))[0].task.id
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait) == 0
    with serve(tmp_path, "echo.py") as process:
        async with connected(process.address) as client:
            task = await client.get(task_id)
            if on_interruption == "fail":
                assert task.status.state == FAILED
                assert "stopped" in text(task.status.message)
                return
            while task.status.state == WORKING:
                with contextlib.suppress(grpc.aio.AioRpcError):  # it may have ended by now
                    await collect(client.subscribe(task_id))
                task = await client.get(task_id)
            assert task.status.state == COMPLETED
            assert text(task.artifacts[0]) == "attempt 2"


# The store.


async def test_tasks_are_kept_in_the_current_directory_and_survive_a_restart(
    tmp_path: Path,
) -> None:
    agents, data = tmp_path / "agents", tmp_path / "data"
    data.mkdir()
    file = write(agents, ECHO)
    with serve(data, file) as process:
        async with connected(process.address) as client:
            task = await client.send("keep this")
        assert process.stop() == 0
        assert process.line("tasks are kept in sqlite:///a2a-grpc.db")
    assert databases(data) == ["a2a-grpc.db"]
    assert databases(agents) == []
    with serve(data, file) as process:
        async with connected(process.address) as client:
            assert await client.get(task.id) == task
            assert [found.id for found in (await client.list()).tasks] == [task.id]


async def test_the_memory_store_leaves_nothing_behind(tmp_path: Path) -> None:
    write(tmp_path, ECHO)
    with serve(tmp_path, "echo.py", "--store", "memory:") as process:
        assert await answer(process.address) == "Echo: hello"
        assert process.stop() == 0
    assert databases(tmp_path) == []


@pytest.mark.parametrize(
    ("storage", "expected"),
    [(None, ["a2a-grpc.db"]), ("memory:", []), ("sqlite:///own.db", ["own.db"])],
)
async def test_a_server_with_a_storage_of_its_own_keeps_that(
    tmp_path: Path, storage: str | None, expected: list[str]
) -> None:
    write(tmp_path, SERVER.format(storage=storage))
    with Process("serve", "echo.py", cwd=tmp_path) as process:
        assert await answer(process.address) == "from the server"
        assert process.stop() == 0
    assert databases(tmp_path) == expected


# Logs.


def test_json_logs_are_one_object_a_line(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        import logging
        import warnings

        async def agent(context):
            logging.getLogger("mine").info("a line\\nand another")
            warnings.warn("careful", UserWarning)
            raise ValueError("secret")
        """,
    )
    with Process(
        "serve",
        "echo.py",
        "--port=0",
        "--log-format=json",
        cwd=tmp_path,
        command=(sys.executable, "-m", "a2a_grpc"),
    ) as process:
        asyncio.run(_fails(process.address))
        assert process.stop() == 0
        records = [json.loads(line) for line in process.lines]
    for record in records:
        assert {"time", "level", "logger", "message"} <= record.keys()
        when = datetime.fromisoformat(record["time"])
        assert when.tzinfo is not None
        assert abs(datetime.now(UTC) - when) < timedelta(minutes=5)
    by_message = {record["message"]: record for record in records}
    assert by_message["a line\nand another"]["logger"] == "mine"
    assert by_message["a line\nand another"]["level"] == "INFO"
    assert [record for record in records if "careful" in record["message"]]
    raised = [record for record in records if "exception" in record]
    assert len(raised) == 1
    assert raised[0]["level"] == "ERROR"
    assert "ValueError: secret" in raised[0]["exception"]
    assert "Traceback" in raised[0]["exception"]
    assert sum("serving" in record["message"] for record in records) == 1


async def _fails(address: str) -> None:
    async with connected(address) as client:
        task = await client.send()
        assert task.status.state == FAILED
        assert "secret" not in str(task)


def test_why_nothing_is_served_is_in_json_too(tmp_path: Path) -> None:
    code, line = failure(tmp_path, "missing.py", "--log-format", "json")
    assert code == 1
    record = json.loads(line)
    assert record["level"] == "ERROR"
    assert "missing.py" in record["message"]
    assert "exception" not in record


async def test_an_agents_exception_is_logged_with_its_traceback(tmp_path: Path) -> None:
    write(tmp_path, "async def agent(context):\n    raise ValueError('secret')\n")
    with serve(tmp_path, "echo.py") as process:
        await _fails(process.address)
        process.line("ValueError: secret")
        assert process.stop() == 0


async def test_agent_may_start_programs_while_calls_go_on(tmp_path: Path) -> None:
    (tmp_path / "starts.py").write_text(
        "import asyncio\n\n\n"
        "async def agent(context):\n"
        "    process = await asyncio.create_subprocess_exec('true')\n"
        "    return f'exit {await process.wait()}'\n"
    )
    with Process("serve", "starts.py", "--store", "memory:", "--port", "0", cwd=tmp_path) as server:
        async with connected(server.address) as client:

            async def some() -> list[str]:
                tasks = [await client.send("go") for _ in range(25)]
                return [text(task.artifacts[0]) for task in tasks]

            exits = await asyncio.gather(*(some() for _ in range(16)))
            assert {one for part in exits for one in part} == {"exit 0"}
