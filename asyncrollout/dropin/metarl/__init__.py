"""Meta-RL code written for pomdp-baselines, on our pool: the same names and calls, each of them synchronous.

The modules, from a learner's call to an env's step:

learner        `Learner`: give it an `agent`, and it has the methods that the training loop calls
settings       a run's YAML file
collector      a call of `collect_rollouts_parallel`: it takes one of several ways; ways: which, by what each took
collecting     ... here: each env plays its share at its own pace
acting         ... the learner's agent as a policy of ours; row_rng: its generator for a batch of rollouts
remote_agent   ... in workers: copies of the agent there
worker_rollout ... and what a worker plays by itself
agent_rollout  one rollout, agent and env in one process; chance: the generators that they share
storage        replay buffers

making         `make_env`, `make_parallel_env`: envs by id
parallel       `ParallelEnvManager`: many envs in worker processes; pipes: as `remotes` and `workers`
async_env      ... one of them, in coroutines
serving        ... where it is played
wrapper        `VariBadWrapper`: several episodes of a task as one
gym_compat     ... of anybody's env, with Gym's old interface or Gymnasium's

Names load when they are first used: a worker process needs few of them.
"""

from asyncrollout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
