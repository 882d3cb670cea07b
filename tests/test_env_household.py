"""The household: its dynamics, its skills, its expert, and what its cameras show."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrollout import EnvCheckError, EnvPool, EnvSpec, TextOptions, UsageError
from asyncrollout.testing import check_env
from asyncrollout_envs.household import Household, HouseholdText
from asyncrollout_envs.household.cameras import look
from asyncrollout_envs.household.expert import next_skill
from asyncrollout_envs.household.raster import Eye, Faces, draw
from asyncrollout_envs.household.rooms import ACTIVITIES, DEPTH, GIRTH, WIDTH, make_room
from asyncrollout_envs.household.skills import SKILLS, Skill, command
from asyncrollout_envs.household.world import LENGTH, PARTS, Put, State, advance, first_state, satisfied
from asyncrollout_envs.sensors import find_pictures, tile


def action(**parts: Any) -> np.ndarray:
    numbers = np.zeros(LENGTH, dtype=np.float32)
    for name, values in parts.items():
        numbers[PARTS[name]][: np.size(values)] = values
    return numbers


def number(verb: Any, what: str = "", where: str = "") -> int:
    return SKILLS.index(Skill(verb, what, where)) + 1


def started(activity: str, seed: int = 1, **kwargs: Any) -> Household:
    env = Household(activity=activity, **kwargs)
    env.reset(seed=seed)
    return env


def play_until(env: Household, skill: Skill, most: int = 80) -> dict[str, Any]:
    """Repeat a skill until it has nothing more to do."""
    for _ in range(most):
        *_, info = env.step(SKILLS.index(skill) + 1)
        if "reason" in info:
            return info
    raise AssertionError(f"{skill.name} never ends")


@pytest.mark.parametrize("activity", ACTIVITIES)
def test_rewards_of_a_success_add_up_to_one(activity: str) -> None:
    env, total, info = started(activity), 0.0, {"success": False}
    while not info["success"]:
        _, reward, terminated, truncated, info = env.step(SKILLS.index(next_skill(env.room, env.state)) + 1)
        total += reward
        assert not truncated
        assert terminated == info["success"]
    assert total == pytest.approx(1.0)
    assert info["goals_done"] == info["goals"] == len(ACTIVITIES[activity].goals) + len(ACTIVITIES[activity].shut)


def test_activity_comes_from_task_then_keyword_then_seed() -> None:
    env = Household(activity="set_table")
    assert env.reset(seed=1)[1]["activity"] == "set_table"
    assert env.reset(seed=1, options={"task": "bring_cup"})[1]["activity"] == "bring_cup"
    assert {Household().reset(seed=seed)[1]["activity"] for seed in range(60)} == {*ACTIVITIES}


@pytest.mark.parametrize(
    ("kwargs", "told"),
    [
        ({"activity": "bring_cups"}, r"activity='bring_cups' is no activity: did you mean 'bring_cup'"),
        ({"resolution": "4k"}, r"resolution='4k' is not one of low, high"),
        ({"max_episode_steps": 0}, "max_episode_steps=0"),
        ({"images": 1}, "images=1"),
    ],
)
def test_bad_keywords_are_told(kwargs: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Household(**kwargs)


def test_bad_task_is_told() -> None:
    with pytest.raises(UsageError, match="task='tidy_toy' is no activity: did you mean 'tidy_toys'"):
        Household().reset(seed=1, options={"task": "tidy_toy"})


def test_time_runs_out() -> None:
    env = started("bring_cup", max_episode_steps=2)
    assert env.step(number("wait"))[2:4] == (False, False)
    assert env.step(number("wait"))[2:4] == (False, True)


@pytest.mark.parametrize("bad", [0, len(SKILLS) + 1, np.zeros(22), np.full(LENGTH, np.nan), "up", None])
def test_bad_actions_are_errors(bad: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        started("bring_cup").step(bad)


def test_the_base_moves_as_its_numbers_say() -> None:
    room = make_room(1, "train")
    state = msgspec.structs.replace(first_state(room), x=3.0, y=3.4, yaw=0.0)
    assert room.is_free(3.0, 3.4)
    turned = advance(room, state, action(base=(0, 0, 1)).tolist())
    assert turned.yaw == pytest.approx(math.radians(30))
    moved = advance(room, state, action(base=(0.4, 0, 0)).tolist())
    assert [moved.x, moved.y] == pytest.approx([3.1, 3.4])
    aside = advance(room, state, action(base=(0, -0.4, 0)).tolist())
    assert [aside.x, aside.y] == pytest.approx([3.0, 3.3])


def test_torso_and_wrists_are_stiff() -> None:
    env = started("bring_cup")
    before = env.state
    *_, info = env.step(action(torso=[1] * 4, left_arm=[0, 0, 0, 1, 1, 1, 1]))
    assert env.state == before
    assert not info["action_is_effective"]


def test_a_policy_of_numbers_can_grasp_carry_and_let_go() -> None:
    """With the same numbers that a controller of skills gives, but by hand."""
    env = started("bring_cup")
    play_until(env, Skill("go to", "cup"))
    index = next(at for at, thing in enumerate(env.room.things) if thing.name == "cup")
    env.step(action(left_gripper=1))
    for _ in range(12):
        x, y, z = env.state.seen(env.state.things[index].at)
        at = env.state.hands[0].at
        env.step(action(left_arm=[(x - at[0]) * 4, (y - at[1]) * 4, (z + 0.05 - at[2]) * 4]))
    env.step(action(left_gripper=-1))
    assert env.state.hands[0].holds == index
    before = env.state.things[index].at
    env.step(action(base=(0, 0, 1)))
    assert env.state.things[index].on == ""
    assert math.dist(env.state.things[index].at, before) > 0.1
    assert env.state.things[index].at == env.state.outside(env.state.hands[0].at)
    env.step(action(left_gripper=1))
    assert [hand.holds for hand in env.state.hands] == [None, None]
    assert env.state.things[index].on in {"floor", *(piece.name for piece in env.room.furniture)}


def test_skills_say_why_they_do_nothing() -> None:
    env = started("store_food")
    reasons = {
        number("grasp", "apple"): "too far away: go to it",
        number("place", "apple", "fridge"): "you do not hold the apple",
        number("close", "fridge"): "the fridge is closed already",
        number("open", "fridge"): "too far away: go to it",
    }
    absent = next(name for name in ("cup", "plate", "bowl") if name not in {thing.name for thing in env.room.things})
    reasons[number("grasp", absent)] = f"there is no {absent} here"
    for chosen, told in reasons.items():
        *_, info = env.step(chosen)
        assert told in info["reason"]
        assert not info["action_is_effective"]


def test_a_shut_closet_takes_and_gives_nothing() -> None:
    env = started("store_food")
    for skill in (Skill("go to", "apple"), Skill("grasp", "apple"), Skill("go to", "fridge")):
        play_until(env, skill)
    assert "the fridge is closed" in play_until(env, Skill("place", "apple", "fridge"))["reason"]
    assert "open already" in play_until(env, Skill("open", "fridge"))["reason"]
    play_until(env, Skill("go to", "fridge"))
    assert "you do not hold" in play_until(env, Skill("place", "apple", "fridge"))["reason"]
    assert satisfied(env.room, env.state) == (True, False, False)
    play_until(env, Skill("close", "fridge"))
    play_until(env, Skill("go to", "fridge"))
    assert "the fridge is closed" in play_until(env, Skill("grasp", "apple"))["reason"]


def test_all_in_place_is_no_success_before_the_door_is_shut() -> None:
    env = started("put_away_dishes")
    infos: list[dict[str, Any]] = [{"goals_done": 0}]
    while infos[-1]["goals_done"] < 2:
        infos.append(env.step(SKILLS.index(next_skill(env.room, env.state)) + 1)[4])
    assert not infos[-1]["success"]
    assert next_skill(env.room, env.state).what == "cabinet"


numbers = st.lists(st.floats(-1, 1), min_size=LENGTH, max_size=LENGTH)
moves = st.lists(st.one_of(numbers, st.integers(1, len(SKILLS))), min_size=1, max_size=25)


@given(seed=st.integers(0, 2**31), actions=moves)
@settings(max_examples=60)
def test_whatever_is_done_the_world_holds_together(seed: int, actions: list[Any]) -> None:
    env = Household()
    env.reset(seed=seed)
    for chosen in actions:
        _, reward, terminated, *_ = env.step(chosen)
        state = env.state
        assert -1 <= reward <= 1
        assert GIRTH <= state.x <= WIDTH - GIRTH
        assert GIRTH <= state.y <= DEPTH - GIRTH
        held = [hand.holds for hand in state.hands if hand.holds is not None]
        assert len({*held}) == len(held)
        assert {at for at, put in enumerate(state.things) if not put.on} == {*held}
        assert all(0 <= put.at[0] <= WIDTH and 0 <= put.at[1] <= DEPTH for put in state.things if put.on)
        if terminated:
            break
    twin = Household()
    twin.restore(env.snapshot())
    assert (twin.room, twin.state, twin.steps) == (env.room, env.state, env.steps)


@given(seed=st.integers(0, 2**31), actions=moves)
@settings(max_examples=25)
def test_the_expert_finds_a_way_from_anywhere(seed: int, actions: list[Any]) -> None:
    env = Household(max_episode_steps=400)
    env.reset(seed=seed)
    done = any(env.step(chosen)[2] for chosen in actions)
    while not done:
        _, _, done, truncated, info = env.step(SKILLS.index(next_skill(env.room, env.state)) + 1)
        assert not truncated, (next_skill(env.room, env.state).name, info)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("go to the cup", [Skill("go to", "cup")]),
        (
            "Pick up the apple || put the apple into the fridge",
            [Skill("grasp", "apple"), Skill("place", "apple", "fridge")],
        ),
        ("place block in box", [Skill("place", "block", "box")]),
        ("turn left || forward || wait", [Skill("turn left"), Skill("forward"), Skill("wait")]),
        ("open fridge", [Skill("open", "fridge")]),
    ],
)
def test_skills_are_understood(said: str, meant: list[Skill]) -> None:
    parsed = HouseholdText.project(f"<answer>{said}</answer>", TextOptions())
    assert [SKILLS[at - 1] for at in parsed.actions] == meant


@pytest.mark.parametrize("said", ["go to cupboard", "grasp", "open the cup", "go to cup or go to table", "leftovers"])
def test_other_words_are_no_skills(said: str) -> None:
    assert not HouseholdText.project(f"<answer>{said}</answer>", TextOptions()).valid


async def test_told_and_played_as_text() -> None:
    async with EnvPool(backend="inline") as pool, pool.open("household", activity="bring_cup", expert=True) as env:
        first = await env.reset(seed=3)
        assert "Task: Bring the cup to the table." in first.observation.text
        assert "fridge (closed): " in first.observation.text
        assert "Your left hand: empty" in first.observation.text
        outcome = first
        while "hand: cup" not in outcome.observation.text:
            outcome = await env.step(outcome.info["expert"])
        assert "cup: " not in outcome.observation.text.replace("hand: cup", "")


def test_pictures_come_with_words_if_asked_for() -> None:
    env = Household(images=True)
    observation, _ = env.reset(seed=1)
    assert env.observation_space.contains(observation)
    shown = HouseholdText(env, TextOptions()).describe(observation)
    assert not isinstance(shown, str)
    assert [image.shape for image in shown.images] == [(128, 128, 3), (128, 128, 3), (256, 256, 3)]
    assert find_pictures(observation).keys() == {"left_wrist", "right_wrist", "head"}
    plain, _ = Household().reset(seed=1)
    assert find_pictures(plain) == {}
    assert np.array_equal(plain["robot_r1"]["proprio"], observation["robot_r1"]["proprio"])


async def test_pictures_come_from_a_worker() -> None:
    async with EnvPool(workers=1) as pool, pool.open("household", text=False, images=True) as env:
        seen = [find_pictures((await env.reset(seed=1)).observation), find_pictures((await env.step(2)).observation)]
    here = Household(images=True)
    assert all(np.array_equal(seen[0][name], shown) for name, shown in find_pictures(here.reset(seed=1)[0]).items())
    assert all(np.array_equal(seen[1][name], shown) for name, shown in find_pictures(here.step(2)[0]).items())
    assert not np.array_equal(seen[0]["head"], seen[1]["head"])


@pytest.mark.parametrize(("resolution", "shape"), [("low", (256, 384, 3)), ("high", (960, 1440, 3))])
def test_render_is_the_tiled_frame(resolution: Any, shape: tuple[int, ...]) -> None:
    env = started("bring_cup", resolution=resolution)
    frame = env.render()
    assert frame.shape == shape
    assert frame.dtype == np.uint8
    assert np.array_equal(frame, tile(env.sense(), resolution))


def colour_share(picture: np.ndarray, colour: tuple[int, int, int]) -> float:
    """Of the pixels, those that have about this hue."""
    wanted = np.array(colour) / np.linalg.norm(colour)
    norm = np.linalg.norm(picture.astype(float), axis=2, keepdims=True)
    return float(((picture / np.maximum(norm, 1)) @ wanted > 0.995)[norm[..., 0] > 60].sum() / picture[..., 0].size)


GREEN = (120, 190, 60)


def moved_away(state: State, index: int) -> State:
    things = [Put((-9.0, -9.0, 0.0), "floor") if at == index else put for at, put in enumerate(state.things)]
    return msgspec.structs.replace(state, things=tuple(things))


def test_the_head_sees_what_is_in_front_of_it() -> None:
    env = started("store_food")
    play_until(env, Skill("go to", "apple"))
    with_it = look(env.room, env.state, 64, 128)["head"]
    without = look(env.room, moved_away(env.state, 0), 64, 128)["head"]
    assert colour_share(with_it, GREEN) > 0.001
    assert colour_share(without, GREEN) < 0.0002


def test_a_wrist_sees_what_its_hand_holds() -> None:
    env = started("store_food")
    play_until(env, Skill("go to", "apple"))
    play_until(env, Skill("grasp", "apple"))
    play_until(env, Skill("go to", "sofa"))
    side = next(side for side, hand in enumerate(env.state.hands) if hand.holds == 0)
    seen = look(env.room, env.state, 128, 64)
    shares = [colour_share(seen[camera], GREEN) for camera in ("left_wrist", "right_wrist")]
    assert shares[side] > 0.02
    assert shares[1 - side] < 0.002


def test_an_open_door_is_seen() -> None:
    env = started("store_food")
    play_until(env, Skill("go to", "fridge"))
    shut = look(env.room, env.state, 32, 96)["head"]
    for _ in range(8):
        env.step(number("open", "fridge"))
    play_until(env, Skill("go to", "fridge"))
    opened = look(env.room, env.state, 32, 96)["head"]
    assert (np.abs(shut.astype(int) - opened).max(axis=2) > 8).mean() > 0.2


def square(distance: float, half: float, colour: tuple[int, int, int]) -> Faces:
    """In front of an eye at the origin that looks along x; one owner."""
    corners = [[distance, half, -half], [distance, -half, -half], [distance, -half, half], [distance, half, half]]
    facing = np.array([corners], dtype=float)
    return Faces(facing, np.array([colour], dtype=float), np.zeros(1, dtype=np.int32))


EYE = Eye(np.zeros(3), np.array([1.0, 0.0, 0.0]), 1.0)


def both(*parts: Faces) -> Faces:
    return Faces(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def test_a_face_covers_the_pixels_it_should() -> None:
    picture = draw(square(2.0, 1.0, (0, 200, 0)), EYE, 64)
    rows, columns = np.nonzero(picture[..., 1])
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (16, 47, 16, 47)
    assert len(rows) == 32 * 32


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_nearer_face_hides_the_other(order: tuple[int, int]) -> None:
    faces = (square(2.0, 0.5, (200, 0, 0)), square(4.0, 3.0, (0, 200, 0)))
    picture = draw(both(*(faces[at] for at in order)), EYE, 64)
    assert picture[32, 32, 0] > 0 == picture[32, 32, 1]
    assert picture[12, 12, 1] > 0 == picture[12, 12, 0]


def test_a_face_that_reaches_behind_the_eye_is_cut_off() -> None:
    floor = np.array([[[-5.0, -5.0, -1.0], [5.0, -5.0, -1.0], [5.0, 5.0, -1.0], [-5.0, 5.0, -1.0]]])
    picture = draw(Faces(floor, np.array([[200.0, 200.0, 200.0]]), np.zeros(1, dtype=np.int32)), EYE, 64)
    assert (picture[:32] == 0).all()
    assert (picture[50:] > 0).all()


def test_skills_of_the_expert_are_steps_of_a_controller() -> None:
    env = started("bring_cup")
    given = command(env.room, env.state, Skill("go to", "cup"))
    assert len(given.action) == LENGTH
    assert max(abs(part) for part in given.action) <= 1


class HandlessText(HouseholdText):
    """Its anchor says where everything is but the hands."""

    def anchor(self) -> str:
        state = self._env.state
        things = [(put.on, *(round(at, 1) for at in put.at)) for put in state.things]
        held, doors = [hand.holds for hand in state.hands], [door.wanted for _, door in state.doors]
        return repr((round(state.x, 1), round(state.y, 1), round(state.yaw / math.radians(15)), things, held, doors))


def far(one: Any, other: Any) -> float:
    """A reference: how far two states are apart, in the number that differs most; infinitely, if in anything else."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other)
    if isinstance(one, dict):
        return far([*one.values()], [*other.values()])
    if isinstance(one, list | tuple):
        return max([0.0 if len(one) == len(other) else math.inf, *map(far, one, other)])
    return 0.0 if one == other else math.inf


