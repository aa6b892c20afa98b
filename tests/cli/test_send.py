"""`a2a-grpc send` and `stream`: what goes out, what is shown, and how it ends."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from a2a_grpc import pb
from a2a_grpc.agent.executor import EventQueue
from a2a_grpc.agent.request_context import RequestContext
from tests.cli.commands import COMMAND, a2a
from tests.cli.process import environment_of
from tests.support import (
    AUTH_REQUIRED,
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    WORKING,
    Agent,
    Gated,
    a_task,
    asking,
    chunk,
    echo,
    publishing,
    serving,
    status_update,
    within,
)

OUTCOMES = [
    (COMPLETED, 0),
    (FAILED, 3),
    (REJECTED, 3),
    (CANCELED, 3),
    (INPUT_REQUIRED, 4),
    (AUTH_REQUIRED, 4),
]
COMMANDS = ["send", "stream"]


def hearing(heard: list[pb.Message]) -> Agent:
    """An agent that keeps what it is told, and answers directly."""

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        assert context.message is not None
        heard.append(context.message)
        await queue.enqueue_event(
            pb.Message(message_id="m", role=pb.Role.ROLE_AGENT, parts=[pb.Part(text="heard")])
        )

    return Agent(execute)


@pytest.mark.parametrize("command", COMMANDS)
async def test_the_answer_is_on_stdout_and_the_state_on_stderr(command: str) -> None:
    async with serving(echo) as serve:
        ran = await a2a(command, "hello", "there", target=serve.server.address)
    assert (ran.code, ran.out) == (0, "hello there\n")
    assert "COMPLETED" in ran.err
    assert "\x1b" not in ran.err


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_direct_message_is_printed(command: str) -> None:
    async with serving(hearing([])) as serve:
        ran = await a2a(command, "hello", target=serve.server.address)
    assert ran == type(ran)(0, "heard\n", "")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("state", "code"), OUTCOMES)
async def test_the_exit_code_says_how_the_task_ended(command: str, state: Any, code: int) -> None:
    agent = publishing(a_task(), status_update(state, "because"))
    name = pb.TaskState.Name(state).removeprefix("TASK_STATE_")
    async with serving(agent) as serve:
        ran, as_json = await asyncio.gather(
            a2a(command, "hello", target=serve.server.address),
            a2a(command, "hello", "--json", target=serve.server.address),
        )
    assert ran.code == as_json.code == code
    assert name in ran.err
    assert "because" in (ran.err if code == 3 else ran.out)
    assert as_json.err == ""


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_question_is_shown_with_how_to_answer_it(command: str) -> None:
    async with serving(asking) as serve:
        ran = await a2a(command, "hello", target=serve.server.address)
        assert (ran.code, ran.out) == (4, "what else?\n")
        (task,) = (await serve.list()).tasks
        assert ran.err.splitlines()[-1] == f"to answer: a2a-grpc send --task {task.id} TEXT"
        answered = await a2a(command, "--task", task.id, "done", target=serve.server.address)
    assert (answered.code, answered.out) == (0, "bye\n")


async def test_how_to_answer_names_the_target_that_was_typed() -> None:
    async with serving(asking) as serve:
        ran = await a2a("send", "hello", "--target", serve.server.address)
    assert f"a2a-grpc send --target {serve.server.address} --task " in ran.err


async def test_a_conversation_goes_on_in_its_context() -> None:
    heard: list[pb.Message] = []
    async with serving(hearing(heard)) as serve:
        ran = await a2a("send", "--context", "here", "hello", target=serve.server.address)
    assert ran.code == 0
    assert heard[0].context_id == "here"


async def test_a_second_turn_shows_only_what_is_new() -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if context.current_task is None:
            await queue.enqueue_event(a_task())
            await queue.enqueue_event(chunk("first"))
        else:
            await queue.enqueue_event(chunk("second", append=True))
        await queue.enqueue_event(status_update(INPUT_REQUIRED, "more?"))

    async with serving(Agent(execute)) as serve:
        address = serve.server.address
        assert (await a2a("stream", "one", target=address)).out == "first\nmore?\n"
        (task,) = (await serve.list()).tasks
        second = await a2a("stream", "--task", task.id, "two", target=address)
    assert second.out == "second\nmore?\n"


async def test_no_wait_prints_the_id_and_leaves_the_task_at_work() -> None:
    gated = Gated()
    async with serving(Agent(gated.execute)) as serve:
        ran = await a2a("send", "--no-wait", "hello", target=serve.server.address)
        (task,) = (await serve.list()).tasks
        assert ran == type(ran)(0, f"{task.id}\n", "")
        assert task.status.state == WORKING
        as_json = await a2a("send", "--no-wait", "--json", "hello", target=serve.server.address)
        assert as_json.objects[0]["task"]["status"]["state"] == "TASK_STATE_WORKING"
        gated.go.set()


async def test_text_files_and_data_are_sent(tmp_path: Path) -> None:
    heard: list[pb.Message] = []
    (tmp_path / "notes.md").write_bytes(b"# hi\n")
    (tmp_path / "blob.unknown-thing").write_bytes(bytes(range(256)))
    (tmp_path / "old.tar.gz").write_bytes(b"\x1f\x8b")
    async with serving(hearing(heard)) as serve:
        ran = await a2a(
            "send", "look", "--file", "notes.md", "--file", tmp_path / "blob.unknown-thing",
            "--file", "old.tar.gz", "--data", '{"n": 3, "s": ["x", null]}', "--data", "true",
            target=serve.server.address, cwd=tmp_path,
        )  # fmt: skip
        alone = await a2a("send", "--data", "1", target=serve.server.address)
    assert ran.code == alone.code == 0, ran.err
    text, notes, blob, old, data, flag = heard[0].parts
    assert text.text == "look"
    assert (notes.raw, notes.filename, notes.media_type) == (b"# hi\n", "notes.md", "text/markdown")
    assert (blob.raw, blob.media_type) == (bytes(range(256)), "application/octet-stream")
    assert (old.filename, old.media_type) == ("old.tar.gz", "application/gzip")
    assert data.data.struct_value["n"] == 3
    assert data.media_type == "application/json"
    assert flag.data.bool_value is True
    assert [part.WhichOneof("content") for part in heard[1].parts] == ["data"]


async def test_a_dash_reads_stdin_without_its_last_line_end() -> None:
    heard: list[pb.Message] = []
    async with serving(hearing(heard)) as serve:
        ran = await a2a("send", "-", target=serve.server.address, stdin="line 1\nlíne 2\n")
        dashed = await a2a("send", "--", "-5", target=serve.server.address)
    assert ran.code == dashed.code == 0
    assert [message.parts[0].text for message in heard] == ["line 1\nlíne 2", "-5"]


async def test_a_file_may_come_from_stdin() -> None:
    heard: list[pb.Message] = []
    async with serving(hearing(heard)) as serve:
        ran = await a2a("send", "x", "--file", "-", target=serve.server.address, stdin=b"\xff\n")
    assert ran.code == 0, ran.err
    text, file = heard[0].parts
    assert (text.text, file.raw, file.filename) == ("x", b"\xff\n", "")
    assert file.media_type == "application/octet-stream"


@pytest.mark.parametrize(
    ("arguments", "stdin", "says"),
    [
        ((), b"", "nothing to send: give TEXT"),
        (("-",), b"\n", "stdin is empty"),
        (("-",), b"\xff", "stdin is not text in UTF-8; attach it as a file with --file"),
        (("x", "--file", "/nowhere/file"), b"", "can't attach '/nowhere/file': No such file"),
        (("-", "--file", "-"), b"x", "stdin can be read only once"),
        (("x", "--file", "/"), b"", "can't attach '/': Is a directory"),
        (("x", "--data", "{"), b"", "--data is not JSON"),
        (("x", "--data", "NaN"), b"", "--data is not JSON: JSON has no NaN"),
        (("x", "--data", "[" * 5000), b"", "--data is not JSON"),
        (("x", "--data", "9007199254740993"), b"", "would be rounded: write it as a string"),
    ],
)
async def test_what_cannot_be_sent_is_a_usage_error(
    arguments: tuple[str, ...], stdin: bytes, says: str
) -> None:
    # Nobody listens there: nothing is sent.
    ran = await a2a("send", *arguments, target="127.0.0.1:1", stdin=stdin)
    assert ran.code == 2
    assert ran.out == ""
    assert says in ran.error


async def test_a_text_argument_that_is_no_utf8_is_a_usage_error() -> None:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "send", b"\xff", env=environment_of(), stderr=asyncio.subprocess.PIPE
    )  # fmt: skip
    _, err = await within(process.communicate())
    assert process.returncode == 2
    assert b"TEXT is not text in UTF-8" in err


@pytest.mark.parametrize("command", COMMANDS)
async def test_parts_that_are_no_text_are_described(command: str) -> None:
    artifact = pb.Artifact(artifact_id="a", parts=[
        pb.Part(raw=b"\x00\x1b[31m" * 300, filename="a\x1b.bin", media_type="image/png"),
        pb.Part(url="https://example.com/x", media_type="text/html"),
        pb.Part(data={"struct_value": {"n": 3.0, "t": "\x9bé"}}),
    ])  # fmt: skip
    agent = publishing(
        a_task(), pb.TaskArtifactUpdateEvent(artifact=artifact), status_update(COMPLETED)
    )
    async with serving(agent) as serve:
        ran = await a2a(command, "hello", target=serve.server.address)
    assert ran.out.splitlines() == [
        "[file: a␛.bin, image/png, 1.8 kB; --output DIR saves it]",
        "[link: https://example.com/x, text/html]",
        "{",
        '  "n": 3,',
        '  "t": "\\x9bé"',
        "}",
    ]


HOSTILE = "[red]x[/red] \x1b[31mred\x1b]0;title\x07 \x9b5m \u202etxt\r\nnext\rline\tend"


@pytest.mark.parametrize("command", COMMANDS)
async def test_what_an_agent_says_is_shown_and_not_obeyed(command: str) -> None:
    agent = publishing(
        a_task(WORKING, HOSTILE),
        chunk(HOSTILE),
        status_update(FAILED, HOSTILE),
    )
    async with serving(agent) as serve:
        ran, as_json = await asyncio.gather(
            a2a(command, "hello", target=serve.server.address),
            a2a(command, "hello", "--json", target=serve.server.address),
        )
    assert ran.out == ("[red]x[/red] ␛[31mred␛]0;title␇ \\x9b5m \\u202etxt\nnext␍line\tend\n")
    assert "[red]x[/red] ␛[31mred" in ran.err
    for text in (ran.err, as_json.out):
        assert not set(text) & set("\x1b\x07\x9b\u202e\r\x00")
    assert as_json.out.isascii()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("as_json", [False, True])
async def test_files_are_saved_safely(command: str, as_json: bool, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    directory = tmp_path / "deep" / "answers"
    directory.mkdir(parents=True)
    (directory / "taken.txt").write_text("mine")
    (directory / "link.txt").symlink_to(outside)
    parts = [
        pb.Part(raw=b"1", filename="../../outside"),
        pb.Part(raw=b"2", filename="/etc/passwd"),
        pb.Part(raw=b"3", filename="taken.txt"),
        pb.Part(raw=b"4", filename="link.txt"),
        pb.Part(raw=b"5", filename=".bashrc"),
        pb.Part(raw=b"6", media_type="image/png"),
        pb.Part(text="7", filename="..\\..\\text.txt"),
        pb.Part(text="shown"),
    ]
    event = pb.TaskArtifactUpdateEvent(artifact=pb.Artifact(artifact_id="../a", parts=parts))
    async with serving(publishing(a_task(), event, status_update(COMPLETED))) as serve:
        ran = await a2a(
            command, "hello", "-o", directory, *(["--json"] if as_json else []),
            target=serve.server.address,
        )  # fmt: skip
    assert ran.code == 0, ran.err
    saved = {path.name: path.read_text() for path in directory.iterdir() if not path.is_symlink()}
    assert saved == {
        "outside": "1",
        "passwd": "2",
        "taken.txt": "mine",
        "taken-2.txt": "3",
        "link-2.txt": "4",
        "bashrc": "5",
        "a.png": "6",
        "text.txt": "7",
    }
    assert not outside.exists()
    said = [line for line in ran.err.splitlines() if "saved" in line.split("/")[0]]
    assert len(said) == 7
    if not as_json:
        assert ran.out == "shown\n"
        assert "taken-2.txt (1 bytes): taken.txt was there already" in ran.err


async def test_nothing_is_sent_if_its_files_could_not_be_saved(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    # Nobody listens there.
    ran = await a2a("send", "hi", "-o", tmp_path / "file" / "x", target="127.0.0.1:1")
    assert ran.code == 2
    assert "can't save files in" in ran.error
    assert "--output names another directory" in ran.error


async def test_json_is_one_object_a_line() -> None:
    async with serving(echo) as serve:
        sent = await a2a("send", "héllo", "--json", target=serve.server.address)
        streamed = await a2a("stream", "héllo", "--json", target=serve.server.address)
        by_variable = await a2a("send", "hi", target=serve.server.address, A2A_GRPC_JSON="1")
    assert sent.err == streamed.err == ""
    assert [list(one) for one in sent.objects] == [["task"]]
    task = sent.objects[0]["task"]
    assert task["artifacts"][0]["artifactId"] == "a"
    assert task["artifacts"][0]["parts"] == [{"text": "héllo"}]
    assert [next(iter(one)) for one in streamed.objects] == [
        "task", "artifactUpdate", "statusUpdate",
    ]  # fmt: skip
    assert [list(one) for one in by_variable.objects] == [["task"]]


async def test_an_interrupted_send_says_that_the_task_goes_on() -> None:
    gated = Gated()
    async with serving(Agent(gated.execute)) as serve:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "send", "hello",
            env=environment_of(A2A_GRPC_TARGET=serve.server.address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        await within(gated.started.wait(), 30)
        process.send_signal(signal.SIGINT)
        _, err = await within(process.communicate(), 30)
        gated.go.set()
    assert process.returncode == 130
    assert err == b"error: interrupted; a task that has begun goes on (a2a-grpc list)\n"


async def test_an_interrupted_stream_says_how_to_go_on() -> None:
    gated = Gated()
    async with serving(Agent(gated.execute)) as serve:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "stream", "hello", "--target", serve.server.address,
            env=environment_of(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stderr is not None
        line = await within(process.stderr.readline(), 30)
        process.send_signal(signal.SIGINT)
        _, err = await within(process.communicate(), 30)
        assert process.returncode == 130
        (task,) = (await serve.list()).tasks
        assert task.status.state == WORKING
        assert f"task {task.id}".encode() in line
        said = err.decode()
        where = f"--target {serve.server.address} {task.id}"
        assert f"interrupted; the task goes on (a2a-grpc subscribe {where} --after " in said
        assert f"a2a-grpc cancel {where}" in said
        after = said.partition("--after ")[2].partition(",")[0]
        gated.go.set()
        followed = await a2a("subscribe", task.id, "--after", after, target=serve.server.address)
        assert (followed.code, followed.out) == (0, "")
        assert followed.err == "COMPLETED\n"
