"""The four calls for push configurations (specification 3.1.7 to 3.1.10, 4.3), and deliveries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from a2a_grpc import pb
from a2a_grpc.admission import ServiceSettings
from tests.support import (
    Client,
    Gated,
    asking,
    assert_error,
    assert_invalid,
    concurrently,
    echo,
    refused,
    request,
    serving,
    within,
)

URL = "https://example.com/hook"


async def create(s: Client, task_id: str, **kw: Any) -> pb.TaskPushNotificationConfig:
    config: pb.TaskPushNotificationConfig = await s.call(
        "CreateTaskPushNotificationConfig",
        pb.TaskPushNotificationConfig(**{"task_id": task_id, "url": URL, **kw}),
    )
    return config


async def listed(s: Client, task_id: str, **kw: Any) -> pb.ListTaskPushNotificationConfigsResponse:
    page: pb.ListTaskPushNotificationConfigsResponse = await s.call(
        "ListTaskPushNotificationConfigs",
        pb.ListTaskPushNotificationConfigsRequest(task_id=task_id, **kw),
    )
    return page


async def test_configuration_without_an_id_gets_one_of_its_own(serve: Callable[..., Any]) -> None:
    async with serve(asking) as s:
        task = await s.send()
        made = [await create(s, task.id) for _ in range(3)]
        assert len({config.id for config in made}) == 3
        for config in made:
            assert (config.task_id, config.url) == (task.id, URL)
            got = await s.call(
                "GetTaskPushNotificationConfig",
                pb.GetTaskPushNotificationConfigRequest(task_id=task.id, id=config.id),
            )
            assert got == config


async def test_configuration_with_an_id_keeps_it_and_replaces_the_former(
    serve: Callable[..., Any],
) -> None:
    async with serve(asking) as s:
        task = await s.send()
        await create(s, task.id, id="mine", token="one")
        await create(s, task.id, id="mine", token="two")
        (config,) = (await listed(s, task.id)).configs
        assert (config.id, config.token) == ("mine", "two")


async def test_list_pages(serve: Callable[..., Any]) -> None:
    async with serve(asking) as s:
        task = await s.send()
        ids = [(await create(s, task.id)).id for _ in range(6)]
        assert sorted(c.id for c in (await listed(s, task.id)).configs) == sorted(ids)
        seen, token = [], ""
        sizes = []
        while True:
            page = await listed(s, task.id, page_size=3, page_token=token)
            seen += [config.id for config in page.configs]
            sizes.append(len(page.configs))
            token = page.next_page_token
            if not token:
                break
        assert sizes == [3, 3]
        assert sorted(seen) == sorted(ids)


@pytest.mark.parametrize("token", ["x", "MQ", "!", "e30"])
async def test_bad_token_is_refused(token: str) -> None:
    async with serving(asking) as s:
        task = await s.send()
        call = s.call(
            "ListTaskPushNotificationConfigs",
            pb.ListTaskPushNotificationConfigsRequest(task_id=task.id, page_token=token),
        )
        assert_invalid(await refused(call), "page_token")


async def test_task_has_room_for_a_number_of_configurations(serve: Callable[..., Any]) -> None:
    most = ServiceSettings().max_push_configs
    async with serve(asking) as s:
        task, other = await s.send(), await s.send()
        await concurrently(*(create(s, task.id, id=f"{number}") for number in range(most)))
        status = await refused(create(s, task.id, id="one more"))
        assert_error(status, "RESOURCE_EXHAUSTED")
        assert task.id in status.message
        assert status.retry_after is None, "waiting does not help"
        # The bound is on their number: what is there may be replaced, and other tasks have room.
        await create(s, task.id, id="0", token="new")
        await create(s, other.id, id="one more")
        await s.call(
            "DeleteTaskPushNotificationConfig",
            pb.DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="1"),
        )
        await create(s, task.id, id="one more")
        assert len((await listed(s, task.id)).configs) == most


async def test_delete_is_idempotent(serve: Callable[..., Any]) -> None:
    async with serve(asking) as s:
        task = await s.send()
        config = await create(s, task.id)
        made = pb.DeleteTaskPushNotificationConfigRequest(task_id=task.id, id=config.id)
        for _ in range(2):
            await s.call("DeleteTaskPushNotificationConfig", made)
        assert not (await listed(s, task.id)).configs
        status = await refused(
            s.call(
                "GetTaskPushNotificationConfig",
                pb.GetTaskPushNotificationConfigRequest(task_id=task.id, id=config.id),
            )
        )
        assert_error(status, "TASK_NOT_FOUND")


PRIVATE = [
    "http://127.0.0.1/hook",
    "http://localhost:8080/hook",
    "https://10.0.0.1/",
    "https://192.168.1.1/",
    "http://169.254.169.254/latest/meta-data",
    "http://[::1]/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "not a url",
]


@pytest.mark.parametrize("url", PRIVATE)
async def test_url_that_may_not_be_called_is_refused(url: str) -> None:
    async with serving(asking) as s:
        task = await s.send()
        call = s.call(
            "CreateTaskPushNotificationConfig",
            pb.TaskPushNotificationConfig(task_id=task.id, url=url),
        )
        assert_invalid(await refused(call), "url")
        inline = s.call("SendMessage", request(push=pb.TaskPushNotificationConfig(url=url)))
        assert_invalid(await refused(inline), "configuration.task_push_notification_config.url")


@asynccontextmanager
async def webhook() -> AsyncIterator[tuple[str, asyncio.Queue[tuple[dict[str, str], Any]]]]:
    """A local HTTP server; the requests it gets, as headers and JSON."""
    got: asyncio.Queue[tuple[dict[str, str], Any]] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                headers = {":line": line.decode().strip()}
                while (line := (await reader.readline()).strip()) != b"":
                    name, _, value = line.decode().partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                got.put_nowait((headers, json.loads(body)))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/hook", got


async def test_inline_configuration_gets_every_event_in_order(serve: Callable[..., Any]) -> None:
    async with webhook() as (url, got), serve(echo, allow_private_webhooks=True) as s:
        push = pb.TaskPushNotificationConfig(
            url=url,
            token="the token",
            authentication=pb.AuthenticationInfo(scheme="Bearer", credentials="secret"),
        )
        task = await s.send("hi", push=push, immediately=True)
        deliveries = [await within(got.get()) for _ in range(3)]
        for headers, _ in deliveries:
            assert headers["content-type"] == "application/a2a+json"
            assert headers["authorization"] == "Bearer secret"
            assert headers["x-a2a-notification-token"] == "the token"
            assert headers["a2a-notification-token"] == "the token"
        first, second, third = (body for _, body in deliveries)
        assert first["task"]["id"] == task.id
        assert second["artifactUpdate"]["artifact"]["parts"][0]["text"] == "hi"
        assert third["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        (config,) = (await listed(s, task.id)).configs
        assert config.id
        assert config.task_id == task.id


async def test_created_configuration_gets_what_comes_after_it(serve: Callable[..., Any]) -> None:
    agent = Gated()
    async with webhook() as (url, got), serve(agent, allow_private_webhooks=True) as s:
        task = await s.send(immediately=True)
        await create(s, task.id, url=url)
        agent.go.set()
        _, body = await within(got.get())
        assert body["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert got.empty()


async def test_cancellation_is_delivered() -> None:
    async with webhook() as (url, got), serving(asking, allow_private_webhooks=True) as s:
        task = await s.send()
        await create(s, task.id, url=url)
        await s.cancel(task.id)
        _, body = await within(got.get())
        assert body["statusUpdate"]["status"]["state"] == "TASK_STATE_CANCELED"


async def test_dead_webhook_delays_no_task() -> None:
    async with serving(echo, allow_private_webhooks=True) as s:
        push = pb.TaskPushNotificationConfig(url="http://127.0.0.1:1/")
        await within(s.send(push=push), 3)


@pytest.mark.parametrize("field", ["token", "scheme"])
async def test_header_injection_is_refused(field: str) -> None:
    async with serving(asking) as s:
        task = await s.send()
        config = pb.TaskPushNotificationConfig(task_id=task.id, url=URL)
        if field == "token":
            config.token = "x\r\nhost: evil"
        else:
            config.authentication.scheme = "Bearer\r\nx: y"
        status = await refused(s.call("CreateTaskPushNotificationConfig", config))
        assert_invalid(status, "token" if field == "token" else "authentication.scheme")
