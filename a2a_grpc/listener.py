"""The gRPC port: its options, its services, and what to do when it is taken."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from a2a_grpc.config import MAX_INT, ServerSettings


def grpc_server(
    settings: ServerSettings, handlers: Sequence[grpc.GenericRpcHandler]
) -> grpc.aio.Server:
    """A server with these handlers, which listens to nothing yet."""
    server = grpc.aio.server(
        options=(
            # Without this a second server on a taken port starts, and calls hang.
            ("grpc.so_reuseport", int(settings.reuse_port)),
            ("grpc.max_receive_message_length", settings.max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", settings.max_concurrent_streams),
            ("grpc.keepalive_time_ms", _milliseconds(settings.keepalive_time)),
            ("grpc.keepalive_timeout_ms", _milliseconds(settings.keepalive_timeout)),
            ("grpc.keepalive_permit_without_calls", 1),
            (
                "grpc.http2.min_ping_interval_without_data_ms",
                _milliseconds(settings.min_ping_interval),
            ),
            (
                "grpc.http2.min_recv_ping_interval_without_data_ms",
                _milliseconds(settings.min_ping_interval),
            ),
            ("grpc.max_connection_age_ms", _milliseconds(settings.max_connection_age)),
        )
    )
    server.add_generic_rpc_handlers(tuple(handlers))
    return server


def bind(server: grpc.aio.Server, settings: ServerSettings) -> int:
    """Bind the port of the settings and return it.

    Raises OSError if it is taken, or the address is not this machine's.
    """
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        return server.add_insecure_port(f"{host}:{settings.port}")
    except RuntimeError as error:
        raise OSError(
            f"can't listen on {host}:{settings.port}: the port is taken or the address is not "
            "this machine's; choose others (--host, --port)"
        ) from error


def _milliseconds(seconds: float) -> int:
    return int(min(seconds * 1000, MAX_INT))
