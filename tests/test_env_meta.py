"""Families of tasks: a task is the same everywhere, several episodes of it are one, and rewards are as documented."""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from asyncrollout import EnvPool, MissingExtraError, Outcome, UsageError, find_env
from asyncrollout.bamdp import Bamdp
from asyncrollout.testing import check_env
from asyncrollout_envs.meta import make

needs_mujoco = pytest.mark.skipif(find_spec("mujoco") is None, reason="needs pip install 'asyncrollout[mujoco]'")
ROBOTS = ("AntDir-v0", "AntGoal-v0", "CheetahDir-v0", "HalfCheetahVel-v0", "HumanoidDir-v0")
NUMERIC = (*ROBOTS, "PointRobot-v0", "PointRobotSparse-v0", "Wind-v0")
EACH = [pytest.param(name, marks=needs_mujoco if name in ROBOTS else ()) for name in NUMERIC]
TASKS = {"num_train_tasks": 4, "num_eval_tasks": 2}


@pytest.fixture
def opened() -> Iterator[list[Bamdp]]:
    envs: list[Bamdp] = []
    yield envs
    for env in envs:
        env.close()


def made(opened: list[Bamdp], name: str, **kwargs: Any) -> Bamdp:
    opened.append(make(**{**find_env(name).kwargs, **kwargs}))
    return opened[-1]


@pytest.mark.parametrize("name", EACH)
async def test_contract(name: str) -> None:
    spec = find_env(name).with_kwargs(**TASKS, episodes_per_task=2, oracle=True, max_episode_steps=7)
    report = await check_env(spec, max_steps=20, seeds=(0, 1))
    assert "an observation is in observation_space" in report.checked
    assert ("an episode continues after its worker was killed" in report.checked) == (name in ROBOTS)


@pytest.mark.parametrize("name", EACH)
async def test_opens_without_keywords_and_draws_tasks_from_the_seed(name: str) -> None:
    async with EnvPool(backend="inline") as pool, pool.open(name) as env:
        goals = []
        for seed in (*range(12), *range(12)):
            await env.reset(seed=seed)
            goals.append((await env.call("get_current_task")).tolist())
        assert goals[:12] == goals[12:]
        assert len({tuple(goal) for goal in goals}) > 1
        assert await env.call("n_tasks") is None
        with pytest.raises(UsageError, match="num_train_tasks"):
            await env.reset(seed=1, task=0)


GOALS = """
import json, sys
from asyncrollout import find_env
from asyncrollout_envs.meta import make
for name in sys.argv[1:]:
    env, goals = make(**find_env(name).kwargs, num_train_tasks=8, num_eval_tasks=3), []
    for task in range(11):
        env.reset(seed=task, options={"task": task})
        goals.append(env.get_current_task().tolist())
    print(json.dumps(goals))
"""


def test_a_task_is_the_same_in_every_process_and_however_many_there_are(opened: list[Bamdp]) -> None:
    names = [name for name in NUMERIC if name not in ROBOTS or find_spec("mujoco")]
    known = {"CheetahDir-v0": 2}  # forward and backward
    command = [sys.executable, "-c", GOALS, *names]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    for name, line in zip(names, told.stdout.splitlines(), strict=True):
        env = made(opened, name, **TASKS)
        goals = []
        for task in range(6):
            env.reset(seed=task * 17, options={"task": task})
            goals.append(env.get_current_task().tolist())
        assert len({tuple(goal) for goal in goals}) == known.get(name, 6)
        assert json.loads(line)[:6] == goals


def test_without_a_task_one_for_training_is_drawn(opened: list[Bamdp]) -> None:
    env = made(opened, "PointRobot-v0", **TASKS)
    drawn = set()
    for seed in range(60):
        env.reset(seed=seed)
        drawn.add(tuple(env.get_current_task()))
    assert drawn == {tuple(goal) for goal in env.env.goals[:4]}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"num_train_taks": 3}, "num_train_taks.*did you mean 'num_train_tasks'"),
        ({"num_train_tasks": 0}, "num_train_tasks=0 is not a whole number from 1"),
        ({"num_eval_tasks": 2}, "needs num_train_tasks"),
        ({"num_train_tasks": 2, "n_tasks": 5}, "n_tasks=5, but num_train_tasks=2"),
        ({"episodes_per_task": 0}, "episodes_per_task=0 is not a whole number from 1"),
        ({"oracle": 1}, "oracle=1 is neither True nor False"),
        ({"goal_radius": 0}, "goal_radius=0 is not a number above 0"),
    ],
)
def test_keywords_that_make_no_sense(kwargs: dict[str, Any], told: str, opened: list[Bamdp]) -> None:
    with pytest.raises(UsageError, match=told):
        made(opened, "PointRobotSparse-v0", **kwargs)


