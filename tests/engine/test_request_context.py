"""What an agent is told about a request, and the tasks it attaches."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_grpc import pb
from a2a_grpc.agent.call_context import Principal, ServerCallContext
from a2a_grpc.agent.request_context import (
    IDGeneratorContext,
    RequestContext,
    SimpleRequestContextBuilder,
)
from a2a_grpc.errors import InvalidParamsError
from tests.support import (
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    WORKING,
    Agent,
    Gated,
    a_task,
    asking,
    assert_error,
    chunk,
    collect,
    message,
    refused,
    request,
    serving,
    status_update,
    text,
)


class Looking:
    """Keeps the contexts it gets, and asks for more."""

    def __init__(self) -> None:
        self.contexts: list[RequestContext] = []

    async def execute(self, context: Any, queue: Any) -> None:
        self.contexts.append(context)
        await asking(context, queue)

    async def cancel(self, context: Any, queue: Any) -> None: ...


class ByName:
    async def authenticate(self, call: ServerCallContext) -> Principal:
        return Principal(call.metadata.get("x-name", "somebody"))


async def test_members_of_the_context() -> None:
    agent = Looking()
    async with serving(agents={"t": agent}, authenticator=ByName()) as s:
        made = request(
            message("one", pb.Part(raw=b"x"), pb.Part(text="two")),
            tenant="t",
            metadata={"answer": 42, "list": [1.5, 2]},
            history_length=3,
        )
        metadata = (("x-name", "ann"), ("a2a-extensions", "urn:a,urn:b"))
        task = (await s.call("SendMessage", made, metadata=metadata)).task
        (context,) = agent.contexts
        assert context.task_id == task.id
        assert context.context_id == task.context_id
        assert context.message is not None
        assert context.message.message_id == made.message.message_id
        assert context.current_task is None
        assert context.attempt == 1
        assert context.configuration is not None
        assert context.configuration.history_length == 3
        assert context.metadata == {"answer": 42, "list": [1.5, 2]}
        assert isinstance(context.metadata["answer"], int)
        assert context.requested_extensions == {"urn:a", "urn:b"}
        assert context.tenant == "t"
        assert context.call_context.tenant == "t"
        assert context.call_context.principal.id == "ann"
        assert context.get_user_input() == "one\ntwo"
        assert context.get_user_input("|") == "one|two"
        assert context.related_tasks == []
        assert not context.is_cancelled


async def test_current_task_is_the_task_with_the_message_in_its_history() -> None:
    agent = Looking()
    async with serving(agent) as s:
        task = await s.send("one")
        await s.send("two", task_id=task.id)
        current = agent.contexts[1].current_task
        assert current is not None
        assert [text(m) for m in current.history] == ["one", "what else?", "two"]


async def test_only_allow_listed_metadata_reaches_the_agent_and_credentials_never() -> None:
    agent = Looking()
    async with serving(agent, operation_metadata=("traceparent", "x-mine")) as s:
        await s.send(
            call_metadata=(
                ("authorization", "Bearer secret"),
                ("cookie", "secret"),
                ("x-api-key", "secret"),
                ("traceparent", "00-trace"),
                ("x-mine", "mine"),
                ("x-other", "other"),
            )
        )
        found = dict(agent.contexts[0].call_context.metadata)
        assert found == {"traceparent": "00-trace", "x-mine": "mine"}


@pytest.mark.parametrize("key", ["authorization", "Authorization", "cookie", "x-api-key"])
async def test_credentials_can_not_be_allow_listed(key: str) -> None:
    from a2a_grpc import ServerSettings

    with pytest.raises(ValueError, match="credentials"):
        ServerSettings(operation_metadata=(key,))


async def test_referenced_tasks_are_loaded_if_they_are_the_callers_own() -> None:
    agent = Looking()
    async with serving(agents={"": agent, "t": agent}, authenticator=ByName()) as s:
        ann, bob = s.identified(("x-name", "ann")), s.identified(("x-name", "bob"))
        own = await ann.send("own")
        other, tenants = await bob.send("other"), await ann.send("x", tenant="t")
        await ann.send(
            reference_task_ids=[own.id, other.id, tenants.id, "unknown", own.id],
        )
        assert [task.id for task in agent.contexts[-1].related_tasks] == [own.id]


async def test_referenced_tasks_need_not_be_loaded() -> None:
    agent = Looking()
    builder = SimpleRequestContextBuilder(should_populate_referred_tasks=False)
    async with serving(agent, request_context_builder=builder) as s:
        own = await s.send()
        await s.send(reference_task_ids=[own.id])
        assert agent.contexts[-1].related_tasks == []


class Numbers:
    def __init__(self, prefix: str) -> None:
        self.prefix, self.last = prefix, 0

    def generate(self, context: IDGeneratorContext) -> str:
        self.last += 1
        return f"{self.prefix}{self.last}"


async def test_ids_come_from_the_generators() -> None:
    builder = SimpleRequestContextBuilder(
        task_id_generator=Numbers("t"), context_id_generator=Numbers("c")
    )
    async with serving(asking, request_context_builder=builder) as s:
        first, second = await s.send(), await s.send(context_id="mine")
        assert (first.id, first.context_id) == ("t1", "c1")
        assert (second.id, second.context_id) == ("t2", "mine")


async def test_contradicting_ids_are_invalid() -> None:
    made = request(task_id="a", context_id="c")
    with pytest.raises(InvalidParamsError):
        RequestContext(ServerCallContext(), made, task_id="b")
    with pytest.raises(InvalidParamsError):
        RequestContext(ServerCallContext(), made, context_id="d")


# Attached tasks.


def attaching(make: Any, end: int = COMPLETED) -> Agent:
    async def execute(context: Any, queue: Any) -> None:
        await queue.enqueue_event(a_task())
        context.attach_related_task(make(context))
        assert context.related_tasks
        await queue.enqueue_event(status_update(end))  # type: ignore[arg-type]

    return Agent(execute)


def finished(task_id: str, **kw: Any) -> pb.Task:
    return a_task(COMPLETED, id=task_id, context_id="c", **kw)


async def test_attached_task_is_stored_with_the_turn() -> None:
    made = finished("attached", artifacts=[chunk("x").artifact])
    async with serving(attaching(lambda _: made)) as s:
        await s.send()
        task = await s.get("attached")
        assert text(task.artifacts[0]) == "x"
        assert {found.id for found in (await s.list()).tasks} >= {"attached"}
        assert (await s.list()).total_size == 2


async def test_attached_task_belongs_to_the_caller() -> None:
    async with serving(attaching(lambda _: finished("attached")), authenticator=ByName()) as s:
        ann, bob = s.identified(("x-name", "ann")), s.identified(("x-name", "bob"))
        await ann.send()
        await ann.get("attached")
        call = bob.call("GetTask", pb.GetTaskRequest(id="attached"))
        assert_error(await refused(call), "TASK_NOT_FOUND")


@pytest.mark.parametrize("end", [COMPLETED, INPUT_REQUIRED])
@pytest.mark.parametrize("state", [WORKING, INPUT_REQUIRED, 0])
async def test_attached_task_must_be_terminal(state: int, end: int) -> None:
    agent = attaching(lambda _: pb.Task(id="x", status=pb.TaskStatus(state=state)), end)  # type: ignore[arg-type]
    async with serving(agent) as s:
        assert_error(await refused(s.call("SendMessage", request())), "INVALID_AGENT_RESPONSE")
        page = await s.list()
        assert [task.status.state for task in page.tasks] == [FAILED]


@pytest.mark.parametrize("end", [COMPLETED, INPUT_REQUIRED])
async def test_attached_task_of_somebody_else_is_an_invalid_response(end: int) -> None:
    agents = {"": attaching(lambda _: finished("taken"), end)}
    async with serving(agents=agents, authenticator=ByName()) as s:
        ann, bob = s.identified(("x-name", "ann")), s.identified(("x-name", "bob"))
        await ann.send()
        before = await ann.get("taken")
        assert_error(await refused(bob.call("SendMessage", request())), "INVALID_AGENT_RESPONSE")
        assert await ann.get("taken") == before
        page = await bob.list()
        assert [task.status.state for task in page.tasks] == [FAILED]


async def test_attached_task_may_not_be_the_task_itself() -> None:
    async with serving(attaching(lambda context: finished(context.task_id))) as s:
        assert_error(await refused(s.call("SendMessage", request())), "INVALID_AGENT_RESPONSE")


async def test_attached_task_may_not_replace_a_running_one() -> None:
    running = Gated()

    async def execute(context: Any, queue: Any) -> None:
        if context.get_user_input() == "run":
            await running.execute(context, queue)
            return
        await queue.enqueue_event(a_task())
        context.attach_related_task(finished(context.get_user_input()))
        await queue.enqueue_event(status_update(COMPLETED))

    async with serving(Agent(execute)) as s:
        stream = s.stream("run")
        first = await stream.read()
        call = s.call("SendMessage", request(first.task.id))
        assert_error(await refused(call), "INVALID_AGENT_RESPONSE")
        running.go.set()
        assert len(await collect(stream)) == 1


@pytest.mark.parametrize("unusable", ["x" * 257, "a\x00b", "a\nb", "\ud800"])
def test_principal_has_an_id_that_every_storage_can_keep(unusable: str) -> None:
    with pytest.raises(ValueError, match="up to 256 characters"):
        Principal(unusable)
    assert Principal("x" * 256).is_authenticated
    assert Principal("ä b@c.d|e").id == "ä b@c.d|e"
