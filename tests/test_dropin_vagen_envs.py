"""VAGEN's Sokoban and FrozenLake: its configs, replies, rewards and prompts, and environments of one's own."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from asyncrollout import UsageError
from asyncrollout.dropin.vagen import (
    REGISTERED_ENV,
    BaseServiceConfig,
    BatchEnvClient,
    EnvService,
    FrozenLakeEnv,
    FrozenLakeEnvConfig,
    FrozenLakeService,
    FrozenLakeServiceConfig,
    SokobanEnv,
    SokobanEnvConfig,
    VideoEnvConfig,
    get_env_cls,
    list_envs,
    register_env,
)
from asyncrollout.dropin.vagen.allowed_envs import VagenAdmission
from asyncrollout.dropin.vagen.games import solution_length
from asyncrollout.dropin.vagen.registered import ELSEWHERE
from asyncrollout.dropin.vagen.replies import CURRENT, LEGACY, read_current, read_legacy
from asyncrollout_envs.video.generate import default_config
from tests.envs.vagen import CountConfig, CountEnv
from tests.test_service_http import serve

LAKE = ["SFFF", "FHFH", "FFFH", "HFFG"]
THERE = ("Down", "Down", "Right", "Right", "Down", "Right")
FREE = "<think>so</think><answer>{}</answer>"
WM = "<observation>o</observation><think>t</think><answer>{}</answer><prediction>p</prediction>"
SYMBOLS = {"sokoban": "#_OXP√S", "frozenlake": "_OGPX√"}


def lake(**config: Any) -> FrozenLakeEnv:
    env = FrozenLakeEnv(FrozenLakeEnvConfig(desc=LAKE, prompt_format="free_think", render_mode="text", **config))
    env.reset(seed=0)
    return env


# Replies

SPECIAL = ["<think>", "</think>", "<answer>", "</answer>"]
SEEN, WHY, THEN = (f"<{tag}>a</{tag}>" for tag in ("observation", "reasoning", "prediction"))


@pytest.mark.parametrize(
    ("name", "reply", "actions", "is_correct"),
    [
        ("free_think", "<think>a</think> <answer>Up, Down</answer>", ["Up", "Down"], True),
        ("free_think", "first <think>a</think><answer>Up</answer>", [], False),
        ("free_think", "<answer>Up</answer>", [], False),
        ("free_think", "<think>a</think><answer>Up,Down,Left,Right</answer>", ["Up", "Down", "Left"], True),
        ("no_think", "<answer>Up</answer>", ["Up"], True),
        ("no_think", "<think>a</think><answer>Up</answer>", [], False),
        (
            "grounding",
            "<think><observation>a</observation><reasoning>b</reasoning></think><answer>Up</answer>",
            ["Up"],
            True,
        ),
        (
            "grounding",
            "so <think><observation>a</observation> <reasoning>b</reasoning></think><answer>Up</answer>",
            ["Up"],
            False,
        ),
        (
            "worldmodeling",
            "<think><reasoning>a</reasoning><prediction>b</prediction></think><answer>Up</answer>",
            ["Up"],
            True,
        ),
        ("worldmodeling_symbolic", "<think>a</think><answer>Up</answer>", [], False),
        ("grounding_worldmodeling_structured", f"<think>{SEEN}{WHY}{THEN}</think><answer>Up</answer>", ["Up"], True),
    ],
)
def test_replies_of_the_first_version(name: str, reply: str, actions: list[str], is_correct: bool) -> None:
    read = read_legacy(reply, LEGACY[name], ",", 3, SPECIAL)
    assert ([*read.actions], read.format_correct) == (actions, is_correct)
    assert (read.info["actions"], read.info["format_correct"]) == (actions, is_correct)
    inside = {"grounding": "observation_content", "worldmodeling": "prediction_content"}
    for part, key in inside.items():
        assert (key in read.info) == (part in name)


@pytest.mark.parametrize(
    ("name", "reply", "actions", "thought"),
    [
        ("free_think", "so <think> a </think>\n<answer>UP, down</answer> then", ["up", "down"], "a"),
        ("wm", WM.format("Left"), ["left"], "t"),
        ("wm", "<think>t</think><answer>Left</answer>", [], ""),
        (
            "free_wm",
            "<observation>o</observation> why <answer>Left</answer> then <prediction>p</prediction>",
            ["left"],
            "why then",
        ),
    ],
)
def test_replies_of_vagen_as_it_is(name: str, reply: str, actions: list[str], thought: str) -> None:
    read = read_current(reply, CURRENT[name], ",", 3)
    assert ([*read.actions], read.format_correct, read.info["think_content"]) == (actions, bool(actions), thought)


def test_special_tokens_are_removed_and_long_answers_cut() -> None:
    read = read_legacy("<think>a <answer> b</think><answer>Up;Down;Up</answer>", LEGACY["free_think"], ";", 2, SPECIAL)
    assert read.info["think_content"] == "a  b"
    assert read.info["action_content"] == "Up ; Down"
    assert read.info["llm_response"] == "<think>a  b</think><answer>Up ; Down</answer>"


def test_a_model_s_loop_is_read_at_once() -> None:
    """A lazy expression would try every combination of these tags."""
    loop = "<think><observation></observation><reasoning></reasoning><prediction></prediction>" * 10_000
    assert read_legacy(loop, LEGACY["grounding_worldmodeling"], ",", 3, SPECIAL).actions == ()
    assert read_current(loop, CURRENT["free_wm"], ",", 3).actions == ()


# Rewards


def test_frozen_lake_rewards_of_the_first_version() -> None:
    env = lake()
    _, reward, done, info = env.step(FREE.format(",".join(THERE[:3])))
    assert (reward, done, info["is_format_rewarded"]) == (0.5, False, True)
    assert info["metrics"] == {
        "turn_metrics": {"action_is_valid": True, "action_is_effective": True},
        "traj_metrics": {"success": False},
    }
    obs, reward, done, info = env.step(FREE.format(",".join(THERE[3:])))
    assert (reward, done, info["metrics"]["traj_metrics"]["success"]) == (10.5, True, True)
    assert (env.total_reward, env.compute_reward()) == (11.0, 0.0)
    assert "√" in obs["obs_str"]


@pytest.mark.parametrize(
    ("reply", "reward", "is_valid", "moved", "done"),
    [
        ("Down", 0.0, False, False, False),
        (FREE.format("down"), 0.0, False, False, False),
        (FREE.format("Down, jump, Down"), 0.0, False, True, False),
        (FREE.format("Up"), 0.5, True, False, False),
        (FREE.format("Down,Right"), 0.5, True, True, True),
        (FREE.format(""), 0.0, False, False, False),
    ],
)
def test_what_a_reply_is_worth(reply: str, reward: float, is_valid: bool, moved: bool, done: bool) -> None:
    found = lake().step(reply)
    metrics = found[3]["metrics"]["turn_metrics"]
    assert (found[1], metrics["action_is_valid"], metrics["action_is_effective"], found[2]) == (
        reward,
        is_valid,
        moved,
        done,
    )


def test_sokoban_keeps_the_game_s_rewards() -> None:
    config = SokobanEnvConfig(
        prompt_format="no_think", render_mode="text", max_actions_per_step=100, format_reward=0.25
    )
    env = SokobanEnv(config)
    env.reset(seed=3)
    room: Any = env.game._env.room
    names = [("Up", "Down", "Left", "Right")[move - 1] for move in room.solution]
    obs, reward, done, info = env.step(f"<answer>{','.join(names)}</answer>")
    assert done
    assert info["metrics"]["traj_metrics"]["success"]
    assert reward == pytest.approx(10 + 1 - 0.1 * len(names) + 0.25)
    assert f"{names}" in obs["obs_str"]


async def test_no_step_is_paid_after_the_end() -> None:
    env = FrozenLakeEnv(lake().config)
    with pytest.raises(UsageError, match=r"frozenlake cannot step: call reset\(\) before the first step"):
        env.step(FREE.format("Down"))
    env.reset(seed=0)
    env.step(FREE.format(",".join(THERE[:3])))
    assert env.step(FREE.format(",".join(THERE[3:])))[2]
    earned = env.total_reward
    for _ in range(2):
        with pytest.raises(UsageError, match=r"the episode is over: call reset\(\)"):
            env.step(FREE.format("Right"))
    assert env.total_reward == earned
    env.reset(seed=0)
    assert not env.step(FREE.format("Down"))[2]
    current = get_env_cls("Sokoban")({"max_steps": 1})
    await current.reset(seed=0)
    assert (await current.step(WM.format("Up")))[2]
    with pytest.raises(UsageError, match="sokoban cannot step: the episode is over"):
        await current.step(WM.format("Up"))


async def test_rewards_of_vagen_as_it_is() -> None:
    env = get_env_cls("FrozenLake")({"desc": LAKE, "render_mode": "text", "prompt_format": "wm"})
    obs, info = await env.reset(seed=1)
    assert (info, "multi_modal_input" in obs) == ({}, False)
    _, reward, done, info = await env.step(WM.format("Down, DOWN, right"))
    assert (reward, done, info["success"]) == (0.02, False, False)
    _, reward, done, _ = await env.step("<answer>Up</answer>")
    assert (reward, done) == (0.0, False)
    obs, reward, done, info = await env.step(WM.format("right, down, right"))
    assert (reward, done, info["success"]) == (1.02, True, True)
    assert " V " in obs["obs_str"]
    await env.close()


async def test_rooms_have_solutions_of_the_wanted_length() -> None:
    env = get_env_cls("Sokoban")({"min_solution_steps": [2, 4]})
    for seed in range(20):
        await env.reset(seed=seed)
        assert 2 <= (solution_length(env.game._env, 100) or 0) <= 4
    never = get_env_cls("Sokoban")({"min_solution_steps": [50, 50], "reset_seed_max_tries": 2})
    with pytest.raises(Exception, match="none of 2 rooms has a solution of 50 to 50 steps"):
        await never.reset(seed=0)


async def test_ice_slips_as_often_as_told() -> None:
    env = get_env_cls("FrozenLake")({"desc": ["SFFFFFFFFF", *["FFFFFFFFFF"] * 8, "FFFFFFFFFG"], "slip_prob": 0.25})
    slipped, steps = 0, 0
    for seed in range(100):
        await env.reset(seed=seed)
        for _ in range(4):
            before = env.game._env.player
            await env.step(FREE.format("Right"))
            steps += 1
            slipped += env.game._env.player != (before[0], before[1] + 1)
    assert 0.15 < slipped / steps < 0.35
    assert "slippery: you may move at right angles" in env.get_system_prompt()


# Observations


@pytest.mark.parametrize("kind", ["sokoban", "frozenlake"])
def test_text_and_vision_show_the_same(kind: str) -> None:
    entry = REGISTERED_ENV[kind]
    shown = {}
    for mode in ("text", "vision"):
        env = entry["env_cls"](entry["config_cls"](render_mode=mode))
        shown[mode], info = env.reset(seed=5)
        assert info == {}
    assert shown["text"].keys() == {"obs_str"}
    (image,) = shown["vision"]["multi_modal_data"]["<image>"]
    assert isinstance(image, Image.Image)
    assert shown["vision"]["obs_str"].count("<image>") == 1
    grid = [line for line in shown["text"]["obs_str"].splitlines() if line.endswith("\t")]
    assert len(grid) == (6 if kind == "sokoban" else 4)
    assert all(re.fullmatch(rf"( [{SYMBOLS[kind]}] \t)+", line) for line in grid)
    assert np.asarray(image).shape == (24 * len(grid), 24 * len(grid), 3)


# Prompts: every piece that VAGEN's tell, in its order

RULES = {
    "sokoban": ["Sokoban", "every box must stand on a target", "an image has none", *"#_OXP√S", "never pull", "walls"],
    "frozenlake": ["FrozenLake", "reach the goal", "an image has none", *"_OGPX√", "fall into a hole", "slippery"],
}
ACTIONS = ["Left, Down, Right, Up", "up to 3 action(s)", "separated by ,"]
ORDER = {
    "free_think": ["give your reasoning", "give your answer"],
    "no_think": ["your answer only"],
    "grounding": ["describe what you see", "give your reasoning", "give your answer"],
    "worldmodeling": ["give your reasoning", "predict the next state", "give your answer"],
    "grounding_worldmodeling": [
        *("describe what you see", "give your reasoning"),
        *("predict the next state", "give your answer"),
    ],
}
DIRECTIONS = ["relative to the player", "`above`", "`below`", "`same`", "`left`", "`right`", "`same`"]
DETAILS = {
    ("sokoban", ""): ["`target` (red)", "`box` (brown)", *DIRECTIONS],
    ("frozenlake", ""): ["`target`", "`hole`", *DIRECTIONS],
    ("sokoban", "_symbolic"): ["grid", *"#_OXP√S"],
    ("frozenlake", "_symbolic"): ["grid", *"_OGPX√"],
    ("sokoban", "_structured"): ['"player": (row, column)', '"box": (row, column)', '"target": (row, column)'],
    ("frozenlake", "_structured"): ['"player": (row, column)', '"target": (row, column)'],
    ("sokoban", "both"): ['"object_id"', '"vertical_relation"', '"horizontal_relation"'],
}


def check_pieces(text: str, pieces: list[str]) -> None:
    at = 0
    for piece in pieces:
        found = text.find(piece, at)
        assert found >= 0, f"{piece!r} is not in {text[at:]!r}"
        at = found + len(piece)


def pieces_of_format(kind: str, name: str) -> list[str]:
    base = next(base for base in sorted(ORDER, key=len, reverse=True) if name.startswith(base))
    style = name.removeprefix(base)
    if base in ("free_think", "no_think"):
        return [*ACTIONS[1:], *ORDER[base], LEGACY[name].shape]
    is_both = style == "_structured" and base == "grounding_worldmodeling" and kind == "sokoban"
    return [*ACTIONS[1:], *ORDER[base], *DETAILS[kind, "both" if is_both else style], LEGACY[name].shape]


@pytest.mark.parametrize("name", LEGACY)
@pytest.mark.parametrize("kind", ["sokoban", "frozenlake"])
def test_prompts_of_the_first_version(kind: str, name: str) -> None:
    entry = REGISTERED_ENV[kind]
    config = entry["config_cls"](prompt_format=name, render_mode="text")
    env = entry["env_cls"](config)
    how = pieces_of_format(kind, name)
    prompt = env.system_prompt()
    check_pieces(prompt, [*RULES[kind], ACTIONS[0], *how, "For example"])
    example = prompt.partition("For example: ")[2]
    read = read_legacy(example, LEGACY[name], ",", 3, SPECIAL)
    assert read.format_correct
    assert len(read.actions) == 2
    obs, _ = env.reset(seed=0)
    check_pieces(obs["obs_str"], ["at the start", " P \t", "Choose what to do next", *how])
    obs, *_ = env.step(example)
    check_pieces(obs["obs_str"], ["valid actions", "['", "Now you see", "Choose what to do next", *how])
    assert "For example" not in obs["obs_str"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("Sokoban", "free_think"),
        ("Sokoban", "wm"),
        ("Sokoban", "free_wm"),
        ("FrozenLake", "free_think"),
        ("FrozenLake", "wm"),
    ],
)
def test_prompts_of_vagen_as_it_is(kind: str, name: str) -> None:
    rules = [piece.replace("√", "V") if kind == "FrozenLake" else piece for piece in RULES[kind.lower()]]
    wm = [
        *("<observation> and <prediction>", "relative to the player", "nothing else", "exactly one vertical"),
        *("`above`", "`below`", "`same row`", "exactly one horizontal", "`left`", "`right`", "`same column`"),
        *("these terms only", "never `same` alone", '"X is <vertical> and <horizontal> of the player"'),
        *("In <answer>", "1 to 3 action(s)", "`,`", "Up, Down, Left and Right"),
    ]
    how = [*ACTIONS[1:], CURRENT[name].shape]
    if name == "free_think":
        how = [*ACTIONS[1:], "First give your reasoning, then your answer", CURRENT[name].shape]
    if name == "free_wm":
        how.append("Between the tags you may reason freely")
    how += wm if name != "free_think" else []
    for with_example in (True, False):
        options = {"prompt_format": name, "use_example_in_sys_prompt": with_example, "max_actions_per_step": 3}
        prompt = get_env_cls(kind)(options).get_system_prompt()
        check_pieces(
            prompt, [*rules, ACTIONS[0], *how, *(["Example 1", "Example 2", "Example 3"] if with_example else [])]
        )
        examples = re.split(r"\nExample \d:\n", prompt)[1:]
        assert len(examples) == 3 * with_example
        assert all(read_current(example, CURRENT[name], ",", 3).format_correct for example in examples)


# Configs


def test_defaults_are_vagen_s() -> None:
    sokoban, frozen = SokobanEnvConfig(), FrozenLakeEnvConfig()
    assert (sokoban.dim_room, sokoban.max_steps, sokoban.num_boxes, sokoban.render_mode) == ((6, 6), 100, 1, "vision")
    assert (frozen.is_slippery, frozen.size, frozen.p, frozen.desc) == (False, 4, 0.8, None)
    for config in (sokoban, frozen):
        assert (config.prompt_format, config.max_actions_per_step) == ("grounding_worldmodeling", 3)
        assert (config.format_reward, config.action_sep, config.get("min_actions_to_succeed")) == (0.5, ",", 5)
    assert frozen.config_id() == (
        "FrozenLakeEnvConfig(format_reward=0.5,render_mode=vision,min_actions_to_succeed=5,max_actions_per_step=3,"
        "is_slippery=False,size=4,p=0.8)"
    )
    assert sokoban.config_id().startswith("SokobanEnvConfig(render_mode=vision,")


def test_none_is_an_option_that_is_not_given() -> None:
    """As data sets of several environments have it, for the options of the others."""
    assert SokobanEnvConfig(prompt_format=None, max_steps=None) == SokobanEnvConfig()  # type: ignore[arg-type]
    assert FrozenLakeEnvConfig(special_token_list=None).special_token_list is None


def test_seeds_of_a_data_set() -> None:
    assert FrozenLakeEnvConfig().generate_seeds(5) == FrozenLakeEnvConfig().generate_seeds(5)
    seeds = SokobanEnvConfig(min_actions_to_succeed=4).generate_seeds(5, n_candidate=200)
    assert seeds == sorted({*seeds})
    env = SokobanEnv(SokobanEnvConfig())
    lengths = {}
    for seed in range(seeds[-1] + 1):
        env.reset(seed=seed)
        lengths[seed] = solution_length(env.game._env, 30)
    assert [seed for seed, length in lengths.items() if length is not None and length <= 4] == seeds


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("sokoban", {"render_modes": "text"}, "no option 'render_modes': did you mean 'render_mode'"),
    ("sokoban", {"render_mode": "audio"}, "render_mode='audio' is not one of text, vision"),
    ("sokoban", {"prompt_format": "wm"}, "prompt_format='wm' is not a format"),
    ("sokoban", {"use_state_reward": True}, "use_state_reward=True is not available: it needs VAGEN's LLM judge"),
    ("sokoban", {"image_placeholder": "<img>"}, "image_placeholder='<img>' is not available"),
    ("sokoban", {"max_actions_per_step": 0}, "max_actions_per_step=0 is not a whole number from 1"),
    ("sokoban", {"format_reward": "high"}, "format_reward='high' is not a number"),
    ("sokoban", {"env_name": "frozenlake"}, "env_name='frozenlake' is another environment"),
    ("frozenlake", {"action_sep": ""}, "action_sep='' is not a text"),
    ("frozenlake", {"special_token_list": "<think>"}, "special_token_list='<think>' is not a list of texts"),
    ("frozenlake", {"max_steps": 3}, "no option 'max_steps'"),
    ("Sokoban", {"prompt_format": "grounding"}, "prompt_format='grounding' is not a format"),
    ("Sokoban", {"min_solution_steps": 3}, "min_solution_steps=3 must be two numbers"),
    ("Sokoban", {"min_solution_steps": [5, 2]}, "min_solution_steps=[5, 2] must be two numbers, the smaller first"),
    ("Sokoban", {"min_solution_steps": [-3, -1]}, "min_solution_steps=[-3, -1] must be two numbers"),
    ("Sokoban", {"reset_seed_max_tries": "9"}, "reset_seed_max_tries='9' is not a whole number from 1"),
    ("FrozenLake", {"slip_prob": "x"}, "slip_prob='x' is not a number from 0 to 1"),
    ("FrozenLake", {"slip_prob": 2}, "slip_prob=2 is not a number from 0 to 1"),
    ("FrozenLake", {"prompt_format": "free_wm"}, "prompt_format='free_wm' is not a format"),
    ("FrozenLake", {"is_slippery": True, "slip_prob": 0.1}, "set one of them"),
    ("video", {"render_mode": "text"}, "render_mode='text' is not available: it must be 'vision'"),
    *((name, {}, f"VAGEN's environment '{name}' is not available here") for name in sorted(ELSEWHERE)),
    ("count", {}, "REGISTERED_ENV['count'] has no 'env_cls': did you mean 'env_class'"),
]


def test_what_is_not_available_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTERED_ENV, "count", {"env_class": CountEnv, "config_cls": CountConfig})
    service = EnvService(max_workers=1)
    try:
        service.create_environments_batch(
            {number: {"env_name": name, "env_config": config} for number, (name, config, _) in enumerate(REFUSED)}
        )
        for number, (_, _, why) in enumerate(REFUSED):
            assert why in service.failures[number]
        assert service.environments == {}
    finally:
        service.close_batch()


def test_services_of_one_kind() -> None:
    with pytest.raises(UsageError, match="use_state_reward=True is not available"):
        FrozenLakeServiceConfig(use_state_reward=True)
    service = FrozenLakeService(FrozenLakeServiceConfig(max_workers=1))
    service.create_environments_batch({"env": {"env_name": "sokoban"}})
    assert "Expected environment type 'frozenlake', got 'sokoban'" in service.failures["env"]
    service.close_batch()


# The service, here and at a server

CONFIGS: dict[str, Any] = {
    "text": {"env_name": "sokoban", "env_config": {"render_mode": "text", "prompt_format": "free_think"}},
    "default": {"env_name": "sokoban"},
    "vision": {"env_name": "frozenlake", "env_config": {"render_mode": "vision", "prompt_format": "no_think"}},
    "now": {"env_name": "Sokoban", "env_config": {"render_mode": "text", "min_solution_steps": [1, 5]}},
}
REPLIES = {
    "text": FREE.format("Up,Down"),
    "default": "nothing",
    "vision": "<answer>Left</answer>",
    "now": WM.format("up"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serve() as (_, url):
        yield url


def test_the_service_and_the_client_play_alike(server: str) -> None:
    service, client = EnvService(BaseServiceConfig(max_workers=2)), BatchEnvClient(server)
    results = []
    for place in (service, client):
        place.create_environments_batch(CONFIGS)
        first = place.reset_batch(dict.fromkeys(CONFIGS, 11))
        prompts = place.get_system_prompts_batch(CONFIGS)
        after = place.step_batch(REPLIES)
        rewards = place.compute_reward_batch(CONFIGS)
        place.close_batch()
        results.append((first, prompts, after, rewards))
    (first, prompts, after, rewards), there = results
    assert rewards == there[3] == dict.fromkeys(CONFIGS, 0.0), "a trainer adds it to the rewards of the steps"
    assert prompts == there[1]
    for env_id in CONFIGS:
        assert first[env_id][0]["obs_str"] == there[0][env_id][0]["obs_str"]
        assert after[env_id][1:] == there[2][env_id][1:]
    assert {env_id: result[1] > 0 for env_id, result in after.items()} == {
        "text": True,
        "default": False,
        "vision": True,
        "now": True,
    }
    for env_id, images in {"text": 0, "default": 1, "vision": 1, "now": 0}.items():
        assert len(first[env_id][0]["multi_modal_data"]["<image>"]) == images
        assert after[env_id][3]["llm_raw_response"] == REPLIES[env_id]
        assert after[env_id][3]["metrics"]["traj_metrics"] == {"success": False}


def test_the_same_seed_is_the_same_puzzle() -> None:
    service = EnvService(BaseServiceConfig(max_workers=2))
    lake = {"env_name": "frozenlake", "env_config": {"render_mode": "text"}}
    service.create_environments_batch({"a": lake, "b": lake})
    one, two = service.reset_batch({"a": 1, "b": 1}).values()
    other = service.reset_batch({"a": 2})["a"]
    service.close_batch()
    assert one == two
    assert one != other


# Environments of one's own


def test_an_environment_of_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTERED_ENV, "count", {"env_cls": CountEnv, "config_cls": CountConfig})
    assert REGISTERED_ENV["count"]["config_cls"](goal=3).config_id() == "CountConfig(goal=3)"
    service = EnvService(BaseServiceConfig(max_workers=1))
    try:
        configs = {
            "a": {"env_name": "count", "env_config": {"goal": 2}},
            "b": {"env_name": "count", "env_config": {"to": 2}},
        }
        service.create_environments_batch(configs)
        assert "count: there is no option 'to'" in service.failures["b"]
        obs, info = service.reset_batch({"a": 7})["a"]
        assert (obs["obs_str"], info, len(obs["multi_modal_data"]["<image>"])) == ("0 <image>", {"seed": 7}, 1)
        assert service.get_system_prompts_batch(["a"]) == {"a": "Count to 2."}
        service.step_batch({"a": "one"})
        assert service.compute_reward_batch(["a"]) == {"a": 0.0}
        obs, reward, done, info = service.step_batch({"a": "one two"})["a"]
        assert (obs["obs_str"], reward, done, info["metrics"]["turn_metrics"]) == ("2 <image>", 0.5, True, {"words": 2})
        assert service.compute_reward_batch(["a"]) == {"a": 5.0}
    finally:
        service.close_batch()


def test_vagen_s_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_envs()[:2] == ["Sokoban", "FrozenLake"]
    with pytest.raises(UsageError, match="'Navigation' is not available"):
        get_env_cls("Navigation")
    monkeypatch.setattr("asyncrollout.dropin.vagen.envs._CURRENT", {"Sokoban": CountEnv})
    register_env("Count", CountEnv)
    assert (get_env_cls("Count"), list_envs()) == (CountEnv, ["Sokoban", "Count"])


# Video-MTR


def test_video_mtr_s_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRIPT_DIR", str(default_config().parent))
    given: dict[str, Any] = {
        "render_mode": "vision",
        "data_dir": "vagen/env/video/data",
        "video_data_config_path": f"$SCRIPT_DIR/{default_config().name}",
    }
    config = VideoEnvConfig(**given)
    assert config.video_data_config_path == str(default_config())
    assert VideoEnvConfig(video_data_config_path="${env:SCRIPT_DIR}/x.yaml").video_data_config_path == str(
        default_config().parent / "x.yaml"
    )
    seeds = config.generate_seeds(4)
    assert sorted(seeds) == [0, 1, 2, 3]
    assert len(config.generate_seeds(10_000, "test")) < 10_000
    service = REGISTERED_ENV["video"]["service_cls"](BaseServiceConfig(max_workers=1))
    service.create_environments_batch({"env": {"env_name": "video", "env_config": given}})
    assert service.failures == {}
    assert service.reset_batch({"env": 0})["env"][1]["split"] == "train"
    service.close_batch()
    env = REGISTERED_ENV["video"]["env_cls"](config)
    obs, info = env.reset(seed=0, extra_info={"split": "test"})
    assert (info["split"], len(obs["multi_modal_data"]["<image>"])) == ("test", 16)
    assert isinstance(obs["multi_modal_data"]["<image>"][0], Image.Image)
    env.close()
    monkeypatch.delenv("SCRIPT_DIR")
    with pytest.raises(UsageError, match="the environment variable SCRIPT_DIR is not set"):
        VideoEnvConfig(**given)


def test_a_server_expands_no_variables_but_the_script_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SECRET", "canary")
    with pytest.raises(UsageError, match="the variable SOME_SECRET is not for clients") as caught:
        VagenAdmission().admit("video", {"video_data_config_path": "$SOME_SECRET/data.yaml"})
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("name", ["sokoban", "Sokoban"])
def test_rooms_of_short_episodes_can_be_solved_within_them(name: str) -> None:
    if name == "sokoban":
        game: Any = SokobanEnv(SokobanEnvConfig(render_mode="text", max_steps=3)).game
    else:
        game = get_env_cls(name)({"render_mode": "text", "max_steps": 3}).game
    for seed in range(5):
        game.reset(seed)
        assert solution_length(game._env, 3) is not None


REASONS = {
    "jump": "it is not in the form <think>...</think><answer>...</answer>",
    FREE.format("Jump"): f"not an action: {'Jump'!r}",
    FREE.format(""): "its answer names no action",
}


@pytest.mark.parametrize("reply", REASONS)
def test_why_a_reply_was_invalid_is_told_if_asked_for(reply: str) -> None:
    plain, telling = lake(), lake(explain_invalid=True)
    expected = plain.step(reply)
    observation, *rest = telling.step(reply)
    assert "invalid" not in expected[0]["obs_str"]
    assert rest == [*expected[1:]]
    assert observation == {"obs_str": f"Your last reply was invalid: {REASONS[reply]}.\n{expected[0]['obs_str']}"}
    assert telling.step(FREE.format("Down")) == plain.step(FREE.format("Down"))


async def test_vagen_as_it_is_tells_why_if_asked_for() -> None:
    options = {"render_mode": "vision", "dim_room": [6, 6], "num_boxes": 1}
    shown = []
    for explain in (False, True):
        env = get_env_cls("Sokoban")({**options, "explain_invalid": explain})
        await env.reset(3)
        observation, *_ = await env.step(WM.format("jump"))
        shown.append(observation["obs_str"])
    assert shown[1] == f"Your last reply was invalid: not an action: 'jump'.\n{shown[0]}"
    with pytest.raises(UsageError, match="explain_invalid=1 is neither true nor false"):
        get_env_cls("Sokoban")({"explain_invalid": 1})


@pytest.mark.parametrize(("options", "is_told"), [({}, False), ({"explain_invalid": True}, True)])
def test_the_service_tells_why_if_asked_for(options: dict[str, Any], is_told: bool) -> None:
    lake_config = {"render_mode": "text", "prompt_format": "free_think", **options}
    service = EnvService(max_workers=1)
    service.create_environments_batch(
        {
            "lake": {"env_name": "frozenlake", "env_config": lake_config},
            "ours": {"env_name": "countdown", "env_config": options},
            "video": {"env_name": "video", "env_config": options},
        }
    )
    service.reset_batch(dict.fromkeys(service.environments, 0))
    stepped = service.step_batch(dict.fromkeys(service.environments, "jump"))
    told = {
        env_id: observation["obs_str"].count("Your last reply was invalid: ")
        for env_id, (observation, *_) in stepped.items()
    }
    assert told == dict.fromkeys(("lake", "ours", "video"), int(is_told))
    service.close_batch()


def test_a_server_shows_videos_as_vagen_does() -> None:
    _, options = VagenAdmission().admit("video", {})
    assert options["explain_invalid"] is False
    assert VagenAdmission().admit("video", {"explain_invalid": True})[1]["explain_invalid"] is True
