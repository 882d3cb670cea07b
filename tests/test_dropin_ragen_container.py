"""RAGEN's container, managers and factory: lists of as many entries as environments, prompts with a short memory."""

import logging
import os
import signal
import threading
from typing import Any

import psutil
import pytest

from asyncrollout import UsageError
from asyncrollout import create_projection_function as our_projection
from asyncrollout.dropin.ragen import (
    BanditEnvironmentManager,
    CountdownEnvironmentManager,
    EnvironmentContainer,
    EnvironmentManagerBase,
    FrozenLakeEnvironmentManager,
    MetaMathQAEnvironmentManager,
    MultiProcessEnvironmentContainer,
    SokobanEnvironmentManager,
    WebShopEnvironmentManager,
    create_projection_function,
    create_single_environment_for_testing,
    get_supported_environment_types,
    make_environments,
    validate_environment_config,
)
from asyncrollout.dropin.ragen.settings import EnvPlan
from tests.envs.ragen import WORDS, config, registered, worker_pids  # noqa: F401 (a fixture)

pytestmark = pytest.mark.usefixtures("registered")

ACTIONS = [1, 2, 3, 4] * 3
MANAGERS = {
    "sokoban": SokobanEnvironmentManager,
    "webshop": WebShopEnvironmentManager,
    "countdown": CountdownEnvironmentManager,
    "metamathqa": MetaMathQAEnvironmentManager,
    "frozen_lake": FrozenLakeEnvironmentManager,
    "bandit": BanditEnvironmentManager,
}


def sokoban(**options: Any) -> MultiProcessEnvironmentContainer:
    return MultiProcessEnvironmentContainer("sokoban", 4, 3, 42, {"dim_room": (6, 6), "num_boxes": 1}, **options)


# The container


