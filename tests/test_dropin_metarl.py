"""The manager of many envs: its calls and its pipes, tasks and seeds, what happens when something dies, and its end."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import gymnasium
import numpy as np
import psutil
import pytest

from asyncrollout import ClosedError, EnvCrashed, EnvError, UsageError, register_env
from asyncrollout.dropin import metarl, portal
from asyncrollout.dropin.metarl import ParallelEnvManager, VariBadWrapper, make_env, make_parallel_env
from tests.envs import meta as meta_envs
from tests.envs.meta import (
    Around,
    Choosing,
    Exchange,
    Global,
    Meeting,
    OldEnv,
    Seeded,
    SeededByName,
    TaskedByReset,
    in_thread,
)
from tests.playing import PATIENCE

TASKS: dict[str, Any] = {"num_train_tasks": 4, "num_eval_tasks": 2}


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    portal.close()


def point_robots(count: int = 2, **kwargs: Any) -> ParallelEnvManager:
    return make_parallel_env("PointRobot-v0", 2, count, seed=5, **{**TASKS, "max_episode_steps": 3, **kwargs})


def workers() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it has just ended
            found += [child] if "anyio.to_process" in child.cmdline() else []
    return found


def as_lists(value: Any) -> Any:
    """Arrays that can be compared."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [as_lists(item) for item in value]
    return {key: as_lists(item) for key, item in value.items()} if isinstance(value, dict) else value


def test_a_name_that_is_none() -> None:
    with pytest.raises(AttributeError, match="no attribute 'make_envs'"):
        _ = metarl.make_envs  # type: ignore[attr-defined]


# one env


def test_one_env_has_the_calls_of_old() -> None:
    env = make_env("PointRobot-v0", 2, seed=5, oracle=True, **TASKS, max_episode_steps=3)
    first = env.reset(task=3)
    assert env.observation_space.shape == first.shape == (5,)
    assert (env.horizon_bamdp, env.n_tasks, env.episodes_per_task, env.unwrapped._max_episode_steps) == (6, 6, 2, 3)
    assert as_lists(env.unwrapped.goals[3].astype(np.float32)) == as_lists(first[2:4])
    assert [*env.unwrapped.get_all_task_idx()] == [*range(6)]
    ends = []
    for _ in range(6):
        _, reward, done, info = env.step(env.action_space.sample())
        assert type(reward) is float
        ends.append((done, info["done_mdp"], "start_state" in info, "TimeLimit.truncated" in info))
    nothing = (False, False, False, False)
    assert ends == [nothing, nothing, (False, True, True, False), nothing, nothing, (True, True, False, True)]
    assert (env.done_mdp, env.episode_count, env.step_count_bamdp) == (True, 2, 6)
    with pytest.raises(AttributeError):
        _ = env.no_such_thing
    env.close()


def test_a_seed_is_for_all_episodes_from_then_on() -> None:
    env = make_env("PointRobot-v0", 1, seed=5)
    first = [env.reset().tolist() for _ in range(3)]
    env.seed(5)
    assert [env.reset().tolist() for _ in range(3)] == first
    assert len({tuple(start) for start in first}) == 3
    assert env.reset(seed=9).tolist() == env.reset(seed=9).tolist()


def test_an_env_of_old_is_wrapped() -> None:
    env = VariBadWrapper(OldEnv(), 2, oracle=True)
    assert env.horizon_bamdp == 10
    assert env.reset(task=2).tolist()[1:] == [2.0, 2.0, 0.0]
    state, reward, done, info = env.step([1.0])  # from -1 to 1, for -2 to 2
    assert (state.tolist()[1:], reward, done) == ([4.0, 2.0, 0.0], 4.0, False)
    assert not info["is_goal_state"]
    assert env.step([0.5])[3]["is_goal_state"]
    env.step([0.0])
    env.step([0.0])
    state, _, done, info = env.step([0.0])
    assert (state[-1], done, info["done_mdp"], info["start_state"][1]) == (1.0, False, True, 2.0)
    assert env.reset().tolist()[1] == 3.0  # its own choice


