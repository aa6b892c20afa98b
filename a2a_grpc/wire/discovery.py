"""Discovery on the wire: the public card for everybody, version and credentials or not."""

from __future__ import annotations

import logging
from collections.abc import Callable

import grpc

from a2a_grpc import pb
from a2a_grpc.errors import A2AError
from a2a_grpc.wire.call import Gate, ServicerContext
from a2a_grpc.wire.status import abort
from a2a_grpc.wire.validation import ValidationLimits, parse, validate

logger = logging.getLogger(__name__)

DISCOVERY_NAME = "a2a_grpc.v1.Discovery"


class DiscoveryServicer:
    """The one RPC of a2a_grpc.v1.Discovery.

    Args:
        card_for: the serialized public card of a tenant's agent; raises InvalidParamsError for an
            unknown tenant.
        gate: refuses calls while the server drains; nothing else has to be passed.
        limits: how long a tenant may be.
    """

    def __init__(
        self, card_for: Callable[[str], bytes], gate: Gate, limits: ValidationLimits
    ) -> None:
        self._card_for = card_for
        self._gate = gate
        self._limits = limits

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler to register with a `grpc.aio` server."""
        return grpc.method_handlers_generic_handler(
            DISCOVERY_NAME,
            {"GetAgentCard": grpc.unary_unary_rpc_method_handler(self._get_agent_card)},
        )

    async def _get_agent_card(self, data: bytes, context: ServicerContext) -> bytes:
        try:
            with self._gate.passing():
                request = parse(pb.GetAgentCardRequest, data)
                validate(request, self._limits)
                return self._card_for(request.tenant)
        except Exception as error:
            if not isinstance(error, A2AError):
                logger.exception("GetAgentCard failed")
            await abort(context, error)
