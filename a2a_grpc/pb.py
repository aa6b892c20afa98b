"""The only door to the generated A2A messages and to the service stubs.

Python's protobuf refuses two files that define the same symbols, so a process has one set of A2A
classes. Where a2a-sdk 1.0 or newer is installed (or somebody has imported it already), they are its
classes, else ours; the order of imports does not matter. A2A_GRPC_OWN_PROTOS=1 in the environment
forces ours, and then importing `a2a.types` in the same process fails. The messages of our own
services, which a2a-sdk does not have, refer to whichever classes those are. The stubs load, and
grpc with them, when they are first asked for.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.runtime_version import VersionError

if TYPE_CHECKING:
    from a2a_grpc_pb.a2a_pb2 import (
        DESCRIPTOR,
        AgentCapabilities,
        AgentCard,
        AgentCardSignature,
        AgentExtension,
        AgentInterface,
        AgentProvider,
        AgentSkill,
        APIKeySecurityScheme,
        Artifact,
        AuthenticationInfo,
        AuthorizationCodeOAuthFlow,
        CancelTaskRequest,
        ClientCredentialsOAuthFlow,
        DeleteTaskPushNotificationConfigRequest,
        DeviceCodeOAuthFlow,
        GetExtendedAgentCardRequest,
        GetTaskPushNotificationConfigRequest,
        GetTaskRequest,
        HTTPAuthSecurityScheme,
        ImplicitOAuthFlow,
        ListTaskPushNotificationConfigsRequest,
        ListTaskPushNotificationConfigsResponse,
        ListTasksRequest,
        ListTasksResponse,
        Message,
        MutualTlsSecurityScheme,
        OAuth2SecurityScheme,
        OAuthFlows,
        OpenIdConnectSecurityScheme,
        Part,
        PasswordOAuthFlow,
        Role,
        SecurityRequirement,
        SecurityScheme,
        SendMessageConfiguration,
        SendMessageRequest,
        SendMessageResponse,
        StreamResponse,
        StringList,
        SubscribeToTaskRequest,
        Task,
        TaskArtifactUpdateEvent,
        TaskPushNotificationConfig,
        TaskState,
        TaskStatus,
        TaskStatusUpdateEvent,
    )
    from a2a_grpc_pb.a2a_pb2_grpc import (
        A2AServiceServicer,
        A2AServiceStub,
        add_A2AServiceServicer_to_server,
    )
    from a2a_grpc_pb.discovery_pb2 import GetAgentCardRequest
    from a2a_grpc_pb.discovery_pb2_grpc import (
        DiscoveryServicer,
        DiscoveryStub,
        add_DiscoveryServicer_to_server,
    )

__all__ = [
    "DESCRIPTOR",
    "A2AServiceServicer",
    "A2AServiceStub",
    "APIKeySecurityScheme",
    "AgentCapabilities",
    "AgentCard",
    "AgentCardSignature",
    "AgentExtension",
    "AgentInterface",
    "AgentProvider",
    "AgentSkill",
    "Artifact",
    "AuthenticationInfo",
    "AuthorizationCodeOAuthFlow",
    "CancelTaskRequest",
    "ClientCredentialsOAuthFlow",
    "DeleteTaskPushNotificationConfigRequest",
    "DeviceCodeOAuthFlow",
    "DiscoveryServicer",
    "DiscoveryStub",
    "GetAgentCardRequest",
    "GetExtendedAgentCardRequest",
    "GetTaskPushNotificationConfigRequest",
    "GetTaskRequest",
    "HTTPAuthSecurityScheme",
    "ImplicitOAuthFlow",
    "ListTaskPushNotificationConfigsRequest",
    "ListTaskPushNotificationConfigsResponse",
    "ListTasksRequest",
    "ListTasksResponse",
    "Message",
    "MutualTlsSecurityScheme",
    "OAuth2SecurityScheme",
    "OAuthFlows",
    "OpenIdConnectSecurityScheme",
    "Part",
    "PasswordOAuthFlow",
    "Role",
    "SecurityRequirement",
    "SecurityScheme",
    "SendMessageConfiguration",
    "SendMessageRequest",
    "SendMessageResponse",
    "StreamResponse",
    "StringList",
    "SubscribeToTaskRequest",
    "Task",
    "TaskArtifactUpdateEvent",
    "TaskPushNotificationConfig",
    "TaskState",
    "TaskStatus",
    "TaskStatusUpdateEvent",
    "add_A2AServiceServicer_to_server",
    "add_DiscoveryServicer_to_server",
]

_PACKAGE = "lf.a2a.v1"
# Before gRPC is imported, which is done by way of this module first. Its fork handlers crash, once
# in a while, what an agent starts with asyncio on uvloop while calls go on.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_OWN = "a2a_grpc_pb.a2a_pb2"
_OWN_FILE = "a2a_grpc_pb/a2a.proto"
_SDK = "a2a.types.a2a_pb2"
_DISCOVERY = "a2a_grpc_pb.discovery_pb2"
_STUBS = {
    "A2AServiceServicer": f"{_OWN}_grpc",
    "A2AServiceStub": f"{_OWN}_grpc",
    "add_A2AServiceServicer_to_server": f"{_OWN}_grpc",
    "DiscoveryServicer": f"{_DISCOVERY}_grpc",
    "DiscoveryStub": f"{_DISCOVERY}_grpc",
    "add_DiscoveryServicer_to_server": f"{_DISCOVERY}_grpc",
}

MESSAGE_NAMES = tuple(
    name
    for name in __all__
    if name not in ("DESCRIPTOR", "GetAgentCardRequest") and name not in _STUBS
)
"""The names of the protocol's message classes and enums alone."""