def test_an_env_that_tells_no_horizon_or_takes_no_task() -> None:
    class Endless(OldEnv):
        _max_episode_steps = 0

    with pytest.raises(UsageError, match="Endless has no horizon: it needs an attribute _max_episode_steps"):
        VariBadWrapper(Endless(), 1)
    with pytest.raises(UsageError, match="get_current_task"):
        VariBadWrapper(gymnasium.make("Pendulum-v1"), 1, oracle=True)
    env = VariBadWrapper(gymnasium.make("Pendulum-v1"), 2)
    assert env.horizon_bamdp == 400
    assert env.reset(seed=1).shape == (4,)
    with pytest.raises(UsageError, match="no reset"):
        VariBadWrapper(object(), 1)
    with pytest.raises(UsageError, match="'PointRobt-v0', neither here nor in Gymnasium: did you mean 'PointRobot-v0'"):
        make_env("PointRobt-v0", 1)
    with pytest.raises(UsageError, match="'PointRobot', neither here nor in Gymnasium: did you mean 'PointRobot-v0'"):
        make_env("PointRobot", 1)
    with pytest.raises(UsageError, match="did you mean 'HalfCheetah-v5'"):
        make_parallel_env("HalfCheetah-v9", 1, 2)


def test_all_episodes_of_a_task_are_of_that_task() -> None:
    env = VariBadWrapper(TaskedByReset(), 3)
    seen = [env.reset(task=4)[1]]
    for step in range(1, 15):
        _, _, done, info = env.step([0.0])
        seen += [info["start_state"][1]] if step % 5 == 0 else []
        assert not done
    assert seen == [4.0, 4.0, 4.0]
    env.reset()
    for _ in range(4):
        env.step([0.0])
    with pytest.raises(UsageError, match=r"TaskedByReset began another task.*give a task to reset\(\)"):
        env.step([0.0])


@pytest.mark.parametrize("make", [Seeded, SeededByName, lambda: Around(Seeded()), lambda: Around(Around(OldEnv()))])
def test_the_seed_reaches_the_env(make: Any) -> None:
    starts = [VariBadWrapper(make(), 1).reset(task=1, seed=seed)[0] for seed in (7, 8, 7)]
    assert starts == [7.0, 8.0, 7.0]
    manager = ParallelEnvManager([make, make], seeds=[3, 3])
    first, second = manager.reset_all([1, 1])
    assert as_lists(first) == as_lists(second)
    assert first[0] >= 0
    manager.close()


def test_a_task_that_the_env_draws_follows_from_the_seed() -> None:
    class Drawing(Seeded):
        def reset_task(self, task: int | None) -> None:
            self.task = int(self.tag) if task is None else task

    env = VariBadWrapper(Drawing(), 2)
    assert [env.reset(seed=seed)[1] for seed in (5, 6, 5)] == [5.0, 6.0, 5.0]


def test_what_an_env_draws_from_global_generators_follows_from_its_seed() -> None:
    def played(processes: int) -> list[Any]:
        manager = ParallelEnvManager([Global] * 3, seeds=[1, 2, 1], processes=processes)
        seen = [manager.reset_all(), [manager.step_all([[0.0]] * 3)[1] for _ in range(5)]]
        manager.close()
        return seen

    together, apart = played(1), played(3)
    assert as_lists(together) == as_lists(apart)
    starts, rewards = together
    assert as_lists(starts[0]) == as_lists(starts[2]) != as_lists(starts[1])
    assert len({reward for row in rewards for reward in row}) == 10


# many envs


