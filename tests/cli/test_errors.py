"""Errors of client commands: one line that names the remedy, one object for programs, a code."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from a2a_grpc import InvalidParamsError, PermissionDeniedError, Principal, UnauthenticatedError
from a2a_grpc.agent.call_context import ServerCallContext
from a2a_grpc.agent.executor import EventQueue
from a2a_grpc.agent.request_context import RequestContext
from tests.cli.commands import COMMAND, Ran, a2a
from tests.cli.process import Process, environment_of
from tests.support import Agent, Gated, echo, serving, within

ENDLESS = """
import asyncio

async def agent(context):
    yield "it begins"
    await asyncio.Event().wait()
"""


def unused_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def both(*arguments: str, target: str, **variables: str) -> tuple[Ran, Ran]:
    """The command for people and for programs; neither writes to stdout, both end alike."""
    human, as_json = await asyncio.gather(
        a2a(*arguments, target=target, **variables),
        a2a(*arguments, "--json", target=target, **variables),
    )
    assert human.code == as_json.code == as_json.error_object["code"]
    assert human.out == as_json.out == ""
    assert as_json.error_object["message"] == human.error
    assert {"code", "reason", "message", "fields"} <= set(as_json.error_object)
    return human, as_json


class Tokens:
    async def authenticate(self, call: ServerCallContext) -> Principal:
        token = call.metadata.get("authorization", "")
        if token == "Bearer known":
            raise PermissionDeniedError()
        if token != "Bearer good":
            raise UnauthenticatedError()
        return Principal("alice")


@pytest.mark.parametrize("command", [("send", "hi"), ("stream", "hi"), ("list",), ("card",)])
async def test_a_server_that_is_not_there(command: tuple[str, ...]) -> None:
    address = unused_address()
    human, as_json = await both(*command, target=address)
    assert human.code == 5
    assert human.error.startswith(f"{address} can't be reached: nothing listens there")
    assert "--target" in human.error
    assert as_json.error_object["reason"] == "UNAVAILABLE"


async def test_a_call_that_takes_too_long() -> None:
    gated = Gated()
    async with serving(Agent(gated.execute)) as serve:
        address = serve.server.address
        (human, as_json), streamed = await asyncio.gather(
            both("send", "hi", "--timeout", "0.3", target=address),
            a2a("stream", "hi", "--timeout", "0.3", target=address),
        )
        gated.go.set()
    assert human.code == streamed.code == 5
    assert "the task goes on (a2a-grpc subscribe " in streamed.err
    assert "--timeout" in human.error
    assert as_json.error_object["reason"] == "DEADLINE_EXCEEDED"


@asynccontextmanager
async def not_an_agent(kind: str) -> AsyncIterator[str]:
    if kind == "grpc":
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(None)
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    http = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with http:
        host, port = http.sockets[0].getsockname()
        yield f"{host}:{port}"


@asynccontextmanager
async def replying(answers: dict[str, bytes]) -> AsyncIterator[str]:
    """A server whose methods answer with these bytes, streams with one event."""

    def handler(method: str, answer: bytes) -> Any:
        async def reply(request: bytes, context: object) -> bytes:
            return answer

        async def events(request: bytes, context: object) -> AsyncIterator[bytes]:
            yield answer

        if "Stream" in method:
            return grpc.unary_stream_rpc_method_handler(events)
        return grpc.unary_unary_rpc_method_handler(reply)

    handlers = {method: handler(method, answer) for method, answer in answers.items()}
    generic = grpc.method_handlers_generic_handler("lf.a2a.v1.A2AService", handlers)
    server = grpc.aio.server(handlers=(generic,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@pytest.mark.parametrize("kind", ["grpc", "http"])
async def test_a_server_that_does_not_speak_a2a(kind: str) -> None:
    async with not_an_agent(kind) as address:
        human, as_json = await both("send", "hi", target=address)
    assert address in human.error
    assert "--target" in human.error
    assert human.code == 1
    assert as_json.error_object["reason"] == "NOT_AN_A2A_SERVER"


async def test_a_stream_without_an_answer_is_an_error() -> None:
    async with replying({"SendStreamingMessage": b""}) as address:
        human, as_json = await both("stream", "hi", target=address)
    assert human.code == 1
    assert "neither a Task nor a Message" in human.error
    assert as_json.error_object["reason"] == "INVALID_AGENT_RESPONSE"


@pytest.mark.parametrize(
    ("method", "command"),
    [("SendMessage", ("send", "hi")), ("SendStreamingMessage", ("stream", "hi"))],
)
async def test_an_answer_that_is_no_message_of_the_protocol(
    method: str, command: tuple[str, ...]
) -> None:
    async with replying({method: b"\xff\xff"}) as address:
        human, _ = await both(*command, target=address)
    assert human.code == 1
    assert address in human.error


@pytest.mark.parametrize(
    ("arguments", "closed", "expected"),
    [
        (("send", "hi"), ">&-", (0, b"", b"")),
        (("send", "hi"), "2>&-", (0, b"hi\n", b"")),
        (("chat",), "<&-", (0, b"", b"")),
        (("send", "hi"), ">/dev/full", (1, b"", b"can't read or write: No space left on device")),
        (("--help",), ">/dev/full", (1, b"", b"can't write: No space left on device")),
    ],
)
async def test_streams_that_are_closed_or_full(
    arguments: tuple[str, ...], closed: str, expected: tuple[int, bytes, bytes]
) -> None:
    code, out, says = expected
    async with serving(echo) as serve:
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", f'exec "$@" {closed}', "bash", *COMMAND, *arguments,
            env=environment_of(A2A_GRPC_TARGET=serve.server.address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        found, err = await within(process.communicate(), 30)
    assert (process.returncode, found) == (code, out)
    assert says in err
    assert b"Traceback" not in err
    assert b"Warning" not in err


async def test_the_commands_that_an_error_names_have_the_target() -> None:
    async with serving(echo) as serve:
        address = serve.server.address
        ran = await a2a("get", "none", "--target", address)
    assert f"(a2a-grpc list --target {address} shows" in ran.error


@pytest.mark.parametrize("command", [("get", ""), ("push", "get", "t", "")])
async def test_an_empty_id_is_a_usage_error(command: tuple[str, ...]) -> None:
    ran = await a2a(*command, target="127.0.0.1:1")
    assert ran.code == 2
    assert "an id can't be empty" in ran.error


async def test_a_card_that_is_not_offered_over_grpc_names_the_option() -> None:
    async with not_an_agent("grpc") as address:
        human, _ = await both("card", target=address)
    assert human.code == 1
    assert "--target takes the http(s) URL" in human.error


async def test_an_unknown_task() -> None:
    async with serving(echo) as serve:
        human, as_json = await both("get", "none", target=serve.server.address)
    assert human.code == 1
    assert human.error == "task 'none' does not exist (a2a-grpc list shows those there are)"
    assert as_json.error_object["reason"] == "TASK_NOT_FOUND"


async def test_an_invalid_argument_names_its_fields() -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        raise InvalidParamsError.field("message.parts[0].text", "must be \x1b[31ma number")

    async with serving(Agent(execute)) as serve:
        human, as_json = await both("send", "hi", target=serve.server.address)
    assert human.code == 1
    assert human.error == "message.parts[0].text: must be ␛[31ma number"
    assert as_json.error_object["reason"] == "INVALID_PARAMS"
    assert as_json.error_object["fields"][0]["field"] == "message.parts[0].text"


async def test_credentials_are_asked_for_and_sent() -> None:
    async with serving(echo, authenticator=Tokens()) as serve:
        address = serve.server.address
        human, as_json = await both("send", "hi", target=address)
        assert human.code == 6
        assert "--token" in human.error
        assert as_json.error_object["reason"] == "UNAUTHENTICATED"
        denied, _ = await both("send", "hi", "--token", "known", target=address)
        assert denied.code == 6
        let_in = await a2a("send", "hi", "--token", "good", target=address)
        assert (let_in.code, let_in.out) == (0, "hi\n")
        by_variable = await a2a("send", "hi", target=address, A2A_GRPC_TOKEN="good")
        assert by_variable.code == 0


async def test_wrong_usage_sends_nothing_and_is_an_object_for_programs() -> None:
    human, as_json = await both("send", "--frobnicate", target=unused_address())
    assert human.code == 2
    assert "--frobnicate" in human.error
    assert human.error.endswith("(see a2a-grpc send --help)")
    assert as_json.error_object["reason"] == "USAGE"


async def test_tls_that_the_server_does_not_speak() -> None:
    async with serving(echo) as serve:
        # gRPC itself writes of this to stderr, unless it is told not to.
        human, _ = await both("list", "--tls", target=serve.server.address, GRPC_VERBOSITY="NONE")
    assert human.code == 5
    assert "--no-tls" in human.error


async def test_a_traceback_is_shown_to_who_asks() -> None:
    address = unused_address()
    asked, plain = await asyncio.gather(
        a2a("list", "--log-level", "debug", target=address), a2a("list", target=address)
    )
    assert "Traceback" in asked.err
    assert asked.err.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in plain.err


async def test_a_stream_that_breaks_off_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(ENDLESS)
    with Process("serve", "agent.py", "--store", "memory:", "--port", "0", cwd=tmp_path) as server:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "stream", "hi", "--json", "--timeout", "2",
            env=environment_of(A2A_GRPC_TARGET=server.address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        task = json.loads(await within(process.stdout.readline(), 30))["task"]
        server.send_signal(signal.SIGKILL)
        _, err = await within(process.communicate(), 30)
    assert process.returncode == 5
    (line,) = err.splitlines()
    assert json.loads(line)["taskId"] == task["id"]
    assert f"a2a-grpc subscribe {task['id']}" in json.loads(line)["message"]
