"""Shards on one event loop, for tests that kill them."""

from asyncrollout.rollouts.shards.local_shards import LocalShardLauncher, LocalShardProcess, LocalShards


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