def test_the_calls_of_a_manager() -> None:
    manager = point_robots(3, oracle=True)
    assert manager.num_envs == len(manager.remotes) == 3
    assert manager.observation_space.shape == (5,)
    assert manager.action_space == gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    assert (manager.n_tasks, manager.horizon_bamdp) == (6, 6)
    goals = [manager.get_attr("unwrapped", rank, ["goals"]) for rank in range(3)]
    assert as_lists(manager.get_attr("unwrapped.goals")) == as_lists(goals[0])
    assert as_lists(goals[0]) == as_lists(goals[1]) == as_lists(goals[2])
    starts = manager.reset_all(tasks=[4, 0, 2])
    assert [as_lists(start[2:4]) for start in starts] == as_lists([goals[0][k].astype(np.float32) for k in (4, 0, 2)])
    again = manager.reset(env_idx=1, task=4)
    assert as_lists(again[2:4]) == as_lists(starts[0][2:4])  # task k is one goal in every worker
    for _ in range(2):
        observations, rewards, dones, infos = manager.step_all([np.zeros(2)] * 3)
        assert as_lists(observations) == as_lists([starts[0], again, starts[2]])
        assert [type(reward) for reward in rewards] == [float] * 3
        assert (dones, [info["done_mdp"] for info in infos]) == ([False] * 3, [False] * 3)
    state, _, done, info = manager.step(env_idx=0, action=np.zeros(2))
    assert (state[-1], done, info["done_mdp"]) == (1.0, False, True)
    with pytest.raises(UsageError, match="2 actions for 3 envs"):
        manager.step_all([np.zeros(2)] * 2)
    with pytest.raises(UsageError, match=r"PointRobot-v0\[2\].*task=9 is not a whole number from 0 to 5"):
        manager.reset(2, task=9)
    with pytest.raises(UsageError, match="no attribute 'speed'"):
        manager.get_attr("speed")
    manager.close()


def test_env_i_is_seeded_with_seed_plus_i() -> None:
    manager = point_robots(2)
    alone = [make_env("PointRobot-v0", 2, seed=5 + rank, **TASKS, max_episode_steps=3) for rank in range(2)]
    for task in (None, 1):
        expected = [env.reset(task=task) for env in alone]
        assert as_lists(manager.reset_all([task] * 2)) == as_lists(expected)
        actions = [np.array([0.5, -0.2]), np.array([-1.0, 0.7])]
        for _ in range(6):
            played = [env.step(action) for env, action in zip(alone, actions, strict=True)]
            assert as_lists(manager.step_all(actions)) == as_lists([*zip(*played, strict=True)])
    manager.seed([5, 5])
    first, second = manager.reset_all()
    assert as_lists(first) == as_lists(second)
    manager.close()


def test_pipes() -> None:
    manager = point_robots(2)
    one, other = manager.remotes
    one.send(("reset", {"task": 1}))
    one.send(("step", {"action": np.zeros(2)}))
    one.send(("step", np.zeros(2)))
    other.send(("seed", {"seed": 1}))
    other.send(("reset", {"task": 1, "seed": 3}))
    kind, start = one.recv()
    assert (kind, start.shape) == ("obs", (3,))
    for _ in range(2):
        kind, (state, _, done, info) = one.recv()
        assert (kind, as_lists(state), done, info["done_mdp"]) == ("transition", as_lists(start), False, False)
    assert other.recv() == ("done", None)
    assert as_lists(other.recv()[1]) == as_lists(manager.reset(0, task=1, seed=3))
    other.send(("get_attr", {"attr": "unwrapped", "subattrs": ["horizon"]}))
    assert other.recv() == ("attr", 3)
    with pytest.raises(UsageError, match=r"PointRobot-v0\[1\]: recv\(\) without a send"):
        other.recv()
    for wrong, told in [
        (("stop", None), "command='stop' is not valid.*did you mean 'step'"),
        (("reset", {"tsk": 1}), "a reset takes 'task' and 'seed', and not 'tsk'"),
        (("seed", 3), "3 is not what 'seed' takes"),
        ("reset", "a tuple of its name and its data"),
    ]:
        with pytest.raises(UsageError, match=told):
            other.send(wrong)  # type: ignore[arg-type]
    other.send(("reset", {"task": "none"}))
    with pytest.raises(UsageError, match="task='none'"):
        other.recv()
    manager.close()


