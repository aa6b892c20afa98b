"""One process with SQLite dies and comes back: the same promises as with many replicas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.cluster import Cluster
from tests.chaos.scene import a_scene
from tests.support import COMPLETED, FAILED, state_name, text


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory: Path = tmp_path_factory.mktemp("one-process")
    store = f"sqlite:///{directory / 'a2a.db'}"
    with Cluster(directory, ["--store", store, "--grace", "0.2"], {"only": []}) as cluster:
        yield cluster


@pytest.mark.parametrize("begin_again", [False, True], ids=["goes-on", "begins-again"])
async def test_a_stream_goes_on_after_its_process_was_killed(
    cluster: Cluster, begin_again: bool
) -> None:
    async with a_scene(cluster) as scene:
        (only,) = cluster.replicas
        order = scene.message(gate="go", begin_again=begin_again, immediately=False)
        streaming = scene.stream(order, scene.anywhere)
        await streaming.saw(30)
        following = scene.follow(streaming.task_id, scene.anywhere, hops=40)
        await following.saw(20)
        only.kill()
        only.start()
        assert (await scene.started(streaming.task_id, 2)).attempt == 2
        await streaming.more(30)
        scene.open_gate("go")
        await streaming.ended()
        assert streaming.state == "COMPLETED"


async def test_a_task_whose_process_was_killed_fails_and_says_why(cluster: Cluster) -> None:
    async with a_scene(cluster) as scene:
        (only,) = cluster.replicas
        streaming = scene.stream(scene.message(tenant="fail", gate="never"), scene.anywhere)
        await streaming.saw(30)
        only.kill()
        only.start()
        await streaming.ended()
        assert streaming.state == "FAILED"
        task = await scene.task_when(streaming.task_id, FAILED)
        assert text(task.status.message)


async def test_a_stopped_process_goes_on_where_it_left_off(cluster: Cluster) -> None:
    async with a_scene(cluster) as scene:
        (only,) = cluster.replicas
        task = await scene.clients.send(only, scene.message(gate="later"))
        following = scene.follow(task, scene.anywhere)
        await following.saw(10)
        only.ask_to_stop()
        assert await only.ended() == 0
        only.start()
        await following.more(10)
        scene.open_gate("later")
        done = await scene.task_when(task.id, COMPLETED, at=only)
        assert state_name(done.status.state) == "COMPLETED"