def test_groups_start_alike_and_resets_go_on() -> None:
    first, second = sokoban(parallel=False), sokoban(parallel=False)
    seen = [first.reset()[0] for _ in range(3)]
    assert all(one[start : start + 3] == [one[start]] * 3 for one in seen for start in range(0, 12, 3))
    assert len({room for one in seen for room in one}) == 12
    assert [second.reset()[0] for _ in range(3)] == seen
    assert first.reset(seeds=[42 + index // 3 for index in range(12)])[0] == seen[0]


def test_workers_make_no_difference_also_when_they_die() -> None:
    inline, parallel = sokoban(parallel=False), sokoban(workers=2)
    for _ in range(2):
        assert inline.reset() == parallel.reset()
        for turn in range(4):
            if turn == 2:
                for pid in worker_pids(parallel._target.stats()):
                    os.kill(pid, signal.SIGKILL)
            assert inline.step(ACTIONS) == parallel.step(ACTIONS)
    assert parallel.render() == inline.render()
    parallel.close()
    parallel.close()


def test_lists_of_a_wrong_length_are_refused() -> None:
    container = sokoban(parallel=False)
    with pytest.raises(UsageError, match=r"call reset\(\) first"):
        container.step(ACTIONS)
    container.reset()
    for call in (lambda: container.step([1]), lambda: container.reset(seeds=[1])):
        with pytest.raises(UsageError, match="for 12 environments"):
            call()
    for wrong in ("up" * 6, dict.fromkeys(range(12), 1), 1):
        with pytest.raises(UsageError, match="is not a list: one for each of 12 environments"):
            container.step(wrong)  # type: ignore[arg-type]


def test_a_failed_env_has_defaults_and_works_after_a_reset() -> None:
    container = MultiProcessEnvironmentContainer("walk", 1, 3, 1, workers=1)
    container.reset()
    observations, rewards, dones, infos = container.step([1, 3, 1])
    assert (observations[1], rewards[1], dones[1]) == ("", 0.0, True)
    assert "LookupError: a stone in the way" in infos[1]["error"]
    assert observations[0] == observations[2] != ""
    assert container.step([1, 1, None])[1] == [-0.1, 0.0, 0.0]  # what is over, or has no action, is left alone
    container.reset()
    assert container.step([1, 1, 1])[2] == [False] * 3


def test_pictures_and_actions_are_lists_of_all() -> None:
    container = sokoban(parallel=False)
    container.reset()
    assert [picture.shape for picture in container.render("rgb_array")] == [(144, 144, 3)] * 12
    assert container.get_available_actions() == [["Up", "Down", "Left", "Right"]] * 12
    with pytest.raises(UsageError, match="mode='pixels'"):
        container.render("pixels")
    shop = MultiProcessEnvironmentContainer("webshop", 1, 1, 0, parallel=False)
    shop.reset()
    assert shop.get_available_actions() == [["search[<words>]"]]


def test_a_hundred_containers_leave_nothing() -> None:
    me = psutil.Process()
    before: tuple[int, int, int] | None = None
    for number in range(100):  # some of them with a process
        container = MultiProcessEnvironmentContainer("bandit" if number % 33 else "sokoban", 2, 2, number, workers=1)
        container.reset()
        container.close()
        left = (me.num_fds(), len(me.children()), threading.active_count())
        before = before or left
        assert left == before


async def test_the_same_calls_are_coroutines() -> None:
    plans = [EnvPlan("sokoban", "sokoban", index // 3, {}) for index in range(12)]
    async with EnvironmentContainer(plans, group_n=3, seed=42, workers=1) as container:
        found = await container.reset_all(), await container.step_all(ACTIONS)
    synchronous = sokoban(parallel=False)
    assert found == (synchronous.reset(), synchronous.step(ACTIONS))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"env_type": "sokobann"}, "did you mean 'sokoban'"),
        ({"env_num": 0}, "env_num=0"),
        ({"group_n": "2"}, "group_n='2'"),
    ],
)
def test_wrong_arguments_are_reported(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        MultiProcessEnvironmentContainer(**{"env_type": "sokoban", "env_num": 1, **wrong})


# Managers


@pytest.mark.parametrize("env_type", MANAGERS)
def test_managers_speak_text(env_type: str) -> None:
    container = MultiProcessEnvironmentContainer(env_type, 2, 2, 5, parallel=False)
    manager = MANAGERS[env_type](container, create_projection_function(env_type), env_type)
    observations, infos = manager.reset()
    assert (observations["image"], len(infos)) == (None, 4)
    assert observations["anchor"] == container.render()
    assert all(seen in text for seen, text in zip(observations["anchor"], observations["text"], strict=True))
    word = WORDS[env_type][0]
    observations, rewards, dones, infos = manager.step(
        [f"<action>{word}</action>", "", None, f"<answer>{word}</answer>"]
    )
    assert [info["is_action_valid"] for info in infos] == [True, False, True, True]
    assert (rewards.shape, rewards.dtype.kind, dones.dtype.kind) == ((4,), "f", "b")
    assert "Step 1" in observations["text"][0]
    assert "Step 1" not in observations["text"][2]
    manager.close()


def test_a_managers_memory_is_bounded() -> None:
    manager = create_single_environment_for_testing("sokoban")
    text = manager.reset()[0]["text"][0]
    assert "What happened last" not in text
    for _ in range(6):
        text = manager.step(["<action>up</action>"])[0]["text"][0]
    assert [line.partition(":")[0] for line in text.splitlines() if line.startswith("Step ")] == ["Step 5", "Step 6"]
    assert len(manager.buffers[0]) == 2
    manager.close()


def test_the_history_cuts_long_observations() -> None:
    manager = create_single_environment_for_testing("webshop")
    seen = manager.reset()[0]["anchor"][0]
    text = manager.step(["search[red shoes]"])[0]["text"][0]
    assert len(seen) > 100
    assert seen[:80] in text
    assert seen not in text
    manager.close()


def test_a_bandits_arms_are_those_of_the_episode() -> None:
    container = MultiProcessEnvironmentContainer("bandit", 4, 1, 0, parallel=False)
    manager = BanditEnvironmentManager(container, create_projection_function("bandit"), "bandit")
    manager.reset()
    _, _, dones, infos = manager.step(
        ["<action>phoenix</action>", "<action>2</action>", "<action>oak</action>", "arm 9"]
    )
    assert [info["is_action_valid"] for info in infos] == [True, True, False, False]
    assert dones.all()
    assert not any("error" in info for info in infos)


def test_projections_are_the_cores_own() -> None:
    assert create_projection_function is our_projection
    actions, valids = create_projection_function("sokoban")(["<action>up</action>", "<action>down</action>"])
    assert (actions, valids) == ([1, 2], [True, True])


# The factory


def test_training_and_validation_differ_and_shares_are_shared(caplog: pytest.LogCaptureFixture) -> None:
    settings = config("sokoban", "bandit", size=2)
    settings["es_manager"]["train"] |= {"env_groups": 4}
    settings["use_parallel_envs"] = False
    with caplog.at_level(logging.INFO):
        train, val = make_environments(settings)
    assert "n_groups [1, 1] are taken as shares of env_groups, 4" in caplog.text
    told, _ = train.reset()
    assert [text.split()[2] for text in told["text"]] == ["playing"] * 4 + ["at"] * 4
    assert told["anchor"][0] not in val.reset()[0]["anchor"]
    up = "<action>up</action>"
    _, _, dones, infos = train.step([up, "<action>1</action>", "", up, "<action>phoenix</action>", up, None, ""])
    assert [info["is_action_valid"] for info in infos] == [True, True, False, True, True, False, True, False]
    assert dones.tolist() == [False] * 4 + [True, True, False, True]
    train.close()
    val.close()


def test_without_workers_the_results_are_the_same() -> None:
    settings = config("sokoban", max_workers=1)
    parallel = make_environments(settings)
    settings["use_parallel_envs"] = False
    inline = make_environments(settings)
    for one, other in zip(parallel, inline, strict=True):
        assert one.reset() == other.reset()
        for text in ("<action>up</action>", "<action>left</action>"):
            (seen, rewards, dones, infos), expected = one.step([text] * 2), other.step([text] * 2)
            assert (seen, rewards.tolist(), dones.tolist(), infos) == (
                expected[0],
                expected[1].tolist(),
                expected[2].tolist(),
                expected[3],
            )
        one.close()


def test_the_budget_of_actions_ends_an_episode() -> None:
    settings = config("countdown", "walk", actions=2) | {"use_parallel_envs": False}
    train, _ = make_environments(settings)
    train.reset()
    assert train.step([None, None, "<action>1</action>", None])[2].tolist() == [False] * 4
    assert train.step([None, None, "<action>1</action>", None])[2].tolist() == [False, False, True, False]


def test_a_config_is_validated(caplog: pytest.LogCaptureFixture) -> None:
    settings = config("bandit")
    assert validate_environment_config(settings)
    validate_environment_config(settings | {"data": {"train_batch_size": 5}})
    assert "data.train_batch_size is 5, but es_manager.train has 2 environments" in caplog.text
    del settings["es_manager"]["val"]
    with pytest.raises(ValueError, match=r"es_manager\.val is missing"):
        validate_environment_config(settings)


def test_an_env_type_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its class and config are registered; then, if wanted, its projection and its manager."""
    from asyncrollout.dropin.ragen.factory import REGISTERED_PROJECTIONS
    from asyncrollout.dropin.ragen.managers import REGISTERED_MANAGERS

    class WalkManager(EnvironmentManagerBase):
        task = "Walk to the goal."

    manager = create_single_environment_for_testing("walk")
    manager.reset()
    assert manager.projection_f(["<action>1</action>"]) == (["1"], [True])  # any tag, until it says more
    manager.close()
    monkeypatch.setitem(REGISTERED_MANAGERS, "walk", WalkManager)
    monkeypatch.setitem(
        REGISTERED_PROJECTIONS, "walk", lambda texts: ([1] * len(texts), ["go" in text for text in texts])
    )
    assert "walk" in get_supported_environment_types()
    manager = create_single_environment_for_testing("walk")
    assert manager.reset()[0]["text"][0].startswith("Walk to the goal.")
    _, rewards, _, infos = manager.step(["go on"])
    assert (rewards.tolist(), infos[0]["is_action_valid"]) == ([-0.1], True)
    manager.close()
