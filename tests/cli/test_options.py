"""The options that all client commands share, the help, and the completion of shells."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from a2a_grpc import cli
from a2a_grpc.agent.executor import EventQueue
from a2a_grpc.agent.request_context import RequestContext
from a2a_grpc.commands.client import outcome
from a2a_grpc.commands.client.options import ClientCommand, shared
from tests.cli.commands import a2a
from tests.cli.process import environment_of
from tests.environments import unavailable
from tests.support import COMPLETED, Agent, a_task, echo, serving

CLIENT = ["card", "send", "stream", "chat", "get", "list", "cancel", "subscribe"]
PUSH = ["create", "get", "list", "delete"]


def command(*names: str) -> click.Command:
    found: Any = cli.commands
    for name in names:
        found = found.get_command(click.Context(found), name)
        assert found is not None, names
    return found  # type: ignore[no-any-return]


ALL = [(name,) for name in CLIENT] + [("push", name) for name in PUSH]


@pytest.mark.parametrize("names", ALL, ids=" ".join)
def test_every_client_command_has_the_shared_options(names: tuple[str, ...]) -> None:
    found = command(*names)
    assert isinstance(found, ClientCommand)
    has = {parameter.name for parameter in found.params}
    assert {option.name for option in shared()} <= has


def test_no_variable_of_a_server_is_read_by_clients() -> None:
    serve = command("serve")
    of_server = {parameter.envvar for parameter in serve.params if parameter.envvar}
    of_clients = {option.envvar for option in shared()}
    assert not of_server & of_clients
    assert "A2A_GRPC_TARGET" in of_clients
    assert "A2A_GRPC_CLIENT_TLS_CERT" in of_clients


async def test_the_variables_of_a_server_do_not_disturb() -> None:
    async with serving(echo) as serve:
        ran = await a2a(
            "send", "hi", target=serve.server.address,
            A2A_GRPC_PORT="tcp://10.0.0.1:50051", A2A_GRPC_HOST="nonsense",
            A2A_GRPC_TLS_CERT="/nowhere", A2A_GRPC_TLS_KEY="/nowhere", A2A_GRPC_LOG_LEVEL="?",
        )  # fmt: skip
    assert (ran.code, ran.out) == (0, "hi\n")


async def test_tenant_and_metadata_are_sent() -> None:
    seen: list[Any] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        seen.append(context.call_context)
        await queue.enqueue_event(a_task(COMPLETED))

    async with serving(Agent(execute)) as serve:
        ran = await a2a(
            "send", "hi", "--metadata", "X-Request-Id=17", "--metadata", "traceparent=a=b",
            target=serve.server.address,
        )  # fmt: skip
        assert ran.code == 0, ran.err
        by_variable = await a2a(
            "send", "hi", target=serve.server.address,
            A2A_GRPC_METADATA="x-request-id=1 tracestate=2",
        )  # fmt: skip
        assert by_variable.code == 0, by_variable.err
        tenant = await a2a("send", "hi", "--tenant", "acme", target=serve.server.address)
        assert tenant.code == 0, tenant.err
    assert seen[0].metadata["x-request-id"] == "17"
    assert seen[0].metadata["traceparent"] == "a=b"
    assert (seen[1].metadata["x-request-id"], seen[1].metadata["tracestate"]) == ("1", "2")
    assert seen[2].tenant == "acme"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--target", "localhost"), "'localhost' has no port"),
        (("--target", "ftp://x:1"), "ftp://"),
        (("--target", ":1"), "has no host"),
        (("--metadata", "novalue"), "use key=value"),
        (("--metadata", "x-bin=1"), "x-bin can't be given here"),
        (("--metadata", "grpc-timeout=1"), "grpc-timeout can't be given here"),
        (("--timeout", "0"), "use more than 0"),
        (("--timeout", "nan"), "use more than 0"),
        (("--token", ""), "the token is empty"),
        (("--tls-ca", "/nowhere"), "/nowhere"),
        (("--tls-ca", "/etc/hostname"), "holds no CERTIFICATE"),
        (("--no-tls", "--tls-ca", "/etc/hostname"), "--no-tls contradicts"),
        (("--tls-cert", "/etc/hostname"), "need each other"),
        (("--log-level", "loud"), "--log-level"),
    ],
)
async def test_wrong_values_are_usage_errors(options: tuple[str, ...], says: str) -> None:
    ran = await a2a("list", *options)
    assert ran.code == 2, ran
    assert says in ran.error
    assert ran.out == ""


async def test_a_token_with_forbidden_characters_is_not_repeated() -> None:
    ran = await a2a("list", A2A_GRPC_TOKEN="sécret\nx")
    assert ran.code == 2
    assert "cret" not in ran.err
    assert "A2A_GRPC_TOKEN" in ran.error


@pytest.mark.parametrize("names", [*ALL, ("push",), ("completion",)], ids=" ".join)
async def test_help_is_short(names: tuple[str, ...]) -> None:
    ran = await a2a(*names, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert len(ran.out.splitlines()) < 70
    assert "\\b" not in ran.out


async def test_the_help_has_the_exit_codes() -> None:
    for arguments in (("--help",), ("send", "--help"), ("subscribe", "--help")):
        said = " ".join((await a2a(*arguments)).out.split())
        assert outcome.HELP in said


async def test_rich_is_imported_for_people_only() -> None:
    program = (
        "import sys\nfrom a2a_grpc import cli\n"
        "try:\n    cli.main(sys.argv[1:])\nfinally:\n    print('rich' in sys.modules)\n"
    )
    async with serving(echo) as serve:
        for arguments, expected in [
            (["send", "hi", "--json"], "False"),
            (["serve", "--help"], "False"),
            (["send", "hi"], "True"),
        ]:
            target = [] if arguments[0] == "serve" else ["--target", serve.server.address]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", program, *arguments, *target,
                env=environment_of(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            out, _ = await process.communicate()
            assert out.decode().splitlines()[-1] == expected, arguments


# Completion.


def bash(script: str, tmp_path: Path) -> str:
    """What a bash prints that has our completion, and `a2a-grpc` on its path."""
    if shutil.which("bash") is None:
        unavailable("there is no bash")
    program = tmp_path / "a2a-grpc"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m a2a_grpc "$@"\n')
    program.chmod(0o755)
    variables = environment_of()
    variables["PATH"] = f"{tmp_path}:{variables['PATH']}"
    result = subprocess.run(
        ["bash", "-c", f'eval "$(a2a-grpc completion bash)"\n{script}'],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stderr == ""
    return result.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a2a-grpc", "s"], {"serve", "send", "stream", "subscribe"}),
        (["a2a-grpc", "push", ""], {"create", "get", "list", "delete"}),
        (["a2a-grpc", "list", "--st"], {"--state"}),
        (["a2a-grpc", "list", "--state", "wor"], {"working"}),
        (["a2a-grpc", "send", "--j"], {"--json"}),
        (["a2a-grpc", "completion", ""], {"bash", "zsh", "fish"}),
    ],
)
def test_bash_completes(words: list[str], expected: set[str], tmp_path: Path) -> None:
    quoted = " ".join(f"'{word}'" for word in words)
    out = bash(
        # compopt works inside a completion only; nothing here needs it.
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
        "_a2a_grpc_completion a2a-grpc\n"
        'printf "%s\\n" "${COMPREPLY[@]}"',
        tmp_path,
    )
    assert set(out.split()) == expected


def test_bash_registers_the_completion(tmp_path: Path) -> None:
    assert "-F _a2a_grpc_completion a2a-grpc" in bash("complete -p a2a-grpc", tmp_path)


@pytest.mark.parametrize(
    ("shell", "registers"),
    [("zsh", "compdef _a2a_grpc_completion a2a-grpc"), ("fish", "complete --no-files --command")],
)
async def test_other_shells_get_their_script(shell: str, registers: str) -> None:
    ran = await a2a("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert registers in ran.out
    assert "_A2A_GRPC_COMPLETE" in ran.out


async def test_an_unknown_shell_is_a_usage_error() -> None:
    ran = await a2a("completion", "tcsh")
    assert ran.code == 2
    assert re.search("bash.*zsh.*fish", ran.error)
