"""Shards on one event loop, for tests that kill them."""

import anyio.lowlevel

from asyncrollout.rollouts.shards.local_shards import LocalShardLauncher, LocalShardProcess, LocalShards
from tests.waiting import all_tasks_blocked


class KillableShards(LocalShards):
    """Keeps the launcher that it made last."""

    def launcher(self) -> LocalShardLauncher:
        made = super().launcher()
        object.__setattr__(self, "made", made)
        return made

    def process_of(self, name: str) -> LocalShardProcess:
        made: LocalShardLauncher = self.__dict__["made"]
        return made.processes[name]

    def alive(self) -> list[LocalShardProcess]:
        made: LocalShardLauncher = self.__dict__["made"]
        return [process for _, process in sorted(made.processes.items()) if not process.has_ended]


async def all_settled() -> None:
    """Until each task waits for something that no frame on its way brings: frames travel by callbacks."""
    for _ in range(_HOPS):
        await anyio.lowlevel.checkpoint()
    await all_tasks_blocked()


_HOPS = 200  # iterations of the loop; a frame takes one
