"""Shards as actors on the nodes of a Ray cluster; what they have in common with others is tested in `test_shards`."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from asyncrollout import Batch, OpenAIPolicy, PoolError, RayShards, Rollouts, filters
from asyncrollout.rollouts.shards import shard_socket
from tests.docs_page import ROOT
from tests.envs.rollout import WALK
from tests.llm_faults import Fault, Hold, Json, Reply
from tests.llm_server import LLMServer, llm_server
from tests.ray_cluster import PATIENCE, TestCluster
from tests.waiting import freeze

pytestmark = pytest.mark.ray


def shards_on(cluster: TestCluster, count: int, **options: Any) -> RayShards:
    return RayShards(count, address=cluster.address, num_cpus=0.5, **{"wait": 60, **options})


def actors(cluster: TestCluster) -> list[int]:
    """The processes of shards."""
    return [pid for pid, command in cluster.processes().items() if "ShardActor" in command]


def shown(batch: Batch) -> list[Any]:
    return [
        (one.uid, one.reward, [(turn.reply, turn.version) for turn in one.turns], group.verdict)
        for group in batch.groups
        for one in group.trajectories
    ]


def by_seed(_number: int, body: Json) -> Fault:
    return Reply(f"go {body['seed'] % 4}")


def answered(server: LLMServer) -> Counter[str]:
    """How often each request was answered; they differ by their sampling seeds."""
    return Counter(
        json.dumps(seen.body, sort_keys=True) for seen in server.requests if "seed" in seen.body and seen.done
    )


def rollouts_of(url: str, shards: RayShards | None, **options: Any) -> Rollouts:
    policy = OpenAIPolicy(url, "test-model", api_key="key", kind="vllm")
    given = {"group_size": 2, "seed": 3, "max_lag": 0, **options}
    return Rollouts(WALK, policy=policy, shards=shards, **given)


async def test_batches_are_the_same_with_any_number_of_shards(ray_cluster: TestCluster) -> None:
    """With a filter, and with weights that change; they are added and removed meanwhile."""
    found = []
    async with llm_server("vllm", by_seed) as server:
        for count in (0, 1, 2):
            shards = shards_on(ray_cluster, count) if count else None
            async with rollouts_of(server.url, shards, keep=filters.reward_varies) as rollouts:
                batches = []
                for version in (1, 2, 3):
                    batches.append(shown(await anext(rollouts.batches(groups=2))))
                    async with rollouts.weight_update(version):
                        assert server.in_flight == 0
                    if count == 2 and version == 1:
                        await rollouts.scale(shards=3)
                        assert len({shard.node for shard in rollouts.stats().shards}) == 2
                    if count == 2 and version == 2:
                        await rollouts.scale(shards=1)
                found.append(batches)
        paths = Counter(seen.path for seen in server.requests)
    assert found[0] == found[1] == found[2]
    assert paths["/pause"] == paths["/resume"] == 9  # by the trainer alone
    await _until(lambda: not actors(ray_cluster))


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_groups_of_a_lost_shard_continue_elsewhere(
    how: str, ray_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the replies recorded so far; what was not answered is asked again, and nothing else."""
    monkeypatch.setattr(shard_socket, "_SILENT_SECONDS", 2.5)
    held = anyio.Event()

    def hold_later(number: int, body: Json) -> Fault:
        return by_seed(number, body) if number < 5 or held.is_set() else Hold(held, then=by_seed(number, body))

    async with llm_server("vllm", by_seed) as undisturbed, rollouts_of(undisturbed.url, None) as rollouts:
        expected = shown(await anext(rollouts.batches(groups=3)))
    async with llm_server("vllm", hold_later) as server:
        async with rollouts_of(server.url, shards_on(ray_cluster, 2)) as rollouts, anyio.create_task_group() as tasks:
            batches: list[Batch] = []

            async def take() -> None:
                batches.append(await anext(rollouts.batches(groups=3)))

            tasks.start_soon(take)
            await server.until(lambda: server.in_flight == 6 and len(server.requests) >= 11, PATIENCE)
            recorded = answered(server)
            lost = actors(ray_cluster)[0]
            if how == "killed":
                os.kill(lost, signal.SIGKILL)
            else:
                freeze(lost)
            asked = len(server.requests)
            await server.until(lambda: len(server.requests) > asked, PATIENCE)
            held.set()
        figures = rollouts.ledger
    assert shown(batches[0]) == expected
    assert recorded.total() == 5
    assert all(answered(server)[request] == 1 for request in recorded)
    assert figures.balanced
    assert figures.dispatched_count == 6
    await _until(lambda: not actors(ray_cluster))


