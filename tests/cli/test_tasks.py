"""`a2a-grpc get`, `list`, `cancel`, `subscribe`, `push` and `card`, against a real server."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from google.protobuf import json_format

from a2a_grpc import pb
from a2a_grpc.extensions import SEQUENCE_EXTENSION
from tests.cli.commands import COMMAND, a2a
from tests.cli.process import environment_of
from tests.support import (
    CANCELED,
    COMPLETED,
    FAILED,
    WORKING,
    Agent,
    Gated,
    a_task,
    asking,
    chunk,
    echo,
    publishing,
    sequence_of,
    serving,
    status_update,
    take,
    within,
)


async def test_get_shows_all_about_a_task(tmp_path: Path) -> None:
    events = (a_task(), chunk("some "), chunk("text", append=True), status_update(FAILED, "why"))
    async with serving(publishing(*events)) as serve:
        task = await serve.send("hello")
        ran = await a2a("get", task.id, target=serve.server.address)
        as_json = await a2a("get", task.id, "--json", "--history", "0", target=serve.server.address)
    assert (ran.code, ran.err) == (0, "")
    assert re.sub(r"\d{4}-\S+Z", "time", ran.out).splitlines() == [
        f"task     {task.id}",
        "state    FAILED",
        f"context  {task.context_id}",
        "updated  time",
        "message  why",
        "",
        "user: hello",
        "",
        "artifact a",
        "some text",
    ]
    (found,) = as_json.objects
    assert found["id"] == task.id
    assert found["status"]["state"] == "TASK_STATE_FAILED"
    assert "history" not in found
    assert json_format.ParseDict(found, pb.Task()).artifacts[0].parts[1].text == "text"


async def test_get_saves_files(tmp_path: Path) -> None:
    part = pb.Part(raw=b"x", filename="a.txt")
    event = pb.TaskArtifactUpdateEvent(artifact=pb.Artifact(artifact_id="a", parts=[part]))
    async with serving(publishing(a_task(), event, status_update(COMPLETED))) as serve:
        task = await serve.send()
        ran = await a2a("get", task.id, "-o", tmp_path, target=serve.server.address)
    assert ran.code == 0
    assert (tmp_path / "a.txt").read_bytes() == b"x"


async def test_list_shows_all_pages() -> None:
    async with serving(echo) as serve:
        ids = [(await serve.send(f"{number}")).id for number in range(120)]
        ran = await a2a("list", target=serve.server.address)
        some = await a2a("list", "--limit", "105", "--json", target=serve.server.address)
    assert (ran.code, ran.err) == (0, "")
    head, *rows = ran.out.splitlines()
    assert head.split() == ["TASK", "STATE", "UPDATED", "CONTEXT", "MESSAGE"]
    assert [row.split()[0] for row in rows] == ids[::-1]
    assert [one["id"] for one in some.objects] == ids[:14:-1]


async def test_list_filters() -> None:
    async with serving(asking) as serve:
        address = serve.server.address
        open_ = await serve.send("hello", context_id="c1")
        done = await serve.send("done", context_id="c2")

        async def listed(*options: str) -> list[str]:
            ran = await a2a("list", "--json", *options, target=address)
            assert (ran.code, ran.err) == (0, "")
            return [one["id"] for one in ran.objects]

        assert await listed() == [done.id, open_.id]
        assert await listed("--state", "input_required") == [open_.id]
        assert await listed("--state", "COMPLETED") == [done.id]
        assert await listed("--context", "c1") == [open_.id]
        assert await listed("--since", "1h") == [done.id, open_.id]
        assert await listed("--since", "2999-01-01") == []
        just = done.status.timestamp.ToJsonString()
        assert await listed("--since", just) == [done.id]
        assert await listed("--limit", "1") == [done.id]
        nothing = await a2a("list", "--state", "working", target=address)
    assert nothing == type(nothing)(0, "", "no tasks\n")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--state", "busy"), "--state"),
        (("--since", "yesterday"), "'yesterday' is no time"),
        (("--limit", "0"), "--limit"),
    ],
)
async def test_wrong_filters_are_usage_errors(options: tuple[str, ...], says: str) -> None:
    ran = await a2a("list", *options, target="127.0.0.1:1")
    assert ran.code == 2
    assert says in ran.error


async def test_cancel_ends_the_task() -> None:
    gated = Gated()
    async with serving(Agent(gated.execute)) as serve:
        task = await serve.send(immediately=True)
        ran = await a2a("cancel", task.id, target=serve.server.address)
        assert (ran.code, ran.out, ran.err) == (0, f"task {task.id} CANCELED\n", "")
        again = await a2a("cancel", task.id, target=serve.server.address)
        assert again.code == 1
        assert "has already ended" in again.error
        assert (await serve.get(task.id)).status.state == CANCELED
        other = await serve.send(immediately=True)
        as_json = await a2a("cancel", other.id, "--json", target=serve.server.address)
    assert as_json.objects[0]["status"]["state"] == "TASK_STATE_CANCELED"


async def test_subscribe_follows_to_the_end() -> None:
    gated = Gated()
    async with serving(Agent(gated.execute)) as serve:
        task = await serve.send(immediately=True)
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "subscribe", task.id, "--target", serve.server.address,
            env=environment_of(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stderr is not None
        assert (await within(process.stderr.readline(), 30)).decode() == f"task {task.id} WORKING\n"
        gated.go.set()
        _, err = await within(process.communicate(), 30)
        assert (process.returncode, err) == (0, b"COMPLETED\n")
        ended = await a2a("subscribe", task.id, target=serve.server.address)
    assert ended.code == 1
    assert f"a2a-grpc get {task.id} shows it" in ended.error


async def test_subscribe_goes_on_after_a_sequence_number() -> None:
    events = (a_task(), chunk("one "), chunk("two ", append=True), chunk("three", append=True))
    async with serving(publishing(*events, status_update(COMPLETED))) as serve:
        stream = serve.stream(call_metadata=(("a2a-extensions", SEQUENCE_EXTENSION),))
        *_, second = await take(stream, 3)
        stream.cancel()
        (task,) = (await serve.list()).tasks
        ran = await a2a(
            "subscribe", task.id, "--after", str(sequence_of(second)), target=serve.server.address
        )
    assert (ran.code, ran.out) == (0, "three\n")


async def test_subscribe_after_the_last_event_ends_as_the_task_did() -> None:
    async with serving(publishing(a_task(), status_update(FAILED))) as serve:
        stream = serve.stream(call_metadata=(("a2a-extensions", SEQUENCE_EXTENSION),))
        last = (await take(stream, 2))[-1]
        (task,) = (await serve.list()).tasks
        ran = await a2a(
            "subscribe", task.id, "--after", str(sequence_of(last)), target=serve.server.address
        )
    assert (ran.code, ran.out, ran.err) == (3, "", "nothing is new: the task is FAILED\n")


async def test_webhooks_are_managed() -> None:
    gated = Gated()
    async with serving(Agent(gated.execute), allow_private_webhooks=True) as serve:
        address = serve.server.address
        task = await serve.send(immediately=True)
        url = "http://127.0.0.1:9/hook"
        made = await a2a(
            "push", "create", task.id, url, "--id", "mine", "--webhook-token", "secret-1",
            "--webhook-auth", "Bearer secret-2", target=address,
        )  # fmt: skip
        shown = await a2a("push", "get", task.id, "mine", "--json", target=address)
        await a2a("push", "create", task.id, url, target=address)
        both = await a2a("push", "list", task.id, "--json", target=address)
        deleted = await a2a("push", "delete", task.id, "mine", target=address)
        gone = await a2a("push", "get", task.id, "mine", target=address)
        left = await a2a("push", "list", task.id, target=address)
        gated.go.set()
    assert made.code == 0
    assert made.out.splitlines()[1].split() == ["mine", url, "set", "Bearer"]
    assert "secret" not in made.out
    assert shown.objects[0]["authentication"] == {"scheme": "Bearer", "credentials": "secret-2"}
    assert len(both.objects) == 2
    assert (deleted.code, deleted.out, deleted.err) == (0, "", "")
    assert gone.code == 1
    assert len(left.out.splitlines()) == 2


async def test_the_credentials_of_a_webhook_need_a_scheme() -> None:
    ran = await a2a(
        "push", "create", "t", "http://x", "--webhook-auth", "secret", target="127.0.0.1:1"
    )
    assert ran.code == 2
    assert "--webhook-auth needs a scheme" in ran.error


def a_card() -> pb.AgentCard:
    return pb.AgentCard(
        name="Weather\x1b[31m",
        description="Knows it.",
        version="1.2.3",
        provider=pb.AgentProvider(organization="Acme", url="https://acme.example"),
        skills=[
            pb.AgentSkill(
                id="f", name="Forecast", description="Looks ahead.", tags=["rain", "sun"],
                examples=["Will it rain?"],
            )
        ],
    )  # fmt: skip


async def test_the_card_is_shown_in_words() -> None:
    async with serving(echo, card=a_card(), extended_card=pb.AgentCard(name="Extended")) as serve:
        address = serve.server.address
        ran = await a2a("card", target=address)
        as_json = await a2a("card", "--json", target=address)
        extended = await a2a("card", "--extended", target=address)
    lines = ran.out.splitlines()
    assert (ran.code, ran.err) == (0, "")
    assert lines[:3] == ["Weather␛[31m 1.2.3", "Knows it.", ""]
    fields = {line.split("  ")[0]: line.partition("  ")[2].strip() for line in lines[3:]}
    assert fields["interface"] == f"GRPC 1.0 at {address}"
    assert fields["capabilities"] == "streaming, push notifications, extended card"
    assert fields["provider"] == "Acme https://acme.example"
    assert fields["signed"] == "no"
    assert lines[-4:] == [
        "skill Forecast",
        "  Looks ahead.",
        "  tags: rain, sun",
        "  example: Will it rain?",
    ]
    assert json_format.ParseDict(as_json.objects[0], pb.AgentCard()).skills == a_card().skills
    assert extended.out.startswith("Extended ")


async def test_a_card_file_is_a_target(tmp_path: Path) -> None:
    async with serving(echo, card=a_card()) as serve:
        shown = await a2a("card", "--json", target=serve.server.address)
        (tmp_path / "card.json").write_text(shown.out)
        ran = await a2a("send", "hello", "--target", "card.json", cwd=tmp_path)
    assert (ran.code, ran.out) == (0, "hello\n")


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "can't read the card no.json: No such file"), ("{", "no.json is not a card in JSON")],
)
async def test_a_card_file_that_is_none_is_a_usage_error(
    content: str | None, says: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "no.json").write_text(content)
    ran = await a2a("card", "--target", "no.json", cwd=tmp_path)
    assert ran.code == 2
    assert says in ran.error


async def test_working_tasks_are_listed_with_what_they_say() -> None:
    agent = publishing(a_task(WORKING, "a" * 100), status_update(FAILED, "x\n\x1b[2Jy"))
    async with serving(agent) as serve:
        await serve.send()
        ran = await a2a("list", target=serve.server.address)
    assert ran.out.splitlines()[1].endswith("x ␛[2Jy")