def _sdk_offers_messages() -> bool:
    """Whether the a2a-sdk installed has the module, found out without running any of its code.

    Versions before 1.0 do not have it, nor do other programs that happen to be called a2a.
    """
    if "a2a" in sys.modules:
        path = getattr(sys.modules["a2a"], "__path__", None)
    else:
        package = importlib.util.find_spec("a2a")
        path = package.submodule_search_locations if package else None
    for name in ("a2a.types", _SDK):
        if path is None:
            return False
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return True


def _sdk_messages() -> ModuleType | None:
    if _SDK not in sys.modules and not _sdk_offers_messages():
        return None
    # When it cannot be imported (made for another protobuf, incomplete), nobody in this process
    # will use its classes, unless it got far enough to stay in sys.modules.
    with contextlib.suppress(ImportError, VersionError):
        importlib.import_module(_SDK)
    module = sys.modules.get(_SDK)
    # Another generation of the protocol under the same module name gets along with ours.
    return module if module and module.DESCRIPTOR.package == _PACKAGE else None


def _stand_in_for_own_file(name: str) -> None:
    """Let the file `name` be found where our other schemas import a2a.proto."""
    file = FileDescriptorProto(
        name=_OWN_FILE, dependency=[name], public_dependency=[0], syntax="proto3"
    )
    # Public: what the other file defines can be referred to by whoever imports this one.
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())


def _choose() -> ModuleType:
    """The module whose classes this process uses."""
    forced = os.environ.get("A2A_GRPC_OWN_PROTOS", "0") not in ("", "0")
    try:
        if _OWN not in sys.modules and not forced and (module := _sdk_messages()):
            # Our stubs, and whoever else imports our module, get the same classes.
            sys.modules[_OWN] = module
            vars(importlib.import_module("a2a_grpc_pb"))["a2a_pb2"] = module
            _stand_in_for_own_file(module.DESCRIPTOR.name)
        return importlib.import_module(_OWN)
    except TypeError as error:
        who = "a2a.types" if _SDK in sys.modules else "another module"
        raise ImportError(
            f"{who} has already registered the messages of {_PACKAGE}, and a process can hold only"
            " one set of them: unset A2A_GRPC_OWN_PROTOS, or remove that import"
        ) from error


if not TYPE_CHECKING:
    _messages = _choose()
    globals().update({name: getattr(_messages, name) for name in ("DESCRIPTOR", *MESSAGE_NAMES)})
    GetAgentCardRequest = importlib.import_module(_DISCOVERY).GetAgentCardRequest

    def __getattr__(name: str) -> object:
        if name not in _STUBS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_STUBS[name]), name)
        globals()[name] = value
        return value