async def test_a_cluster_without_room_is_an_error_that_names_what_is_missing(ray_cluster: TestCluster) -> None:
    with pytest.raises(PoolError, match=r"shard \d cannot start: 2 shards need 0.5 CPU, 1 unobtainium each"):
        async with rollouts_of(
            "http://localhost:1/v1", shards_on(ray_cluster, 2, resources={"unobtainium": 1}, wait=1)
        ):
            pass


async def test_too_few_file_descriptors_are_an_error_before_the_start() -> None:
    with pytest.raises(PoolError, match=r"1000000000 shards need \d+ file descriptors .*raise the limit"):
        async with rollouts_of("http://localhost:1/v1", RayShards(1_000_000_000)):
            pass


async def test_a_run_that_was_killed_continues_with_another_number_of_shards(
    ray_cluster: TestCluster, tmp_path: Path
) -> None:
    """Nothing is left on the nodes, and no recorded reply is asked for again."""
    held = anyio.Event()

    def hold_later(number: int, body: Json) -> Fault:
        return by_seed(number, body) if number < 5 or held.is_set() else Hold(held, then=by_seed(number, body))

    async with llm_server("vllm", hold_later) as server:
        command = [
            sys.executable,
            "-m",
            "tests.scripts.ray_shards_run",
            ray_cluster.address,
            server.url,
            str(tmp_path / "run"),
        ]
        with subprocess.Popen(command, cwd=ROOT) as process:  # noqa: ASYNC220
            await server.until(lambda: server.in_flight == 6 and len(server.requests) >= 11, PATIENCE)
            await _journaled(tmp_path / "run" / "journal.jsonl", turns=5)
            recorded = answered(server)
            process.kill()
            await anyio.to_thread.run_sync(process.wait)
        await server.until(lambda: not server.in_flight, PATIENCE)
        await _until(lambda: not actors(ray_cluster))
        held.set()
        async with rollouts_of(
            server.url, shards_on(ray_cluster, 1), run_dir=tmp_path / "run", resume=True
        ) as rollouts:
            resumed = shown(await anext(rollouts.batches(groups=3)))
        async with rollouts_of(server.url, None, run_dir=tmp_path / "run", resume=0) as rollouts:
            again = shown(await anext(rollouts.batches(groups=3)))
    assert resumed == again
    assert recorded.total() == 5
    assert all(answered(server)[request] == 1 for request in recorded)


async def _journaled(path: Path, turns: int) -> None:
    await _until(lambda: path.exists() and path.read_bytes().count(b'"turn"') >= turns)


async def _until(is_so: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not is_so():  # noqa: ASYNC110 (of other processes)
            await anyio.sleep(0.05)


async def test_code_of_the_script_itself_travels(ray_cluster: TestCluster, tmp_path: Path) -> None:
    """Env, agent, policy and score are defined in the script that is run, and its pool has worker processes."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("ADDRESS", ray_cluster.address))
    found = await anyio.run_process([sys.executable, str(script)], cwd=tmp_path)
    assert found.stdout.decode().split() == ["8.0", "2", "of", "the", "script"]


SCRIPT = """
import asyncio
import asyncrollout as ar


class Countdown:
    def reset(self, *, seed=None, options=None):
        self.left = 2
        return "start", {}

    def step(self, action):
        self.left -= 1
        return "next", bonus(1.0), self.left == 0, False, {}


def bonus(reward):
    return reward * FACTOR


FACTOR = 2.0


class Policy:
    async def generate(self, request):
        return ar.Generation("of the script")


def score(trajectory):
    return trajectory.reward + FACTOR + 2


async def main():
    shards = ar.RayShards(1, address="ADDRESS", num_cpus=0.5, wait=60)
    async with ar.Rollouts(Countdown, policy=Policy(), score=score, group_size=2, shards=shards) as rollouts:
        batch = await rollouts.collect(groups=1)
    one, other = batch.trajectories
    print(one.reward, len(one.turns), one.turns[0].reply)


asyncio.run(main())
"""
