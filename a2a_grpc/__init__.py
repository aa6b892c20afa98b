"""a2a-grpc: a gRPC-first server for agents that speak A2A 1.0.

The public names: what is exported here is what other programs may rely on.
"""

import importlib
from typing import TYPE_CHECKING, Any

from a2a_grpc import pb as _pb
from a2a_grpc.active.active_task import ActiveTask
from a2a_grpc.active.event_consumer import EventConsumer
from a2a_grpc.active.registry import ActiveTaskRegistry
from a2a_grpc.agent.call_context import Principal, ServerCallContext
from a2a_grpc.agent.content import FileInfo, HistoryMessage, PreviousArtifact
from a2a_grpc.agent.dependencies import Dependencies, Dependency
from a2a_grpc.agent.executor import AgentExecutor, EventQueue
from a2a_grpc.agent.request_context import (
    RequestContext,
    RequestContextBuilder,
    SimpleRequestContextBuilder,
)
from a2a_grpc.agent.task_context import TaskContext
from a2a_grpc.agent.worker import Worker
from a2a_grpc.broker.base import Broker, TaskIdParams, TaskOperation, TaskSendParams
from a2a_grpc.broker.memory import InMemoryBroker
from a2a_grpc.bus.base import EventBus
from a2a_grpc.bus.memory import InMemoryBus
from a2a_grpc.cards.errors import CardError, CardSignatureError
from a2a_grpc.cards.loading import load_card
from a2a_grpc.cards.signing import CardSigner, sign_card
from a2a_grpc.cards.validation import validate_card
from a2a_grpc.cards.verification import verify_card
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
from a2a_grpc.hooks import LifecycleHooks, StateChange
from a2a_grpc.middleware import Middleware
from a2a_grpc.pb import *  # noqa: F403  the A2A message types
from a2a_grpc.server import A2AServer
from a2a_grpc.storage.base import Storage
from a2a_grpc.storage.memory import InMemoryStorage
from a2a_grpc.storage.values import (
    Scope,
)

if TYPE_CHECKING:
    from a2a_grpc.broker.nats import NatsBroker
    from a2a_grpc.bus.nats import NatsBus
    from a2a_grpc.client.a2a_client import A2AClient
    from a2a_grpc.client.call import (
        ClientCall,
        ClientInterceptor,
        StreamInterceptor,
        UnaryInterceptor,
    )
    from a2a_grpc.client.errors import (
        AgentCardError,
        DeadlineExceededError,
        NotAnA2AServerError,
        StreamInterruptedError,
    )
    from a2a_grpc.client.event_stream import EventStream
    from a2a_grpc.client.retry import RetryPolicy
    from a2a_grpc.client.tls import ClientTLS
    from a2a_grpc.storage.sql.storage import SqlStorage

__all__ = [
    "A2AClient",
    "A2AError",
    "A2AServer",
    "ActiveTask",
    "ActiveTaskRegistry",
    "AgentCardError",
    "AgentExecutor",
    "Broker",
    "CardError",
    "CardSignatureError",
    "CardSigner",
    "ClientCall",
    "ClientInterceptor",
    "ClientTLS",
    "ContentTypeNotSupportedError",
    "DeadlineExceededError",
    "Dependencies",
    "Dependency",
    "EventBus",
    "EventConsumer",
    "EventQueue",
    "EventStream",
    "ExtendedAgentCardNotConfiguredError",
    "ExtensionSupportRequiredError",
    "FieldViolation",
    "FileInfo",
    "HistoryMessage",
    "InMemoryBroker",
    "InMemoryBus",
    "InMemoryStorage",
    "InternalError",
    "InvalidAgentResponseError",
    "InvalidParamsError",
    "LifecycleHooks",
    "Middleware",
    "NatsBroker",
    "NatsBus",
    "NotAnA2AServerError",
    "PermissionDeniedError",
    "PreviousArtifact",
    "Principal",
    "PushNotificationNotSupportedError",
    "RequestContext",
    "RequestContextBuilder",
    "ResourceExhaustedError",
    "RetryPolicy",
    "RetryableError",
    "Scope",
    "ServerCallContext",
    "ServerError",
    "ServerSettings",
    "SimpleRequestContextBuilder",
    "SqlStorage",
    "StateChange",
    "Storage",
    "StreamInterceptor",
    "StreamInterruptedError",
    "TaskContext",
    "TaskIdParams",
    "TaskNotCancelableError",
    "TaskNotFoundError",
    "TaskOperation",
    "TaskSendParams",
    "UnaryInterceptor",
    "UnauthenticatedError",
    "UnavailableError",
    "UnsupportedOperationError",
    "VersionNotSupportedError",
    "Worker",
    "load_card",
    "sign_card",
    "validate_card",
    "verify_card",
]
__all__ += _pb.__all__


# What only some programs need loads when it is first asked for: SQLAlchemy takes a while to import,
# and a server needs no client.
_LAZY = {
    "NatsBroker": "a2a_grpc.broker.nats",
    "NatsBus": "a2a_grpc.bus.nats",
    "SqlStorage": "a2a_grpc.storage.sql.storage",
    "A2AClient": "a2a_grpc.client.a2a_client",
    "AgentCardError": "a2a_grpc.client.errors",
    "ClientCall": "a2a_grpc.client.call",
    "ClientInterceptor": "a2a_grpc.client.call",
    "ClientTLS": "a2a_grpc.client.tls",
    "DeadlineExceededError": "a2a_grpc.client.errors",
    "EventStream": "a2a_grpc.client.event_stream",
    "NotAnA2AServerError": "a2a_grpc.client.errors",
    "RetryPolicy": "a2a_grpc.client.retry",
    "StreamInterceptor": "a2a_grpc.client.call",
    "StreamInterruptedError": "a2a_grpc.client.errors",
    "UnaryInterceptor": "a2a_grpc.client.call",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