def test_what_is_inside_of_the_envs() -> None:
    manager = ParallelEnvManager([OldEnv, OldEnv])
    manager.reset_all([0, 3])
    manager.step_all([[2.0], [2.0]])
    assert manager.unwrapped.total == 2.0
    assert manager.unwrapped.get_current_task() == [0.0]
    assert [manager.unwrapped.is_goal_state(rank) for rank in range(2)] == [False, True]
    assert "is_goal_state" in dir(manager.unwrapped)
    assert manager.call("unwrapped.is_goal_state", env_idx=1)
    assert manager.get_attr("unwrapped", env_idx=1, subattrs=["total"]) == 5.0
    with pytest.raises(UsageError, match=r"no attribute 'unwrapped\.speed'"):
        _ = manager.unwrapped.speed
    assert [(worker.worker_id, worker.is_alive()) for worker in manager.workers] == [(0, True), (1, True)]
    assert {worker.pid for worker in manager.workers} == {process.pid for process in workers()}
    manager.close()
    assert [(worker.pid, worker.is_alive()) for worker in manager.workers] == [(None, False)] * 2


def test_a_pipe_is_closed() -> None:
    manager = point_robots(2)
    one, other = manager.remotes
    one.send(("reset", {"task": 1}))
    one.send(("close", None))
    assert one.poll(PATIENCE)
    assert one.recv()[0] == "obs"
    assert not one.poll()
    with pytest.raises(EOFError, match=r"PointRobot-v0\[0\]: its pipe was closed"):
        one.recv()
    with pytest.raises(ClosedError, match="its pipe was closed"):
        one.send(("reset", None))
    with pytest.raises(UsageError, match="closed"):
        manager.reset(0)
    other.send(("reset", None))
    assert other.recv()[0] == "obs"
    manager.close()


@pytest.mark.parametrize("way", ["pipes", "step_all"])
def test_all_envs_step_at_the_same_time(way: str, tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    manager = ParallelEnvManager([partial(Meeting, exchange.path)] * 4, "spawn")
    manager.reset_all()

    def step() -> list[Any]:
        if way == "step_all":
            return manager.step_all([np.zeros(1)] * 4)[0]
        for remote in manager.remotes:
            remote.send(("step", np.zeros(1)))
        return [remote.recv() for remote in manager.remotes]

    with in_thread(step) as results:
        lines = [exchange.heard()[1] for _ in range(4)]  # all four wait in their steps before the first may go on
        for line in lines:
            exchange.answer(line)
    assert len(results[0]) == 4
    exchange.close()
    manager.close()


def test_functions_of_any_kind_make_envs_and_processes_are_spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_envs, "ORIGIN", "forked")
    tasks, lock = 7, threading.Lock()

    class Local(OldEnv):
        n_tasks = tasks

    manager = ParallelEnvManager([lambda: OldEnv(), Local, lambda: VariBadWrapper(Choosing(), 2)], "fork")
    assert [manager.get_attr("origin", rank) for rank in range(3)] == ["imported"] * 3
    assert [manager.get_attr("n_tasks", rank) for rank in range(3)] == [4, 7, 4]
    assert (manager.n_tasks, manager.horizon_bamdp) == (4, None)
    assert manager.reset(0, task=1)[1] == 1.0
    assert manager.step(0, [2.0])[:2][1] == 3.0
    assert manager.reset(2, task=2)[1] == 2.0
    assert manager.step(2, 1)[0].tolist()[1:] == [3.0, 0.0]
    manager.close()
    with pytest.raises(UsageError, match="at least one"):
        ParallelEnvManager([])
    with pytest.raises(UsageError, match=r"env_fns\[1\] must be a function that makes an env, not <object"):
        ParallelEnvManager([partial(make_env, "PointRobot-v0", 1), object()])  # type: ignore[list-item]
    with pytest.raises(
        UsageError, match="env_fns must be a list of at least one function that makes an env, not <function"
    ):
        ParallelEnvManager(lambda: object())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="start_method='forked' is not valid"):
        ParallelEnvManager([OldEnv], "forked")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot be sent to a worker process"):
        ParallelEnvManager([lambda: sys.stdout.write(str(lock))])
    with pytest.raises(UsageError, match="1 seeds for 2 envs"):
        ParallelEnvManager([OldEnv, OldEnv], seeds=[1])


