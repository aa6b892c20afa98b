"""A2AClient: every operation of A2A over gRPC, one method each (specification 3.1)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import grpc

from a2a_grpc import pb
from a2a_grpc.client.agent_source import AgentSource
from a2a_grpc.client.call import ClientInterceptor
from a2a_grpc.client.connection import MetadataSource, Token
from a2a_grpc.client.content import Content, message_of, put_metadata
from a2a_grpc.client.event_stream import EventStream
from a2a_grpc.client.retry import RetryPolicy
from a2a_grpc.client.session import Session, listed
from a2a_grpc.client.tls import ClientTLS
from a2a_grpc.errors import InvalidAgentResponseError

if TYPE_CHECKING:
    from a2a_grpc.cards.verification import CardKeys


class A2AClient:
    """A client of one agent; an async context manager.

    What is safe is tried again as `retry` says: everything that reads, CancelTask, the push
    configurations, and messages where the server's card declares that a message which is sent again
    runs once. Streams survive a lost connection. All errors are of `a2a_grpc.errors`;
    UnavailableError says that the agent can't be reached, DeadlineExceededError (a TimeoutError)
    that the timeout passed, NotAnA2AServerError that somebody else answers there.

    Args:
        agent: `host:port`, `grpc://host:port`, `grpcs://host:port` (TLS), an AgentCard, or the
            http(s) URL of a card, or of a site that has one in the well-known place.
        tenant: the agent behind the address; None for the one that the card's interface names.
        tls: how to check the server; True for the authorities that gRPC trusts, False for
            plaintext, None for what the address says (`host:port` alone: plaintext).
        token: a bearer token, or a function, async or not, that returns one; it is asked for each
            try.
        metadata: more call metadata: pairs, or an async function that returns them for each try.
        extensions: URIs of A2A extensions that every call asks for.
        timeout: seconds that a call with one answer has, all its tries together, unless it says
            otherwise; None for no limit. Streams have none unless they get one.
        retry: how often and how late something is tried again.
        interceptors: wrap the calls, the first one outermost.
        card_keys: with them, the agent must have a card with a signature which they verify, as for
            `a2a_grpc.verify_card`, and so must every card that is read. Where only an address is
            given, the card is read from there on entering.
        keepalive: seconds of silence after which a connection with open calls is probed; 0 for
            never. Many servers hang up on clients that ask more often than every 300; those of
            a2a-grpc allow 10.
        channel: used in place of one of our own; the caller closes it.

    Raises ValueError and TypeError for arguments that can't work, an unreadable file of `tls` among
    them. Entering raises AgentCardError and UnavailableError if the card can't be had. A card whose
    signature does not hold is a CardSignatureError (a ValueError), wherever it came from.
    """

    def __init__(
        self,
        agent: str | pb.AgentCard,
        *,
        tenant: str | None = None,
        tls: ClientTLS | bool | None = None,
        token: Token | None = None,
        metadata: MetadataSource = (),
        extensions: Sequence[str] = (),
        timeout: float | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008  frozen
        interceptors: Sequence[ClientInterceptor] = (),
        card_keys: CardKeys | None = None,
        keepalive: float = 310.0,
        channel: grpc.aio.Channel | None = None,
    ) -> None:
        self._source = AgentSource(agent, tls=tls, card_keys=card_keys)
        self._given_tenant = tenant
        self._session = Session(
            self._source,
            tenant=self._tenant,
            token=token,
            metadata=metadata,
            extensions=extensions,
            timeout=timeout,
            retry=retry,
            interceptors=interceptors,
            keepalive=keepalive,
            channel=channel,
        )

    async def __aenter__(self) -> Self:
        await self._session.open()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._session.close()

    @property
    def address(self) -> str:
        """host:port that it calls; "" until a card that has to be fetched is."""
        return "" if self._source.address is None else self._source.address.target

    def _tenant(self) -> str:
        if self._given_tenant is not None:
            return self._given_tenant
        return "" if self._source.address is None else self._source.address.tenant

    # Messages.

    async def send(
        self,
        content: Content,
        *,
        task_id: str = "",
        context_id: str = "",
        message_id: str = "",
        accepted_output_modes: Sequence[str] = (),
        history_length: int | None = None,
        return_immediately: bool = False,
        push: pb.TaskPushNotificationConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
        message_metadata: Mapping[str, Any] | None = None,
        reference_task_ids: Sequence[str] = (),
        extensions: Sequence[str] = (),
        timeout: float | None = None,
    ) -> pb.Task | pb.Message:
        """Send a message and wait for what comes of it (specification 3.1.1).

        It is sent again after UNAVAILABLE only if it provably was not sent, or if the server is
        known to run it once all the same; otherwise UnavailableError says so.

        Args:
            content: text, bytes, a dict (JSON data), a Part, a list of those, or a Message.
            task_id: the task to go on with; context_id: the context to begin a task in.
            message_id: made here unless given.
            accepted_output_modes: media types that are welcome in the answer.
            history_length: newest messages of the task to return; None for all, 0 for none.
            return_immediately: return the task as soon as it exists.
            push: where the task's events are to be pushed.
            metadata: of the request; message_metadata: of the message. JSON values.
            reference_task_ids: tasks that the message refers to.
            extensions: URIs that this call asks for, beside those of the client.
            timeout: seconds for all tries together.
        """
        request = self._message_request(
            content,
            task_id=task_id,
            context_id=context_id,
            message_id=message_id,
            accepted_output_modes=accepted_output_modes,
            history_length=history_length,
            push=push,
            metadata=metadata,
            message_metadata=message_metadata,
            reference_task_ids=reference_task_ids,
        )
        request.configuration.return_immediately = return_immediately
        response: pb.SendMessageResponse = await self._session.unary(
            "SendMessage", request, timeout, extensions
        )
        kind = response.WhichOneof("payload")
        if kind is None:
            raise InvalidAgentResponseError("SendMessage: the answer has no Task and no Message")
        answer: pb.Task | pb.Message = getattr(response, kind)
        return answer

    def stream(
        self,
        content: Content,
        *,
        task_id: str = "",
        context_id: str = "",
        message_id: str = "",
        accepted_output_modes: Sequence[str] = (),
        history_length: int | None = None,
        push: pb.TaskPushNotificationConfig | None = None,
        metadata: Mapping[str, Any] | None = None,
        message_metadata: Mapping[str, Any] | None = None,
        reference_task_ids: Sequence[str] = (),
        extensions: Sequence[str] = (),
        timeout: float | None = None,
    ) -> EventStream:
        """Send a message and follow what comes of it (specification 3.1.2); arguments as of `send`.

        The Task comes first, then its events, up to its end or to where it asks for input; or one
        Message. A lost connection is taken up again, and after that the stream also ends at
        AUTH_REQUIRED, since only the server knows whether the agent still waits: `subscribe` then
        follows the task. Raises StreamInterruptedError if the server can't take a stream up again.
        """
        request = self._message_request(
            content,
            task_id=task_id,
            context_id=context_id,
            message_id=message_id,
            accepted_output_modes=accepted_output_modes,
            history_length=history_length,
            push=push,
            metadata=metadata,
            message_metadata=message_metadata,
            reference_task_ids=reference_task_ids,
        )
        return self._session.stream("SendStreamingMessage", request, timeout, extensions)

    def subscribe(
        self, task_id: str, *, last_sequence: int | None = None, timeout: float | None = None
    ) -> EventStream:
        """Follow a task to its end (specification 3.1.6): the Task as it is, then its events.

        With `last_sequence`, the events after that one, without a Task before them; also of a task
        that has ended. A lost connection is taken up again; StreamInterruptedError if the server
        can't. A task that has ended, without `last_sequence`, is an UnsupportedOperationError.
        """
        if last_sequence is not None and (
            not isinstance(last_sequence, int) or not 0 <= last_sequence < 2**53
        ):
            raise ValueError(f"last_sequence is {last_sequence!r}; use that of an EventStream")
        request = pb.SubscribeToTaskRequest(tenant=self._tenant(), id=_id("task_id", task_id))
        return self._session.stream("SubscribeToTask", request, timeout, (), last_sequence)

    # Tasks.

    async def get_task(
        self, task_id: str, *, history_length: int | None = None, timeout: float | None = None
    ) -> pb.Task:
        """The task as it is (specification 3.1.3)."""
        request = pb.GetTaskRequest(
            tenant=self._tenant(),
            id=_id("task_id", task_id),
            history_length=history_length,
        )
        task: pb.Task = await self._session.unary("GetTask", request, timeout)
        return task

    async def list_tasks(
        self,
        *,
        context_id: str = "",
        state: pb.TaskState.ValueType | None = None,
        page_size: int | None = None,
        page_token: str = "",
        history_length: int | None = None,
        status_timestamp_after: datetime | None = None,
        include_artifacts: bool = False,
        timeout: float | None = None,
    ) -> pb.ListTasksResponse:
        """One page of the caller's tasks, newest status first (specification 3.1.4).

        Args:
            page_size: 1 to 100; the server's choice (50) unless given.
            status_timestamp_after: with a time zone; without one it is taken for UTC.
        """
        request = pb.ListTasksRequest(
            tenant=self._tenant(),
            context_id=context_id,
            page_size=page_size,
            page_token=page_token,
            history_length=history_length,
        )
        if state is not None:
            request.status = state
        if status_timestamp_after is not None:
            request.status_timestamp_after.FromDatetime(status_timestamp_after)
        if include_artifacts:
            request.include_artifacts = True
        page: pb.ListTasksResponse = await self._session.unary("ListTasks", request, timeout)
        return page

    async def iter_tasks(
        self,
        *,
        context_id: str = "",
        state: pb.TaskState.ValueType | None = None,
        page_size: int | None = None,
        history_length: int | None = None,
        status_timestamp_after: datetime | None = None,
        include_artifacts: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[pb.Task]:
        """All pages of `list_tasks`, task by task; `timeout` is for each page."""
        token = ""
        while True:
            page = await self.list_tasks(
                context_id=context_id,
                state=state,
                page_size=page_size,
                page_token=token,
                history_length=history_length,
                status_timestamp_after=status_timestamp_after,
                include_artifacts=include_artifacts,
                timeout=timeout,
            )
            for task in page.tasks:
                yield task
            token = page.next_page_token
            if not token:
                return

    async def cancel_task(
        self,
        task_id: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> pb.Task:
        """Cancel the task and return it (specification 3.1.5).

        Raises TaskNotCancelableError for a task that has ended, unless an earlier try of this very
        call may have canceled it: then that is the CANCELED task.
        """
        request = pb.CancelTaskRequest(tenant=self._tenant(), id=_id("task_id", task_id))
        put_metadata(request, "metadata", metadata)
        task: pb.Task = await self._session.unary("CancelTask", request, timeout)
        return task

    # Push configurations.

    async def create_push_config(
        self,
        task_id: str,
        url: str,
        *,
        id: str = "",
        token: str = "",
        authentication: pb.AuthenticationInfo | None = None,
        timeout: float | None = None,
    ) -> pb.TaskPushNotificationConfig:
        """Have the task's events sent to `url` (specification 3.1.7).

        The id is made here unless given, so that a repetition does not add a second configuration.
        """
        config = pb.TaskPushNotificationConfig(
            tenant=self._tenant(),
            id=id or str(uuid.uuid4()),
            task_id=_id("task_id", task_id),
            url=_id("url", url),
            token=token,
            authentication=authentication,
        )
        made: pb.TaskPushNotificationConfig = await self._session.unary(
            "CreateTaskPushNotificationConfig", config, timeout
        )
        return made

    async def get_push_config(
        self, task_id: str, id: str, *, timeout: float | None = None
    ) -> pb.TaskPushNotificationConfig:
        """One configuration (specification 3.1.8); TaskNotFoundError if there is none."""
        request = pb.GetTaskPushNotificationConfigRequest(
            tenant=self._tenant(), task_id=_id("task_id", task_id), id=_id("id", id)
        )
        config: pb.TaskPushNotificationConfig = await self._session.unary(
            "GetTaskPushNotificationConfig", request, timeout
        )
        return config

    async def list_push_configs(
        self, task_id: str, *, timeout: float | None = None
    ) -> list[pb.TaskPushNotificationConfig]:
        """All configurations of the task (specification 3.1.9); `timeout` is for each page."""
        found: list[pb.TaskPushNotificationConfig] = []
        request = pb.ListTaskPushNotificationConfigsRequest(
            tenant=self._tenant(), task_id=_id("task_id", task_id)
        )
        while True:
            page: pb.ListTaskPushNotificationConfigsResponse = await self._session.unary(
                "ListTaskPushNotificationConfigs", request, timeout
            )
            found.extend(page.configs)
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    async def delete_push_config(
        self, task_id: str, id: str, *, timeout: float | None = None
    ) -> None:
        """Delete one; one that does not exist is no error (specification 3.1.10)."""
        request = pb.DeleteTaskPushNotificationConfigRequest(
            tenant=self._tenant(), task_id=_id("task_id", task_id), id=_id("id", id)
        )
        await self._session.unary("DeleteTaskPushNotificationConfig", request, timeout)

    # Cards.

    async def get_card(self, *, timeout: float | None = None) -> pb.AgentCard:
        """The agent's public card: the one that the client was made from, else asked for over gRPC.

        Raises UnsupportedOperationError if the server does not offer its card over gRPC, which is
        an extra of a2a-grpc: give the client the card's URL instead.
        """
        if self._source.card is not None:
            card = pb.AgentCard()
            card.CopyFrom(self._source.card)
            return card
        return await self._session.discover(timeout)

    async def get_extended_card(self, *, timeout: float | None = None) -> pb.AgentCard:
        """The card for authenticated callers (specification 3.1.11)."""
        request = pb.GetExtendedAgentCardRequest(tenant=self._tenant())
        card: pb.AgentCard = await self._session.unary("GetExtendedAgentCard", request, timeout)
        return self._source.verified(card)

    def _message_request(
        self,
        content: Content,
        *,
        task_id: str,
        context_id: str,
        message_id: str,
        accepted_output_modes: Sequence[str],
        history_length: int | None,
        push: pb.TaskPushNotificationConfig | None,
        metadata: Mapping[str, Any] | None,
        message_metadata: Mapping[str, Any] | None,
        reference_task_ids: Sequence[str],
    ) -> pb.SendMessageRequest:
        message = message_of(
            content,
            task_id=task_id,
            context_id=context_id,
            message_id=message_id,
            metadata=message_metadata,
            reference_task_ids=listed("reference_task_ids", reference_task_ids),
        )
        request = pb.SendMessageRequest(
            tenant=self._tenant(),
            message=message,
            configuration=pb.SendMessageConfiguration(
                accepted_output_modes=listed("accepted_output_modes", accepted_output_modes),
                history_length=history_length,
                task_push_notification_config=push,
            ),
        )
        put_metadata(request, "metadata", metadata)
        return request


def _id(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is a {type(value).__name__}; use a str")
    if not value:
        raise ValueError(f"{name} is empty")
    return value
