"""The streams and the consumer that the broker keeps in JetStream, and how they come to be.

Stream `{namespace}-operations`, subjects `{namespace}.run.*`, one word for the operation's id:

- `retention: workqueue`: an operation is gone once it is acknowledged.
- `storage: file`, `num_replicas`: as the URL says (`replicas=`).
- `discard: new`, `max_msgs_per_subject: 1`, `discard_new_per_subject`: an operation that is there
  already is not taken again; JetStream says so, and that counts as success.
- `max_msgs`: beyond it `run_task` raises ResourceExhaustedError.

Consumer `workers` of it, durable, shared by all replicas, which pull from it:

- `ack_policy: explicit`, `ack_wait`: the lease; who says nothing for so long has lost the delivery.
- `max_deliver: -1`: storage counts the attempts.
- `max_ack_pending: -1`: the default would stop a service with more than 1000 turns.
- `max_waiting`: replicas that may wait at a time.

Stream `{namespace}-dead`, subjects `{namespace}.dead.*`: what was given up, for operators.

- `retention: limits`, `max_age`: 30 days; `max_bytes`: 64 MiB, the oldest go first.
- `max_msgs_per_subject: 1`: the newest word on each operation.

All of them are made when a broker opens, and made anew when they are found missing.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from a2a_grpc.broker.base import BrokerOpenError
from a2a_grpc.errors import UnavailableError
from a2a_grpc.nats.client import cancelled
from a2a_grpc.nats.connection import NatsConnection, NatsMessage
from a2a_grpc.nats.dialer import NatsOpenError

NANOSECONDS = 10**9
CONSUMER = "workers"
MAX_OPERATIONS = 1_000_000

# Errors of the JetStream API, by `err_code`.
_STREAM_CONFIG_DIFFERS = 10058
_NO_JETSTREAM = {10039, 10076}
_TOO_FEW_SERVERS = {10005, 10074}
_PASSING = {10005, 10008, 10009, 10118}  # servers of the cluster, or leaders, are still missing
STORE_FAILED = 10077
"""Publishing: a limit of the stream."""


class JetStreamError(Exception):
    """The JetStream API refused something."""

    def __init__(self, code: int, description: str) -> None:
        self.code = code
        super().__init__(description)


class JetStream:
    """The broker's streams and consumer, on one connection.

    Args:
        ack_wait: seconds.
    """

    def __init__(
        self, connection: NatsConnection, namespace: str, *, replicas: int, ack_wait: float
    ) -> None:
        self._connection = connection
        self._namespace = namespace
        self._replicas = replicas
        self._ack_wait = ack_wait
        self._making: asyncio.Task[None] | None = None
        self.operations = f"{namespace}-operations"
        self.dead = f"{namespace}-dead"

    async def open(self, *, patience: float) -> None:
        """Make what is missing, and change what differs.

        A cluster that is just starting gets `patience` seconds. Raises BrokerOpenError.
        """
        deadline = asyncio.get_running_loop().time() + patience
        while True:
            try:
                await self._make()
                return
            except JetStreamError as error:
                if error.code not in _PASSING or _is_over(deadline):
                    raise BrokerOpenError(self._diagnosis(error)) from error
            except NatsOpenError as error:
                raise BrokerOpenError(str(error)) from error
            except UnavailableError as error:
                if _is_over(deadline):
                    raise BrokerOpenError(
                        f"JetStream of NATS at {self._connection.shown} does not answer; start "
                        "nats-server with -js, and enable JetStream for the account"
                    ) from error
            await asyncio.sleep(0.2)

    async def make_again(self) -> None:
        """Make what somebody deleted or NATS lost; calls at the same time share the work.

        Raises UnavailableError.
        """
        if self._making is None:
            self._making = asyncio.create_task(self._make(), name="jetstream-make")
            self._making.add_done_callback(self._made)
        try:
            await asyncio.shield(self._making)
        except (JetStreamError, NatsOpenError) as error:
            raise UnavailableError(
                "JetStream can't take operations; the server's log says why", retry_after=1.0
            ) from error

    def _made(self, making: asyncio.Task[None]) -> None:
        self._making = None
        if not making.cancelled():
            making.exception()  # which whoever waits gets

    async def close(self) -> None:
        """Stop what is under way."""
        if self._making is not None:
            await cancelled(self._making)

    async def _make(self) -> None:
        await self._make_stream(
            {
                "name": self.operations,
                "description": "operations of a2a-grpc that wait for a worker or are with one",
                "subjects": [f"{self._namespace}.run.*"],
                "retention": "workqueue",
                "storage": "file",
                "num_replicas": self._replicas,
                "discard": "new",
                "max_msgs": MAX_OPERATIONS,
                "max_msgs_per_subject": 1,
                "discard_new_per_subject": True,
            }
        )
        await self._make_stream(
            {
                "name": self.dead,
                "description": "operations of a2a-grpc that were given up",
                "subjects": [f"{self._namespace}.dead.*"],
                "retention": "limits",
                "storage": "file",
                "num_replicas": self._replicas,
                "discard": "old",
                "max_age": 30 * 86400 * NANOSECONDS,
                "max_bytes": 64 * 2**20,
                "max_msgs_per_subject": 1,
            }
        )
        await self._call(
            f"CONSUMER.CREATE.{self.operations}.{CONSUMER}",
            {
                "stream_name": self.operations,
                "config": {
                    "durable_name": CONSUMER,
                    "name": CONSUMER,
                    "ack_policy": "explicit",
                    "ack_wait": int(self._ack_wait * NANOSECONDS),
                    "deliver_policy": "all",
                    "max_deliver": -1,
                    "max_ack_pending": -1,
                    "max_waiting": 4096,
                },
            },
        )

    async def _make_stream(self, config: dict[str, Any]) -> None:
        name = config["name"]
        try:
            await self._call(f"STREAM.CREATE.{name}", config)
        except JetStreamError as error:
            if error.code != _STREAM_CONFIG_DIFFERS:
                raise
            await self._call(f"STREAM.UPDATE.{name}", config)

    async def _call(self, name: str, body: dict[str, Any]) -> None:
        answer = await self._connection.request(f"$JS.API.{name}", json.dumps(body).encode())
        if answer is None:
            raise UnavailableError("NATS has no JetStream", retry_after=1.0)
        read_answer(answer)

    def _diagnosis(self, error: JetStreamError) -> str:
        at = f"NATS at {self._connection.shown}"
        if error.code in _NO_JETSTREAM:
            return f"{at} has no JetStream for this account: {error}; enable it"
        if error.code in _TOO_FEW_SERVERS:
            return (
                f"{at} has not enough servers for replicas={self._replicas}: {error}; ask for "
                "fewer, or add servers to the cluster"
            )
        return (
            f"{at} does not keep the streams {self.operations} and {self.dead} as a2a-grpc needs "
            f"them: {error}; choose another namespace, or delete or change what is there"
        )


def read_answer(message: NatsMessage) -> dict[str, Any]:
    """What JetStream answered. Raises JetStreamError, UnavailableError."""
    try:
        answer = json.loads(message.data)
        error = answer.get("error")
    except (ValueError, AttributeError) as wrong:
        raise UnavailableError("JetStream gave no answer", retry_after=1.0) from wrong
    if error:
        raise JetStreamError(int(error.get("err_code", 0)), str(error.get("description", "")))
    return dict(answer)


def _is_over(deadline: float) -> bool:
    return asyncio.get_running_loop().time() >= deadline
