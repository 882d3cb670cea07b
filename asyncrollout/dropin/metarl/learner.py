"""What a learner collects with: give it an `agent`, and it has the methods that the training loop calls."""

import time
from collections.abc import Callable
from typing import Any

from asyncrollout.dropin.metarl.acting import AGENT_ARCHS, as_arch
from asyncrollout.dropin.metarl.collecting import CollectedRollout, RolloutStart, drawn_plays, store
from asyncrollout.dropin.metarl.collector import (
    ActingAgent,
    Collection,
    PoolCollector,
    collect_alone,
    collect_here,
    collect_in_workers,
)
from asyncrollout.dropin.metarl.making import make_env, make_parallel_env
from asyncrollout.dropin.metarl.parallel import POOL_OPTIONS, ParallelEnvManager
from asyncrollout.dropin.metarl.remote_agent import ship_agent
from asyncrollout.dropin.metarl.storage import SeqReplayBuffer, SimpleReplayBuffer
from asyncrollout.dropin.metarl.ways import Way
from asyncrollout.errors import ClosedError, UsageError
from asyncrollout.validation import check_int


class Learner:
    """To inherit from. `agent`, `agent_arch` and `policy_storage` are yours; so is all of the learning.

    Rollout n of a learner has a seed and a task that follow from `seed` and n alone, and so does what is drawn in it:
    who plays it, one env or many in processes, makes no difference.

    With a pool, rollouts are played in the way that was fastest so far: by the workers with copies of the agent, by
    the agent here in the workers' envs, or in one env here. An agent that cannot be sent, that is on a GPU, or that
    acting changes, stays here. `acts_in_workers` True or False, or `acts_in_batches`, fixes the way instead.
    `acts_in_batches` asks the agent once for all envs that wait: for a large network. The last bit of a number may then
    differ, and what is drawn from a global generator depends on who waits together. `last_collection` has the way.
    """

    seed: int = 0
    agent: Any = None
    agent_arch: Any = AGENT_ARCHS.Markov
    policy_storage: Any = None
    acts_in_workers: bool | None = None
    acts_in_batches = False
    last_collection: Collection | None = None
    train_tasks: Any = ()
    train_env: Any = None
    train_env_parallel: ParallelEnvManager | None = None
    eval_env: Any = None
    _n_env_steps_total = 0
    _n_rollouts_total = 0
    _successes_in_buffer = 0
    _clock: Callable[[], float] = time.perf_counter

    def init_env(  # noqa: PLR0917 (as it is documented)
        self,
        env_type: str,
        env_name: str,
        max_rollouts_per_task: int,
        num_train_tasks: int,
        num_eval_tasks: int,
        num_parallel_workers: int = 4,
        **kwargs: Any,
    ) -> None:
        """Make the envs of a configuration: one to train in, one to evaluate in; with more than one worker, a pool."""
        if env_type != "meta":
            raise UsageError(f"env_type={env_type!r} is not 'meta', the only kind of env that is made here")
        check_int("num_parallel_workers", num_parallel_workers, 0)
        tasks: dict[str, Any] = {"num_train_tasks": num_train_tasks, "num_eval_tasks": num_eval_tasks}
        self.train_env_parallel = None
        if num_parallel_workers > 1:
            self.train_env_parallel = make_parallel_env(
                env_name, max_rollouts_per_task, num_parallel_workers, self.seed, **tasks, **kwargs
            )
        tasks |= {key: value for key, value in kwargs.items() if key not in POOL_OPTIONS}
        self.train_env = make_env(env_name, max_rollouts_per_task, self.seed, **tasks)
        self.eval_env = make_env(env_name, max_rollouts_per_task, self.seed + 1, **tasks)
        self.train_tasks = range(num_train_tasks)
        self.eval_tasks = range(num_train_tasks, num_train_tasks + num_eval_tasks)
        self.max_rollouts_per_task = max_rollouts_per_task
        self.max_trajectory_len = self.train_env.horizon_bamdp
        self.obs_dim = self.train_env.observation_space.shape[0]
        self.act_continuous = not _is_discrete(self.train_env.action_space)
        self.act_dim = self.train_env.action_space.shape[0] if self.act_continuous else self.train_env.action_space.n

    def init_storage(
        self, buffer_size: float = 1e6, sampled_seq_len: int = -1, sample_weight_baseline: float = 0.0
    ) -> None:
        """A storage of steps, or of episodes for an agent with a memory; -1 is the length of a whole rollout."""
        sizes = (int(buffer_size), self.obs_dim, self.act_dim if self.act_continuous else 1)
        if as_arch(self.agent_arch) is AGENT_ARCHS.Markov:
            self.policy_storage = SimpleReplayBuffer(*sizes, seed=self.seed)
        else:
            length = self.max_trajectory_len if sampled_seq_len == -1 else sampled_seq_len
            self.policy_storage = SeqReplayBuffer(*sizes, length, sample_weight_baseline, seed=self.seed)

    def collect_rollouts(self, num_rollouts: int, random_actions: bool = False) -> int:
        """One rollout after the other, in `train_env`."""
        return self.collect_rollouts_parallel(num_rollouts, random_actions, None)

    def collect_rollouts_parallel(
        self, num_rollouts: int, random_actions: bool = False, parallel_env: ParallelEnvManager | None = None
    ) -> int:
        """Play rollouts, add them to `policy_storage` in the order of their numbers; the number of env steps.

        Each env of `parallel_env` plays its share at its own pace; without one, `train_env` plays all.
        """
        check_int("num_rollouts", num_rollouts, 1)
        arch = as_arch(self.agent_arch)
        env = self.train_env if parallel_env is None else parallel_env
        self._check_ready(env, random_actions=random_actions)
        tasks = self.train_tasks if env.n_tasks is not None else ()
        plays = drawn_plays(self.seed, self._n_rollouts_total, num_rollouts, tasks)
        acting = ActingAgent(self.agent, None if random_actions else arch, env.action_space)
        played, self.last_collection = self._played(acting, env, plays)
        self._successes_in_buffer += sum(store(one, self.policy_storage, arch) for one in played)
        self._n_env_steps_total += self.last_collection.steps
        self._n_rollouts_total += num_rollouts
        return self.last_collection.steps

    def _check_ready(self, env: Any, *, random_actions: bool) -> None:
        """Before anything is played, which may take long."""
        if env is None:
            raise UsageError("train_env is missing: call init_env() first, or set it")
        if isinstance(env, ParallelEnvManager) and env.closed:
            raise ClosedError("parallel_env was closed: make another one")
        if self.policy_storage is None:
            raise UsageError("policy_storage is missing: call init_storage() first, or set it")
        if not random_actions and not callable(getattr(self.agent, "act", None)):
            raise UsageError(f"agent={self.agent!r:.100} has no act(): set one that has, or use random_actions=True")
        if self.acts_in_workers and self.acts_in_batches:
            raise UsageError("acts_in_workers and acts_in_batches are both True: an agent acts in one way")

    def _played(
        self, acting: ActingAgent, env: Any, plays: list[RolloutStart]
    ) -> tuple[list[CollectedRollout], Collection]:
        is_pool = isinstance(env, ParallelEnvManager)
        if is_pool and self.acts_in_workers is None and not self.acts_in_batches:
            return PoolCollector(acting, env, self._clock).collect(plays)
        began = self._clock()
        handles = [each.handle for each in env.envs] if is_pool else []
        if not is_pool:
            way, played = Way.SEQUENTIAL, collect_alone(acting, [env], plays)
        elif self.acts_in_workers:
            with ship_agent(acting.make, is_checked=False) as agent:
                way, played = Way.WORKERS, collect_in_workers(agent, handles, plays, env.step_timeout)
        else:
            way, played = Way.HERE, collect_here(acting, handles, plays, in_batches=self.acts_in_batches)
        return played, Collection(way, sum(len(one.rewards) for one in played), self._clock() - began)

    def close(self) -> None:
        """Close the envs and end their processes; a second time does nothing."""
        for env in (self.train_env_parallel, self.train_env, self.eval_env):
            if env is not None:
                env.close()


def _is_discrete(space: Any) -> bool:
    return type(space).__name__ == "Discrete"
