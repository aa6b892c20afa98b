"""a2a-grpc: a gRPC-first server for agents that speak A2A 1.0.

The public names: what is exported here is what other programs may rely on.
"""

from typing import TYPE_CHECKING, Any

from a2a_grpc import pb as _pb
from a2a_grpc.active.active_task import ActiveTask
from a2a_grpc.active.event_consumer import EventConsumer
from a2a_grpc.active.registry import ActiveTaskRegistry
from a2a_grpc.agent.call_context import Principal, ServerCallContext
from a2a_grpc.agent.executor import AgentExecutor, EventQueue
from a2a_grpc.agent.request_context import (
    RequestContext,
    RequestContextBuilder,
    SimpleRequestContextBuilder,
)
from a2a_grpc.broker.base import Broker, TaskIdParams, TaskOperation, TaskSendParams
from a2a_grpc.broker.memory import InMemoryBroker
from a2a_grpc.bus.base import EventBus
from a2a_grpc.bus.memory import InMemoryBus
from a2a_grpc.config import ServerSettings
from a2a_grpc.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    ExtendedAgentCardNotConfiguredError,
    ExtensionSupportRequiredError,
    FieldViolation,
    InternalError,
    InvalidAgentResponseError,
    InvalidParamsError,
    PermissionDeniedError,
    PushNotificationNotSupportedError,
    ResourceExhaustedError,
    RetryableError,
    ServerError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from a2a_grpc.pb import *  # noqa: F403  the A2A message types
from a2a_grpc.server import A2AServer
from a2a_grpc.storage.base import Scope, Storage
from a2a_grpc.storage.memory import InMemoryStorage

if TYPE_CHECKING:
    from a2a_grpc.storage.sql import SqlStorage

__all__ = [
    "A2AError",
    "A2AServer",
    "ActiveTask",
    "ActiveTaskRegistry",
    "AgentExecutor",
    "Broker",
    "ContentTypeNotSupportedError",
    "EventBus",
    "EventConsumer",
    "EventQueue",
    "ExtendedAgentCardNotConfiguredError",
    "ExtensionSupportRequiredError",
    "FieldViolation",
    "InMemoryBroker",
    "InMemoryBus",
    "InMemoryStorage",
    "InternalError",
    "InvalidAgentResponseError",
    "InvalidParamsError",
    "PermissionDeniedError",
    "Principal",
    "PushNotificationNotSupportedError",
    "RequestContext",
    "RequestContextBuilder",
    "ResourceExhaustedError",
    "RetryableError",
    "Scope",
    "ServerCallContext",
    "ServerError",
    "ServerSettings",
    "SimpleRequestContextBuilder",
    "SqlStorage",
    "Storage",
    "TaskIdParams",
    "TaskNotCancelableError",
    "TaskNotFoundError",
    "TaskOperation",
    "TaskSendParams",
    "UnauthenticatedError",
    "UnavailableError",
    "UnsupportedOperationError",
    "VersionNotSupportedError",
]
__all__ += _pb.__all__


def __getattr__(name: str) -> Any:
    # SQLAlchemy takes a while to import, and who keeps tasks elsewhere does without it.
    if name == "SqlStorage":
        from a2a_grpc.storage.sql import SqlStorage

        return SqlStorage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