@pytest.mark.parametrize("task", [6, -1, 1.0, True, "1"])
def test_a_task_that_is_none(task: Any, opened: list[Bamdp]) -> None:
    with pytest.raises(UsageError, match=r"PointRobot-v0: task=.* from 0 to 5"):
        made(opened, "PointRobot-v0", **TASKS).reset(seed=1, options={"task": task})


def test_without_mujoco_the_error_tells_how_to_get_it(monkeypatch: pytest.MonkeyPatch, opened: list[Bamdp]) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(MissingExtraError, match=r"AntDir-v0 needs MuJoCo: pip install 'asyncrollout\[mujoco\]'"):
        made(opened, "AntDir-v0")


# several episodes as one


@pytest.mark.parametrize(
    ("kwargs", "width"),
    [({}, 2), ({"oracle": True}, 4), ({"episodes_per_task": 3}, 3), ({"episodes_per_task": 3, "oracle": True}, 5)],
)
def test_what_an_observation_holds(kwargs: dict[str, Any], width: int, opened: list[Bamdp]) -> None:
    env = made(opened, "PointRobot-v0", **TASKS, max_episode_steps=5, **kwargs)
    first, _ = env.reset(seed=1, options={"task": 2})
    assert env.observation_space.shape == first.shape == (width,)
    assert first.dtype == env.observation_space.dtype == np.float32
    assert env.horizon_bamdp == 5 * kwargs.get("episodes_per_task", 1)
    if "oracle" in kwargs:
        assert first[2:4].tolist() == env.get_current_task().astype(np.float32).tolist()


def test_episodes_of_a_task_follow_each_other(opened: list[Bamdp]) -> None:
    env = made(opened, "PointRobot-v0", **TASKS, episodes_per_task=3, max_episode_steps=4)
    state, _ = env.reset(seed=5, options={"task": 3})
    goal = env.get_current_task()
    starts = [state]
    for step in range(1, 13):
        state, reward, terminated, truncated, info = env.step(np.array([1.0, -1.0]))
        ended = step % 4 == 0
        assert info["done_mdp"] == bool(state[-1]) == ended
        assert (terminated, truncated) == (False, step == 12)
        assert ("start_state" in info) == (ended and step < 12)
        assert (env.get_current_task() == goal).all()
        before = starts[-1][:2] + (step - 1) % 4 * np.array([0.1, -0.1])
        at = before + np.array([0.1, -0.1])
        assert state[:2] == pytest.approx(at, abs=1e-6)
        assert reward == pytest.approx(-np.hypot(*(at - goal)), abs=1e-6)
        if "start_state" in info:
            starts.append(info["start_state"])
    assert len({tuple(start) for start in starts}) == 3
    assert [start[-1] for start in starts] == [0.0] * 3
    assert (env.episode_count, env.step_count) == (3, 12)
    with pytest.raises(UsageError, match=r"are over, or it was never reset: call reset\(\) first"):
        env.step(np.zeros(2))


def test_actions_are_given_between_minus_one_and_one(opened: list[Bamdp]) -> None:
    env = made(opened, "PointRobot-v0")
    assert env.action_space == gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    start, _ = env.reset(seed=1)
    after, *_ = env.step([0.5, -7.0])
    assert after - start == pytest.approx([0.05, -0.1], abs=1e-6)
    for wrong in ([1.0, 2.0, 3.0], [1.0, float("nan")]):
        with pytest.raises(UsageError, match=r"action=\[1.0, .* is not in Box"):
            env.step(wrong)


def test_a_sparse_goal_pays_only_where_it_is_reached(opened: list[Bamdp]) -> None:
    env = made(opened, "PointRobotSparse-v0", **TASKS)
    state, _ = env.reset(seed=2, options={"task": 1})
    goal = env.get_current_task()
    assert np.hypot(*goal) == pytest.approx(1.0)
    seen, ended = set(), False
    while not ended:
        state, reward, _, ended, info = env.step((goal - state) * 10)
        near = bool(np.hypot(*(state - goal)) <= 0.2)
        assert (reward, info["is_goal_state"]) == (float(near), near)
        seen.add(near)
    assert seen == {True, False}


