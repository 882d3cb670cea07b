"""What `seeds_metarl.py` has in processes of its own: an agent, an env that waits, and a bare loop over rollouts."""

import time

import numpy as np
from gymnasium.spaces import Box

from asyncrollout.dropin.metarl.making import make_env
from asyncrollout.dropin.metarl.storage import SimpleReplayBuffer

TASKS = {"num_train_tasks": 50, "num_eval_tasks": 20}
ANT = (27, 8)  # numbers in an observation and in an action
QUICK, SLOW, SHARE_OF_SLOW = 0.001, 0.010, 0.1  # seconds of a step


class Agent:
    """A network of two layers, whose actions are small enough for an ant to stay on its feet."""

    def __init__(self, inputs, outputs, hidden=128):
        chance = np.random.default_rng(0)
        self._first = chance.normal(size=(inputs, hidden), scale=0.1).astype(np.float32)
        self._second = chance.normal(size=(hidden, outputs), scale=0.01).astype(np.float32)

    def act(self, obs, deterministic=False):
        return np.tanh(np.tanh(obs @ self._first) @ self._second), None, None, None


class Paced:
    """Steps wait, most of them shortly, some ten times as long; episodes have 10 to 50 of them."""

    n_tasks = None
    _max_episode_steps = 50
    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def seed(self, seed):
        self._chance = np.random.default_rng(seed)

    def reset(self):
        self._left = int(self._chance.integers(10, 51))
        return np.zeros(2, np.float32)

    def step(self, action):
        time.sleep(SLOW if self._chance.random() < SHARE_OF_SLOW else QUICK)
        self._left -= 1
        return np.zeros(2, np.float32), 0.0, self._left == 0, {}


def bare_loop(env, agent, plays):
    """As one writes it by hand, of our code only the env and the storage; how many steps it took."""
    storage, steps = SimpleReplayBuffer(len(plays) * 200, *ANT), 0
    for seed, task in plays:
        obs, done = env.reset(task=task, seed=seed), False
        while not done:
            action = agent.act(obs[None])[0][0]
            then, reward, done, _ = env.step(action)
            storage.add_sample(obs, action, reward, done, then)
            obs = then
            steps += 1
    return steps


_env = []


def bare_loop_in_process(plays):
    """The same with an env that stays in this process."""
    if not _env:
        _env.append(make_env("AntDir-v0", 1, seed=0, **TASKS))
    return bare_loop(_env[0], Agent(*ANT), plays)