@given(seed=st.integers(0, 2**31), picks=st.lists(st.integers(-10, len(SKILLS)), min_size=10, max_size=60))
@settings(max_examples=20)
def test_anchors_are_equal_if_and_only_if_the_states_are(seed: int, picks: list[int]) -> None:
    env = Household()
    env.reset(seed=seed)
    text = HouseholdText(env, TextOptions())
    visited = [(text.anchor(), env.state)]
    for pick in picks:
        env.step(pick if pick > 0 else SKILLS.index(next_skill(env.room, env.state)) + 1)
        visited.append((text.anchor(), env.state))
    for anchor, state in visited:
        for other_anchor, other in visited:
            one, two = (
                {**msgspec.to_builtins(which), "yaw": [math.cos(which.yaw), math.sin(which.yaw)]}
                for which in (state, other)
            )
            apart = far(one, two)
            assert apart <= 0.001 if anchor == other_anchor else apart > 1e-9


async def test_anchor_without_the_hands_is_found() -> None:
    spec = EnvSpec(name="handless", factory=Household, text=HandlessText)
    with pytest.raises(EnvCheckError, match=r"(?s)1 point:.*from equal anchors, the same actions lead to the same"):
        await check_env(spec, backends=("inline",), seeds=(0, 1), max_steps=30)
    spec = EnvSpec(name="whole", factory=Household, text=HouseholdText)
    report = await check_env(spec, backends=("inline",), seeds=(0, 1), max_steps=30)
    assert "from equal anchors, the same actions lead to the same rewards, ends and anchors" in report.checked