def test_an_env_that_was_registered_here_is_known_in_workers() -> None:
    register_env("old-env", OldEnv)
    manager = make_parallel_env("old-env", 1, 2, processes=1)
    assert manager.reset_all([1, 2])[1][1] == 2.0
    assert len(workers()) == 1
    manager.close()


# when something goes wrong


def test_after_a_killed_worker_episodes_go_on_as_if_nothing_had_been() -> None:
    def played(kill: bool) -> list[Any]:
        manager = point_robots(2)
        seen: list[Any] = [manager.reset_all([1, 2])]
        for turn in range(6):
            if kill and turn in (1, 4):
                for worker in workers():
                    worker.kill()
            seen.append(manager.step_all([np.array([0.5, 0.1])] * 2))
        manager.close()
        return seen

    assert as_lists(played(kill=True)) == as_lists(played(kill=False))


def test_without_recovery_a_killed_worker_is_an_error_that_names_its_env() -> None:
    manager = point_robots(2, recover="none")
    manager.reset_all([1, 2])
    workers()[1].kill()
    with pytest.raises(EnvCrashed, match=r"PointRobot-v0\[1\].*its worker died \(SIGKILL\)"):
        manager.step(1, np.zeros(2))
    assert manager.step(0, np.zeros(2))[2] is False
    assert manager.reset(1, task=3).shape == (3,)  # a new episode is a new env
    manager.close()


def missing() -> Any:
    import no_such_module_of_anybody  # type: ignore[import-not-found] # noqa: F401


def test_what_a_worker_cannot_import_is_told_with_its_traceback() -> None:
    with pytest.raises(EnvError, match=r"env\[1\].*No module named 'no_such_module_of_anybody'") as raised:
        ParallelEnvManager([OldEnv, missing])
    assert "import no_such_module_of_anybody" in "".join(raised.value.__notes__)
    assert workers() == []


def test_the_end_of_a_manager() -> None:
    manager = point_robots(2)
    manager.reset_all()
    with pytest.raises(UsageError, match="env_idx=2: there are 2 envs"):
        manager.reset(2)
    manager.remotes[0].send(("step", np.zeros(2)))
    manager.close()
    manager.close()
    assert manager.closed
    assert workers() == []
    calls = (lambda: manager.step(0, np.zeros(2)), manager.reset_all, lambda: manager.remotes[0].send(("reset", None)))
    for call in calls:
        with pytest.raises(ClosedError, match="make another"):
            call()
    forgotten = point_robots(2)
    assert len(workers()) == 2
    del forgotten
    deadline = time.monotonic() + PATIENCE
    while workers() and time.monotonic() < deadline:  # psutil's own wait would take their ends from the event loop
        portal.run(anyio.sleep, 0.01)
    assert workers() == []


MANY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
from asyncrollout.dropin.metarl import make_parallel_env
if __name__ == "__main__":
    given = {"processes": int(sys.argv[1])} if sys.argv[1:] else {}
    manager = make_parallel_env("PointRobot-v0", 2, 256, seed=1, num_train_tasks=4, num_eval_tasks=2, **given)
    starts = manager.reset_all([number % 6 for number in range(256)])
    observations = manager.step_all([[0.0, 0.0]] * 256)[0]
    print(len(starts), sum(one.shape == (3,) for one in observations), len(manager.envs))
"""


@pytest.mark.parametrize("given", [["2"], pytest.param([], marks=pytest.mark.slow)])
def test_256_envs_with_1024_descriptors(given: list[str], tmp_path: Path) -> None:
    script = tmp_path / "many.py"
    script.write_text(MANY)
    done = subprocess.run(
        [sys.executable, str(script), *given], check=False, capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr) == ("256 256 256\n", "")