def test_a_wind_adds_to_every_step(opened: list[Bamdp]) -> None:
    env = made(opened, "Wind-v0", **TASKS)
    assert (env.horizon_bamdp, env.unwrapped.goal_radius) == (75, 0.03)
    state, _ = env.reset(seed=2, options={"task": 1})
    wind = env.get_current_task()
    assert (np.abs(wind) <= 0.08).all()
    assert (env.unwrapped.winds[1] == wind).all()
    seen, ended = set(), False
    while not ended:
        want = np.array([0.0, 1.0]) - state - wind
        before = state
        state, reward, _, ended, info = env.step(want * 10)
        assert state - before == pytest.approx(np.clip(want, -0.1, 0.1) + wind, abs=1e-6)
        near = bool(np.hypot(*(state - [0.0, 1.0])) <= 0.03)
        assert (reward, info["is_goal_state"], env.unwrapped.is_goal_state()) == (float(near), near, near)
        seen.add(near)
    assert seen == {True, False}
    assert env.reset(seed=3)[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "has_goal"), [("PointRobotSparse-v0", True), ("Wind-v0", True), ("PointRobot-v0", False)]
)
def test_the_goal_is_visible_on_the_env_inside(name: str, has_goal: bool, opened: list[Bamdp]) -> None:
    assert ("is_goal_state" in dir(made(opened, name).unwrapped)) == has_goal


def test_pictures_show_goal_way_and_robot(opened: list[Bamdp]) -> None:
    env = made(opened, "PointRobot-v0")
    env.reset(seed=1)
    env.step([1.0, 1.0])
    colours = {tuple(pixel) for pixel in env.render().reshape(-1, 3).tolist()}
    assert len(colours) == 4


# robots


def raw(robot: str, **settings: Any) -> Any:
    return gymnasium.make(robot, disable_env_checker=True, **settings).unwrapped


@needs_mujoco
def test_ant_is_paid_for_its_velocity_in_the_direction_of_its_task(opened: list[Bamdp]) -> None:
    env, ant = made(opened, "AntDir-v0", **TASKS, oracle=True), raw("Ant-v5", include_cfrc_ext_in_observation=False)
    assert env.observation_space.shape == (28,)
    assert env.horizon_bamdp == 200
    state, _ = env.reset(seed=3, options={"task": 1})
    assert (state[:27] == ant.reset(seed=3)[0].astype(np.float32)).all()
    (angle,) = env.get_current_task()
    assert 0 <= angle < 2 * np.pi
    assert state[27] == np.float32(angle)
    chance = np.random.default_rng(0)
    for _ in range(20):
        action = chance.uniform(-1, 1, 8)
        before = ant.data.body(1).xpos[:2].copy()
        _, _, fell, _, _ = ant.step(action)
        velocity = (ant.data.body(1).xpos[:2] - before) / ant.dt
        contacts = 0.5e-3 * np.square(np.clip(ant.data.cfrc_ext, -1, 1)).sum()
        paid = velocity @ [np.cos(angle), np.sin(angle)] - 0.5 * np.square(action).sum() - contacts + 1.0
        _, reward, terminated, _, _ = env.step(action)
        assert reward == pytest.approx(paid, abs=1e-6)
        assert terminated == fell
        if fell:
            break
    ant.close()


@needs_mujoco
def test_ant_falls_where_its_torso_is_too_low_or_too_high(opened: list[Bamdp]) -> None:
    env = made(opened, "AntDir-v0", **TASKS, episodes_per_task=2)
    ant: Any = env.env._robot  # type: ignore[attr-defined]
    for height, falls in ((-3.0, True), (0.9, False), (1.1, True)):  # the ground lifts it
        env.reset(seed=1, options={"task": 0})
        place, speed = ant.data.qpos.copy(), ant.data.qvel.copy()
        place[2:3], place[7:] = height, 0.0
        ant.set_state(place, speed)
        _, _, terminated, truncated, info = env.step(np.zeros(8))
        assert info["done_mdp"] == falls
        assert falls == ("start_state" in info)
        assert not terminated
        assert not truncated


@needs_mujoco
def test_ant_without_tasks_runs_forward_or_backward(opened: list[Bamdp]) -> None:
    env = made(opened, "AntDir-v0")
    angles = set()
    for seed in range(16):
        env.reset(seed=seed)
        angles.add(float(env.get_current_task()[0]))
    assert angles == {0.0, np.pi}


