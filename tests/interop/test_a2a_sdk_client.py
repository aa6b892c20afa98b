"""a2a-sdk's own gRPC client passes every operation of A2A against our server.

The server runs in a process of its own, with this module as its program; the client, which is
a2a_sdk_client.py, in an environment that has a2a-sdk and not this package.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from a2a_grpc import (
    A2AServer,
    AgentExecutor,
    ExtendedAgentCardNotConfiguredError,
    InvalidParamsError,
    Principal,
    RequestContext,
    ServerCallContext,
    ServerSettings,
    UnauthenticatedError,
    pb,
)
from a2a_grpc.agent.executor import EventQueue
from tests.environments import ROOT, environment
from tests.support import (
    CANCELED,
    COMPLETED,
    INPUT_REQUIRED,
    WORKING,
    a_task,
    chunk,
    status_update,
    texts,
)

# The client's environment is made on first use, which may take longer than a test usually does.
pytestmark = pytest.mark.timeout(600)

CLIENT = Path(__file__).with_name("a2a_sdk_client.py")
REQUIREMENTS = ["a2a-sdk[grpc]==1.3.0"]

OPERATIONS = [
    "send_message_blocking",
    "send_message_with_parts_of_every_kind",
    "send_message_history_length",
    "send_message_return_immediately",
    "send_message_direct_message",
    "send_message_multi_turn",
    "send_message_with_push_config",
    "send_message_with_metadata_and_extensions",
    "send_message_with_credentials",
    "send_message_to_tenant",
    "send_message_to_agent_that_raises",
    "send_streaming_message",
    "send_streaming_message_direct_message",
    "send_streaming_message_multi_turn",
    "send_streaming_message_events_arrive_while_the_agent_works",
    "get_task",
    "get_task_history_length",
    "list_tasks_paging",
    "list_tasks_filters",
    "cancel_task_running",
    "cancel_task_waiting_for_input",
    "subscribe_to_task_joining_in_the_middle",
    "subscribe_to_task_follows_the_next_turn",
    "create_push_config",
    "create_push_config_and_receive_the_webhook",
    "get_push_config",
    "list_push_configs",
    "delete_push_config",
    "get_extended_agent_card",
    "get_extended_agent_card_and_go_on_with_it",
    "error_task_not_found",
    "error_push_config_not_found",
    "error_task_not_cancelable",
    "error_unsupported_operation",
    "error_capability_not_declared",
    "error_push_notification_not_supported",
    "error_content_type_not_supported",
    "error_invalid_params",
    "error_invalid_agent_response",
    "error_extended_agent_card_not_configured",
    "error_extension_support_required",
    "error_version_not_supported",
    "error_unauthenticated",
    "error_timeout_bounds_the_call_and_not_the_task",
]


@dataclass
class Running:
    """A server in another process."""

    address: str
    log: Path
    output: list[str] = field(default_factory=list)
    """What it printed after its address, once it has ended."""


@contextmanager
def running(command: Sequence[Path | str], log: Path) -> Iterator[Running]:
    """Runs a server that prints its address when it serves and ends on SIGTERM."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("A2A_GRPC_", "PYTHON"))}
    path = os.pathsep.join([str(ROOT), str(ROOT / "generated")])
    with (
        log.open("w") as complaints,
        subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT,
            env={**inherited, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, f"the server did not start: {log.read_text()}"
            server = Running(address, log)
            yield server
            process.terminate()
            process.wait(timeout=30)
            server.output += process.stdout.read().splitlines()
        finally:
            process.kill()


@dataclass
class Report:
    """What the client and the server said."""

    results: dict[str, dict[str, Any]]
    complaints: str
    methods: set[str]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    python = environment("a2a-sdk-client", REQUIREMENTS)
    log = tmp_path_factory.mktemp("server") / "stderr"
    with running([sys.executable, "-m", "tests.interop.test_a2a_sdk_client"], log) as server:
        # Isolated, so that neither this repository nor anything else on a path is importable.
        client = subprocess.run(
            [str(python), "-I", str(CLIENT), server.address],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    results = [json.loads(line) for line in client.stdout.splitlines()]
    return Report(
        {result["operation"]: result for result in results},
        f"client: {client.stderr}\nserver: {log.read_text()}",
        set(json.loads(server.output[-1])) if server.output else set(),
    )


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_client_of_a2a_sdk_passes(operation: str, report: Report) -> None:
    assert operation in report.results, f"not reported: {report.complaints}"
    result = report.results[operation]
    assert result["ok"], result["detail"]


def test_the_client_reports_the_operations_named_here_and_no_others(report: Report) -> None:
    assert sorted(report.results) == sorted(OPERATIONS), report.complaints


def test_the_client_called_every_rpc(report: Report) -> None:
    service = pb.DESCRIPTOR.services_by_name["A2AService"]
    assert report.methods == {method.name for method in service.methods}, report.complaints


# From here on: the server's program.


class WordAgent(AgentExecutor):
    """Does what the first word of a message says."""

    def __init__(self) -> None:
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        publish = event_queue.enqueue_event
        word, _, rest = context.get_user_input().partition(" ")
        if context.current_task is not None:
            await self._interview(context, event_queue)
            return
        match word:
            case "direct":
                await publish(_message(pb.Part(text=rest)))
            case "about":
                await publish(_message(_about(context)))
            case "open":
                self._gates[rest].set()
                await publish(_message(pb.Part(text="opened")))
            case "refuse":
                raise InvalidParamsError.field("message.parts", "the agent does not like them")
            case "misbehave":
                await publish(status_update(WORKING))
            case "interview":
                await publish(a_task())
                await self._interview(context, event_queue)
            case "raise":
                await publish(a_task())
                raise RuntimeError("secret")
            case "echo":
                await publish(a_task())
                assert context.message is not None
                answer = chunk(rest)
                if not rest:
                    answer.artifact.ClearField("parts")
                    answer.artifact.parts.extend(context.message.parts)
                await publish(answer)
                await publish(status_update(COMPLETED))
            case "stream":
                await publish(a_task())
                pieces = rest.split()
                for number, piece in enumerate(pieces, 1):
                    update = chunk(piece, append=number > 1)
                    update.last_chunk = number == len(pieces)
                    await publish(update)
                await publish(status_update(COMPLETED))
            case "hold":
                await publish(a_task())
                await publish(chunk("before"))
                await self._gates[rest].wait()
                await publish(chunk("after", append=True))
                await publish(status_update(COMPLETED))
            case _:
                raise RuntimeError(f"no such word: {word}")

    async def _interview(self, context: RequestContext, event_queue: EventQueue) -> None:
        word, _, gate = context.get_user_input().partition(" ")
        if word != "done" or context.current_task is None:
            await event_queue.enqueue_event(status_update(INPUT_REQUIRED, "go on"))
            return
        if gate:
            await self._gates[gate].wait()
        history = context.current_task.history
        said = texts(message for message in history if message.role == pb.Role.ROLE_USER)
        await event_queue.enqueue_event(chunk(" ".join(said)))
        await event_queue.enqueue_event(status_update(COMPLETED))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await event_queue.enqueue_event(status_update(CANCELED, "stopped"))


def _message(part: pb.Part) -> pb.Message:
    return pb.Message(role=pb.Role.ROLE_AGENT, parts=[part])


def _about(context: RequestContext) -> pb.Part:
    part = pb.Part()
    part.data.struct_value.update(
        {
            "principal": context.call_context.principal.id,
            "tenant": context.tenant,
            "extensions": sorted(context.requested_extensions),
            "metadata": context.metadata,
        }
    )
    return part


class Door:
    """Lets everybody in, knows alice by her token, and remembers which RPCs were called."""

    def __init__(self) -> None:
        self.methods: set[str] = set()

    async def authenticate(self, call: ServerCallContext) -> Principal:
        self.methods.add(call.method)
        given = call.metadata.get("authorization")
        if given is None:
            return Principal()
        if given != "Bearer alice's":
            raise UnauthenticatedError()
        return Principal("alice")


def public_card() -> pb.AgentCard:
    bearer = pb.SecurityScheme(http_auth_security_scheme=pb.HTTPAuthSecurityScheme(scheme="Bearer"))
    return pb.AgentCard(
        name="Words",
        default_input_modes=["text/plain", "application/octet-stream", "image/*"],
        security_schemes={"bearer": bearer},
        security_requirements=[pb.SecurityRequirement(schemes={"bearer": pb.StringList()})],
        skills=[a_skill("public", "For everybody")],
    )


def a_skill(skill_id: str, name: str) -> pb.AgentSkill:
    return pb.AgentSkill(id=skill_id, name=name, description=f"{name}.", tags=["words"])


def extended_card(call: ServerCallContext) -> pb.AgentCard:
    if call.tenant:
        raise ExtendedAgentCardNotConfiguredError()
    card = public_card()
    card.skills.append(a_skill(f"for-{call.principal.id}", "Only for some"))
    return card


def cards() -> dict[str, pb.AgentCard]:
    """By tenant: all that there is, nothing that needs declaring, a required extension."""
    plain = pb.AgentCapabilities(
        streaming=False, push_notifications=False, extended_agent_card=False
    )
    strict = pb.AgentCapabilities()
    strict.extensions.add(uri="https://example.org/extensions/tested", required=True)
    return {
        "": public_card(),
        "plain": pb.AgentCard(name="Plain", capabilities=plain),
        "strict": pb.AgentCard(name="Strict", capabilities=strict),
    }


async def main() -> None:
    door = Door()
    card = cards()
    server = A2AServer(
        agents={tenant: WordAgent() for tenant in card},
        card=card,
        extended_card=extended_card,
        authenticator=door,
        settings=ServerSettings(port=0, grace=1.0, allow_private_webhooks=True),
    )
    await server.serve(on_started=lambda started: print(started.address, flush=True))
    print(json.dumps(sorted(door.methods)))


if __name__ == "__main__":
    asyncio.run(main())
