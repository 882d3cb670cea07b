"""The code blocks of the guide that this follows run as they are written, but for the lines that import."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from asyncrollout import UsageError
from asyncrollout.dropin import metarl, portal
from asyncrollout.dropin.metarl import AGENT_ARCHS, SeqReplayBuffer, make_env, make_parallel_env, read_settings
from tests.envs.meta import Chance, OldEnv

GUIDE = (Path(__file__).parent / "seeds" / "metarl.md").read_text()
BLOCKS = {
    name: textwrap.dedent(code)
    for name, code in re.findall(r"^## (\w+)\n\n *```(?:python|yaml)\n(.*?)^ *```", GUIDE, re.DOTALL | re.MULTILINE)
}
IMPORTS = {"from envs.meta.make_env import": "from asyncrollout.dropin.metarl import"}
"""The only lines that change."""

NOT_VERBATIM = {
    "yaml": "its last line, '...', is no YAML: it is left out",
    "cleanup": "its two lines are two ways to do it: the second cannot follow the first",
}


def run(name: str, **names: Any) -> dict[str, Any]:
    code = BLOCKS[name]
    for old, new in IMPORTS.items():
        code = code.replace(old, new)
    exec(compile(code, name, "exec"), names)
    return names


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    portal.close()


def robots(count: int) -> Any:
    return make_parallel_env("PointRobot-v0", 2, count, seed=1, num_train_tasks=4, num_eval_tasks=2)


def test_every_block_is_known() -> None:
    known = ["signature", "collect", "init_env", "train", "act", "send", "receive", "store", "yaml", "tasks", "cleanup"]
    assert [*BLOCKS] == known
    with pytest.raises(yaml.YAMLError):
        yaml.safe_load(BLOCKS["yaml"])


def test_signature() -> None:
    made = {}

    def remember(*args: Any, **kwargs: Any) -> None:
        made["env"] = make_parallel_env(*args, **kwargs)

    values = {"env_id": "PointRobot-v0", "episodes_per_task": 2, "num_workers": 2, "kwargs": {"num_train_tasks": 3}}
    run("signature", make_parallel_env=remember, **values)
    assert made["env"].num_envs == 2
    assert made["env"].n_tasks == 3
    made["env"].close()


class Logger:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, line: str) -> None:
        self.lines.append(line)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_learner_is_made_and_trained(workers: int) -> None:
    logger = Logger()
    init_env = run("init_env")["Learner"].init_env
    train = run("train", logger=logger)["train"]

    class Learner(metarl.Learner):
        seed = 7
        agent_arch = AGENT_ARCHS.Memory_Markov
        num_init_rollouts_pool = 2
        num_rollouts_per_iter = 4
        updates = 0

        def _start_training(self) -> None:
            self.max_trajectory_len = self.train_env.horizon_bamdp
            self.n_env_steps_total = 10 * self.max_trajectory_len
            self.agent = Chance(3, 2)
            self.policy_storage = SeqReplayBuffer(10_000, 3, 2, self.max_trajectory_len)

        def update(self, given: Any) -> dict[str, int]:
            assert given is ...
            self.updates += 1
            return {"updates": self.updates}

        def log_train_stats(self, stats: dict[str, int]) -> None:
            logger.log(str(stats))

    learner = Learner()
    init_env(learner, "meta", "PointRobot-v0", 2, 4, 2, num_parallel_workers=workers, max_episode_steps=5)
    assert (learner.train_env_parallel is None) == (workers == 1)
    train(learner)
    assert logger.lines == ["Collecting initial pool of data..", "{'updates': 1}", "{'updates': 2}"]
    assert learner.policy_storage.size() == learner._n_env_steps_total == 100
    assert run("collect", learner=learner, num_rollouts=3)
    assert learner._n_env_steps_total == 130
    learner.close()


def test_phases() -> None:
    parallel_env = robots(3)

    class Agent:
        def act(self, obs: Any) -> Any:
            return np.zeros(2)

    class Storage:
        def __init__(self) -> None:
            self.samples: list[Any] = []

        def add_sample(self, sample: Any) -> None:
            self.samples.append(sample)

    class Learner:
        agent = Agent()
        train_tasks = range(4)
        policy_storage = Storage()

    known: dict[str, Any] = {"self": Learner(), "np": np, "parallel_env": parallel_env, "num_workers": 3}
    run("tasks", **known)
    obs = [remote.recv()[1] for remote in parallel_env.remotes]
    results = []
    for worker_id, remote in enumerate(parallel_env.remotes):
        known |= {"active_workers": [worker_id], "remote": remote, "obs": obs}
        known["action"] = run("act", **known)["action"]
        run("send", **known)
        kind, (state, reward, done, _) = run("receive", **known)["result"]
        assert (kind, state.shape, done) == ("transition", (3,), False)
        results.append((worker_id, reward))
    run("store", **known, results=results)
    assert Learner.policy_storage.samples == [...] * 3
    parallel_env.close()


def test_cleanup() -> None:
    delete, close = (line for line in BLOCKS["cleanup"].splitlines() if line and not line.startswith("#"))
    exec(delete, {"parallel_env": robots(1)})
    parallel_env = robots(1)
    exec(close, {"parallel_env": parallel_env})
    assert parallel_env.closed


SETTINGS = "\n".join(line for line in BLOCKS["yaml"].splitlines() if line.strip() != "...")


def test_settings(tmp_path: Path) -> None:
    settings = read_settings(SETTINGS)
    assert settings["env"] == {
        "env_type": "meta",
        "env_name": "AntDir-v0",
        "max_rollouts_per_task": 2,
        "num_train_tasks": 50,
        "num_eval_tasks": 20,
        "num_parallel_workers": 6,
    }
    assert settings["train"] == {"num_rollouts_per_iter": 12}
    file = tmp_path / "meta.yaml"
    file.write_text(SETTINGS.replace("AntDir-v0", "PointRobot-v0").replace("workers: 6", "workers: 1"))
    learner = metarl.Learner()
    learner.init_env(**read_settings(file)["env"])
    assert learner.train_env_parallel is None
    assert (learner.train_env.n_tasks, [*learner.eval_tasks]) == (70, [*range(50, 70)])
    assert (learner.max_trajectory_len, learner.obs_dim, learner.act_dim, learner.act_continuous) == (120, 3, 2, True)
    learner.close()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("env:\n  env_nam: x\n", r"env\.env_nam: no such key: did you mean 'env_name'"),
        ("env:\n  env_type: meta\n", "missing required field `env_name`"),
        ("train:\n  num_rollouts_per_iter: 1\n", "the part 'env' is missing"),
        (SETTINGS.replace("workers: 6", "workers: -1"), r"`int` >= 0 - at `\$.num_parallel_workers`"),
        (SETTINGS.replace("iter: 12", "iter: many"), r"Expected `int`, got `str` - at `\$.num_rollouts_per_iter`"),
        ("env: 3\n", "found 3, expected a mapping"),
        ("env: [\n", "not valid YAML"),
        ("no_such_file.yaml", "no_such_file.yaml: cannot be read: No such file"),
    ],
)
def test_settings_that_make_no_sense(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_settings(text)


def test_only_families_of_tasks_are_made() -> None:
    learner = metarl.Learner()
    with pytest.raises(UsageError, match="env_type='pomdp' is not 'meta'"):
        learner.init_env("pomdp", "PointRobot-v0", 1, 1, 1)
    learner.agent_arch = "markow"
    learner.train_env = OldEnv()
    with pytest.raises(UsageError, match="agent_arch='markow' is not valid: did you mean 'markov'"):
        learner.collect_rollouts(1)


def test_make_env_takes_what_the_guide_gives() -> None:
    env = make_env("PointRobot-v0", 2, seed=1, num_train_tasks=3, num_eval_tasks=1)
    assert env.reset(task=3).shape == (3,)