@needs_mujoco
def test_cheetah_is_paid_for_its_speed(opened: list[Bamdp], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves a log of what is old in Gymnasium's files
    env, cheetah = made(opened, "HalfCheetahVel-v0", **TASKS), raw("HalfCheetah-v5")
    assert env.observation_space.shape == (17,)
    env.reset(seed=3, options={"task": 5})
    cheetah.reset(seed=3)
    (speed,) = env.get_current_task()
    assert 0 <= speed < 3
    action = np.linspace(-1, 1, 6)
    told = cheetah.step(action)[4]
    paid = -abs(told["x_velocity"] - speed) - 0.05 * np.square(action).sum()
    assert env.step(action)[1] == pytest.approx(paid, abs=1e-6)
    cheetah.close()


@needs_mujoco
def test_ant_is_paid_for_being_near_its_place(opened: list[Bamdp]) -> None:
    env, ant = made(opened, "AntGoal-v0", **TASKS), raw("Ant-v5")
    state, _ = env.reset(seed=3, options={"task": 1})
    ant.reset(seed=3)
    goal = env.get_current_task()
    assert np.hypot(*goal) <= 3.0
    assert env.observation_space.shape == state.shape == (113,)
    assert state[:29] == pytest.approx([*ant.data.qpos, *ant.data.qvel], abs=1e-6)
    for turn in range(40):
        action = np.full(8, (-1.0) ** turn)
        ant.step(action)
        state, reward, terminated, _, _ = env.step(action)
        forces = np.clip(ant.data.cfrc_ext, -1, 1)
        away = np.abs(ant.data.body("torso").xpos[:2] - goal).sum()
        paid = -away - 0.1 * np.square(action).sum() - 0.5e-3 * np.square(forces).sum()
        assert reward == pytest.approx(paid, abs=1e-5)
        assert state[29:] == pytest.approx(forces.ravel(), abs=1e-5)
        assert not terminated  # even where it lies on its back
    ant.close()


@needs_mujoco
def test_cheetah_is_paid_for_its_direction(
    opened: list[Bamdp], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves a log of what is old in Gymnasium's files
    env, cheetah = made(opened, "CheetahDir-v0"), raw("HalfCheetah-v5")
    directions = set()
    for seed in range(8):
        state, _ = env.reset(seed=seed)
        cheetah.reset(seed=seed)
        (direction,) = env.get_current_task()
        action = np.linspace(-1, 1, 6)
        info = cheetah.step(action)[4]
        paid = direction * info["x_velocity"] - 0.05 * np.square(action).sum()
        state, reward, *_ = env.step(action)
        assert reward == pytest.approx(paid, abs=1e-6)
        data = cheetah.data
        assert state == pytest.approx([*data.qpos[1:], *data.qvel, *data.body("torso").xpos], abs=1e-5)
        directions.add(float(direction))
    assert directions == {-1.0, 1.0}
    cheetah.close()


@needs_mujoco
def test_humanoid_is_paid_for_its_way_in_a_direction(opened: list[Bamdp]) -> None:
    env, body = made(opened, "HumanoidDir-v0", **TASKS, oracle=True), raw("Humanoid-v5")
    state, _ = env.reset(seed=3, options={"task": 1})
    body.reset(seed=3)
    way = env.get_current_task()
    assert np.hypot(*way) == pytest.approx(1.0)
    assert state.shape == (378,)
    assert state[376:] == pytest.approx(way)

    def centre() -> Any:
        return body.model.body_mass @ body.data.xipos[:, :2] / body.model.body_mass.sum()

    chance, fell = np.random.default_rng(0), False
    while not fell:
        action, before = chance.uniform(-1, 1, 17), centre()
        body.step(action * 0.4)  # its torques
        forward = 0.25 * (centre() - before) @ way / body.model.opt.timestep
        impacts = min(0.5e-6 * np.square(body.data.cfrc_ext).sum(), 10)
        paid = forward - 0.1 * np.square(action * 0.4).sum() - impacts + 5.0
        state, reward, fell, _, _ = env.step(action)
        assert reward == pytest.approx(paid, abs=1e-4)
        assert fell == (not 1.0 < body.data.qpos[2] < 2.0)
    body.close()


@needs_mujoco
async def test_robots_leave_no_log_where_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with EnvPool(backend="inline") as pool, pool.open("HalfCheetahVel-v0") as env:
        first = await env.reset(seed=1)
        assert isinstance(first, Outcome)
    assert list(tmp_path.iterdir()) == []
