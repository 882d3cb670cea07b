"""RAGEN's `EnvStateManager`: histories of exactly its shape, the same ones wherever environments run."""

import copy
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asyncrollout import ClosedError, UsageError
from asyncrollout.dropin.ragen import (
    REGISTERED_ENV_CONFIGS,
    REGISTERED_ENVS,
    AsyncEnvStateManager,
    EnvStateManager,
)
from asyncrollout.dropin.ragen.scores import total_reward
from asyncrollout.dropin.ragen.settings import Mode
from asyncrollout.pool.wire import codec
from tests.envs.ragen import (
    WORKER_TYPES,
    CountedEnv,
    OnlyHere,
    Unpicklable,
    WalkConfig,
    config,
    registered,  # noqa: F401 (a fixture)
    turn,
    worker_pids,
)
from tests.scripts.processes import alive

TURNS = 5


pytestmark = pytest.mark.usefixtures("registered")


def play(manager: EnvStateManager, seed: int | None = 7, turns: int = TURNS) -> list[dict[str, Any]]:
    manager.reset(seed=seed)
    tags = [entry["tag"] for entry in manager.envs]
    for number in range(turns):
        manager.step(turn(tags, number))
    return copy.deepcopy(manager.get_rollout_states())


def pids(manager: EnvStateManager) -> list[int]:
    return worker_pids(manager.stats())


def sequential(settings: dict[str, Any]) -> list[dict[str, Any]]:
    settings = copy.deepcopy(settings)
    settings["es_manager"]["use_multiprocessing"] = False
    manager = EnvStateManager(settings)
    try:
        return play(manager)
    finally:
        manager.close()


# Shapes


def test_a_history_has_ragens_shape() -> None:
    manager = EnvStateManager(config("walk", groups=2, size=2, actions=4, use_multiprocessing=False))
    cache = manager.reset(seed=3)
    assert [set(one) for one in cache] == [{"env_id", "history", "group_id", "tag", "penalty"}] * 4
    assert [(one["env_id"], one["group_id"], one["penalty"]) for one in cache] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 1, 0),
        (3, 1, 0),
    ]
    assert cache[0]["history"] == [{"state": cache[1]["history"][0]["state"], "actions_left": 4}]
    first = cache[0]["history"][0]["state"]
    given = {"env_id": 0, "llm_raw_response": "raw", "llm_response": "said", "actions": ["Forth", "nowhere", "BACK"]}
    assert manager.step([given]) == [manager.rollout_cache[0]]
    told, state = manager.rollout_cache[0]["history"]
    assert told == {
        "state": first,
        "actions_left": 4,
        "actions": [1, 2],
        "reward": -0.2,
        "info": {"success": False, "at": int(first.split()[2]), "said": "Back"},
        "llm_response": "said",
        "llm_raw_response": "raw",
    }
    assert state == {"state": first, "actions_left": 2}
    assert manager.rollout_cache[0]["penalty"] == -0.1
    assert manager.render()[0] == first
    states = manager.get_rollout_states()
    assert states[0]["metrics"] == {
        "walk/success": 0.0, "walk/num_actions": 2, "walk/pass@2": 0.0, "walk/at": float(told["info"]["at"])
    }  # fmt: skip


def test_pictures_are_marked_in_the_text() -> None:
    settings = config("walk", use_multiprocessing=False)
    settings["custom_envs"]["walk"]["env_config"] = {"render_mode": "rgb_array"}
    manager = EnvStateManager(settings)
    first = manager.reset(seed=1)[0]["history"][0]
    assert first["state"] == "<images>"
    assert [picture.shape for picture in first["images"]] == [(4, 4, 3)]
    assert manager.render()[0] == first["images"]


def test_an_end_is_a_success_or_truncated() -> None:
    manager = EnvStateManager(config("walk", size=3, actions=5, use_multiprocessing=False))
    manager.reset(seed=1)
    asked = [["forth"] * 9, ["back"] * 9, ["forth", "back", "nowhere"]]
    outputs = manager.step(
        [
            {"env_id": env_id, "llm_response": "", "llm_raw_response": "", "actions": actions}
            for env_id, actions in enumerate(asked)
        ]
    )
    assert [cache["env_id"] for cache in outputs] == [2]  # only what is not done
    ends = [(entry["status"].terminated, entry["status"].truncated) for entry in manager.envs]
    assert ends == [(True, False), (True, True), (False, False)]
    assert manager.envs[1]["status"].num_actions == 5
    before = copy.deepcopy(manager.rollout_cache[0])
    assert manager.step([{"env_id": 0, "actions": ["forth"]}]) == []  # inputs of those that are done are ignored
    assert manager.rollout_cache[0] == before
    states = manager.get_rollout_states()
    assert [state["metrics"]["walk/success"] for state in states] == [1.0, 0.0, 0.0]
    assert {state["metrics"]["walk/pass@3"] for state in states} == {1.0}


@pytest.mark.parametrize("amount", [0.1, -0.1])
def test_a_format_penalty_of_either_sign_costs(amount: float) -> None:
    manager = EnvStateManager(config("walk", format_penalty=amount, use_multiprocessing=False))
    manager.reset(seed=1)
    manager.step([{"env_id": 0, "actions": []}, {"env_id": 1, "actions": ["forth"]}])
    assert [cache["penalty"] for cache in manager.rollout_cache] == [-0.1, 0]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"env_id": 9, "actions": []}, "env_id=9: there are 2 environments"),
        ({"env_id": 0, "actions": "up"}, "actions='up' is not a list"),
        ({"env_id": 0, "actions": None}, "actions=None is not a list"),
        ({"env_id": 0, "llm_response": "up"}, "needs 'env_id' and 'actions'"),
        ("up", "'up' is not the input of an environment"),
    ],
)
def test_wrong_inputs_are_told(wrong: Any, told: str) -> None:
    manager = EnvStateManager(config("bandit"))
    with pytest.raises(UsageError, match=r"call reset\(\) first"):
        manager.get_rollout_states()
    with pytest.raises(UsageError, match=r"call reset\(\) first"):
        manager.step([{"env_id": 0, "actions": []}])
    with pytest.raises(UsageError, match="seed='1' is not a whole number from 0"):
        manager.reset(seed="1")  # type: ignore[arg-type]
    manager.reset(seed=np.int64(1))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="all_env_inputs must be a list, with a dict for each environment"):
        manager.step({"env_id": 0, "actions": []})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=told):
        manager.step([wrong])
    with pytest.raises(UsageError, match="twice"):
        manager.step([{"env_id": 0, "actions": []}] * 2)


# Seeds


def test_groups_and_resets_differ_and_members_do_not() -> None:
    settings = config("sokoban", groups=3, size=2, use_multiprocessing=False)
    first, second = (EnvStateManager(settings) for _ in range(2))
    states = [[cache["history"][0]["state"] for cache in first.reset()] for _ in range(3)]
    assert all(one[0::2] == one[1::2] for one in states)
    assert len({state for one in states for state in one}) == 9
    again = [[cache["history"][0]["state"] for cache in second.reset()] for _ in range(3)]
    assert again == states
    settings["seed"] = {"train": 1000, "val": 5}
    other = EnvStateManager(settings)
    assert other.reset()[0]["history"][0]["state"] not in {state for one in states for state in one}
    assert [entry["status"].seed for entry in other.envs] == [1000, 1000, 1001, 1001, 1002, 1002]


def test_validation_has_its_own_seed_and_split_and_repeats() -> None:
    settings = config("sokoban", "walk", use_multiprocessing=False)
    validation, training = EnvStateManager(settings, mode="val"), EnvStateManager(settings)
    first = copy.deepcopy(validation.reset())
    assert validation.reset() == first
    assert [entry["status"].seed for entry in validation.envs] == [123, 123, 124, 124]
    assert first[2]["history"][0]["state"].startswith("val:")
    assert training.reset(seed=123)[0]["history"] != first[0]["history"]


@pytest.mark.parametrize("kind", ["walk", "bandit"])
def test_training_never_plays_the_seeds_of_validation(kind: str) -> None:
    settings = config(kind, groups=4, size=2, use_multiprocessing=False) | {"seed": {"train": 90, "val": 103}}
    seeds: dict[Mode, list[int]] = {"train": [], "val": []}
    for mode, played in seeds.items():
        with closing(EnvStateManager(settings, mode)) as manager:
            for _ in range(20):
                manager.reset()
                played += [entry["status"].seed for entry in manager.envs[::2]]
    assert set(seeds["val"]) == {103, 104, 105, 106}
    assert seeds["train"][:16] == [*range(90, 102), *range(107, 111)]
    assert len({*seeds["train"]} - {*seeds["val"]}) == len(seeds["train"]) == 80


@pytest.mark.parametrize("workers", [0, 1])
def test_no_character_of_a_reply_divides_it_into_more_actions(workers: int) -> None:
    with closing(EnvStateManager(config("sokoban", size=1, max_workers=workers))) as manager:
        manager.reset()
        manager.step([{"env_id": 0, "actions": ["up\x1fup\x1fup", "down"]}])
        assert manager.rollout_cache[0]["history"][0]["actions"] == [2]
        assert manager.rollout_cache[0]["penalty"] == -manager.format_penalty


def test_members_of_a_group_have_their_own_luck() -> None:
    manager = EnvStateManager(config("bandit", groups=1, size=64))
    manager.reset(seed=1)
    manager.step([{"env_id": env_id, "actions": ["dragon"]} for env_id in range(64)])
    assert len({cache["history"][0]["reward"] for cache in manager.rollout_cache}) == 2


# The same wherever environments run


def test_parallel_equals_sequential_for_every_env_and_number_of_workers() -> None:
    settings = config(*WORKER_TYPES, groups=3)
    expected = sequential(settings)
    shown: dict[str, list[set[str]]] = {}
    for cache in expected:
        shown.setdefault(cache["tag"], []).append({turn["state"] for turn in cache["history"]})
    assert shown.keys() == WORKER_TYPES.keys()
    for states in shown.values():
        assert min(map(len, states)) > 1  # each episode moves on
        assert len(set().union(*states)) > max(map(len, states))  # and they are not all the same one
    for workers in (1, 2, 3):
        settings["es_manager"]["max_workers"] = workers
        manager = EnvStateManager(settings)
        assert play(manager) == expected
        assert len(pids(manager)) == workers
        manager.close()


@pytest.mark.slow
def test_parallel_equals_sequential_ten_times() -> None:
    settings = config(*WORKER_TYPES, groups=4, size=3, actions=30)
    expected = sequential(settings)
    for repeat in range(10):
        settings["es_manager"]["max_workers"] = 1 + repeat % 5
        manager = EnvStateManager(settings)
        assert play(manager) == expected
        manager.close()


def test_flips_and_killed_workers_within_an_episode_change_nothing() -> None:
    settings = config(*WORKER_TYPES, max_workers=2)
    expected = sequential(settings)
    manager = EnvStateManager(settings)
    manager.reset(seed=7)
    tags = [entry["tag"] for entry in manager.envs]
    before = pids(manager)
    for number in range(TURNS):
        manager.use_multiprocessing = number != 2
        if number in (1, 3):
            for pid in pids(manager):
                os.kill(pid, signal.SIGKILL)
        manager.step(turn(tags, number))
    assert manager.get_rollout_states() == expected
    assert not any(map(alive, before))
    assert manager.stats().restored > 0


def test_workers_stay_the_same_over_resets_and_payloads_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    real_frame = codec.frame

    def frame(*args: Any) -> Any:
        framed = real_frame(*args)
        sent.append(len(framed))
        return framed

    manager = EnvStateManager(config("sokoban", groups=2, actions=500, max_workers=2))
    manager.reset()
    first = pids(manager)
    for _ in range(10):
        manager.reset()
        assert pids(manager) == first
    monkeypatch.setattr(codec, "frame", frame)
    sizes = []
    for _ in range(40):
        sent.clear()
        manager.step([{"env_id": env_id, "actions": ["Up", "Down"]} for env_id in range(4)])
        sizes.append(sum(sent))
    assert 0 < max(sizes) <= 1.3 * sizes[0]
    assert len(pickle.dumps(manager.rollout_cache)) > 10 * max(sizes)  # what would travel elsewhere


def test_members_of_a_group_share_a_worker() -> None:
    manager = EnvStateManager(config("sokoban", groups=4, size=3, max_workers=2))
    manager.reset()
    ranks = [handle.worker for handle in manager._target._fleet._handles if handle is not None]
    assert [len(set(ranks[start : start + 3])) for start in range(0, 12, 3)] == [1] * 4
    assert [ranks.count(rank) for rank in range(2)] == [6, 6]
    manager.close()


def test_every_env_is_made_once_in_one_worker_whatever_is_reset_or_stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTERED_ENVS, "counted", CountedEnv)
    monkeypatch.setitem(REGISTERED_ENV_CONFIGS, "counted", WalkConfig)
    manager = EnvStateManager(config("counted", groups=4, size=2, max_workers=2))
    for _ in range(3):
        manager.reset()
        manager.step([{"env_id": env_id, "actions": ["forth"]} for env_id in range(8)])
        assert Counter(manager.render()) == {f"{pid} 4": 4 for pid in pids(manager)}
    manager.close()


def test_only_the_listed_types_run_on_the_loop() -> None:
    manager = EnvStateManager(config("sokoban", "worker_bandit", sequential_env_types=["Sokoban"], max_workers=1))
    manager.reset()
    workers = manager.stats().workers
    assert [worker.envs for worker in workers if worker.rank >= 0] == [2]
    manager.close()


def test_no_processes_are_started_for_light_envs_or_sequential_ones() -> None:
    for settings in (config("bandit"), config("sokoban", use_multiprocessing=False)):
        manager = EnvStateManager(settings)
        manager.reset()
        assert pids(manager) == []


@pytest.mark.parametrize(("given", "expected"), [({}, min(8, os.cpu_count() or 1)), ({"max_workers": 3}, 3)])
def test_max_workers(given: dict[str, Any], expected: int) -> None:
    assert EnvStateManager(config("bandit", **given)).max_workers == expected


async def test_the_same_calls_are_coroutines() -> None:
    settings = config("worker_bandit", max_workers=1)
    async with AsyncEnvStateManager(settings) as manager:
        await manager.reset(seed=7)
        for number in range(TURNS):
            await manager.step(turn([entry["tag"] for entry in manager.envs], number))
        played = copy.deepcopy(manager.get_rollout_states())
    assert played == sequential(settings)


# What goes wrong


def test_a_failure_is_an_entry_of_its_environment_alone() -> None:
    manager = EnvStateManager(config("walk", size=3, max_workers=2, step_timeout=1.0))
    start = manager.reset(seed=1)[1]["history"][0]["state"]
    inputs = [{"env_id": env_id, "actions": [word]} for env_id, word in enumerate(["raise", "hang", "forth"])]
    assert [cache["env_id"] for cache in manager.step(inputs)] == [2]
    told = [cache["history"][0]["info"] for cache in manager.rollout_cache]
    assert "LookupError: a stone in the way" in told[0]["error"]
    assert "took longer than 1 s" in told[1]["error"]
    assert "error" not in told[2]
    assert manager.rollout_cache[1]["history"][1]["state"] == start
    assert all(manager.envs[env_id]["status"].truncated for env_id in (0, 1))
    assert "walk/error" not in manager.get_rollout_states()[0]["metrics"]
    assert all("error" not in cache["history"][0].get("info", {}) for cache in manager.reset(seed=1))
    assert len(manager.step([{"env_id": env_id, "actions": ["forth"]} for env_id in range(3)])) == 3


def test_limits_of_time_are_those_of_workers_and_without_them_envs_play_all_the_same() -> None:
    manager = EnvStateManager(config("walk", use_multiprocessing=False, step_timeout=1.0, reset_timeout=2.0))
    manager.reset(seed=1)
    assert len(manager.step([{"env_id": 0, "actions": ["forth"]}])) == 1


def test_an_env_that_kills_its_worker_fails_alone() -> None:
    manager = EnvStateManager(config("walk", size=2, max_workers=1))
    manager.reset(seed=1)
    outputs = manager.step([{"env_id": 0, "actions": ["die"]}, {"env_id": 1, "actions": ["forth"]}])
    assert [cache["env_id"] for cache in outputs] == [1]
    assert "SIGKILL" in manager.rollout_cache[0]["history"][0]["info"]["error"]


def test_what_cannot_be_sent_to_a_worker_runs_here_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lock = threading.Lock()
    monkeypatch.setitem(REGISTERED_ENVS, "stuck", lambda config: Unpicklable(config) if lock else None)
    monkeypatch.setitem(REGISTERED_ENV_CONFIGS, "stuck", WalkConfig)
    manager = EnvStateManager(config("stuck", max_workers=1))
    with caplog.at_level(logging.WARNING):
        manager.reset(seed=1)
    assert "env 'stuck' cannot be sent to a worker process" in caplog.text
    assert len(manager.step([{"env_id": 0, "actions": ["forth"]}])) == 1
    manager.close()


def test_without_workers_it_goes_on_sequentially_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    settings = config("sokoban", max_workers=100_000)  # more than there are descriptors for
    manager = EnvStateManager(settings)
    with caplog.at_level(logging.WARNING):
        played = play(manager)
    assert "file descriptors" in caplog.text
    assert caplog.text.count("Falling back to sequential processing") == 1
    assert played == sequential(settings)


def test_an_env_that_cannot_be_made_is_raised_with_its_name() -> None:
    settings = config("sokoban", use_multiprocessing=False)
    settings["custom_envs"]["sokoban"]["env_config"] = {"num_boxen": 3}
    manager = EnvStateManager(settings)
    with pytest.raises(UsageError, match=r"env 'sokoban'.*'num_boxen': did you mean 'num_boxes'"):
        manager.reset()


def test_what_a_worker_cannot_load_is_told_with_its_name_and_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTERED_ENVS, "simulator", OnlyHere())
    monkeypatch.setitem(REGISTERED_ENV_CONFIGS, "simulator", WalkConfig)
    manager = EnvStateManager(config("simulator", max_workers=1))
    with pytest.raises(UsageError, match=r"env 'simulator'.*its worker: ImportError: libsimulator\.so"):
        manager.reset()
    manager.use_multiprocessing = False
    assert len(manager.reset()) == 2
    manager.close()


# The configuration


def test_any_object_with_the_keys_is_a_config() -> None:
    settings = config("bandit")
    kind = Enum("Kind", {"BANDIT": "bandit"}).BANDIT  # type: ignore[attr-defined]
    found = SimpleNamespace(
        es_manager=SimpleNamespace(
            train=SimpleNamespace(**settings["es_manager"]["train"]), format_penalty=-0.5, use_multiprocessing=True
        ),
        custom_envs=SimpleNamespace(bandit=SimpleNamespace(**settings["custom_envs"]["bandit"] | {"env_type": kind})),
    )
    manager = EnvStateManager(found)
    assert (manager.format_penalty, len(manager.reset())) == (0.5, 2)
    assert sequential(settings) == play(manager)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("es_manager.train.env_configs.tags", ["SokobanEmv"], r"tags\[0\]: custom_envs does not define 'SokobanEmv'"),
        ("custom_envs.SokobanEnv", None, "Expected 'object', got 'null' - at 'custom_envs.SokobanEnv'"),
        ("custom_envs.SokobanEnv.env_type", "sokobann", "no env type is called 'sokobann': did you mean 'soko"),
        ("es_manager.train.env_configs.n_groups", [3], "env_configs.n_groups: found .3., 3 in all, but env_gr"),
        ("es_manager.train.env_configs.n_groups", [1, 1], "n_groups: found 2 entries, but tags has 1"),
        ("es_manager.train.env_groups", "four", "es_manager.train.env_groups"),
        ("custom_envs.SokobanEnv.max_actions_per_traj", None, "custom_envs.SokobanEnv.max_actions_per_traj is missing"),
        ("es_manager", {}, "train"),
        ("es_manager.fromat_penalty", 0.1, "es_manager.fromat_penalty: 'fromat_penalty' is not a known key of es_man"),
        ("es_manager.train.groups", 4, "es_manager.train.groups: 'groups' is not a known key .* or 'env_groups'"),
        ("custom_envs.SokobanEnv.env_configs", {}, "SokobanEnv.env_configs: .* did you mean 'env_config'"),
        ("agent_proxy", {"max_turns": 3}, "agent_proxy.max_turns: .* did you mean 'max_turn'"),
        ("seed", {"training": 1}, "seed.training: .* did you mean 'train'"),
        ("use_parallel_env", False, "'use_parallel_env' is not a known key: did you mean 'use_parallel_envs'"),
        ("es_manager.max_workers", -1, "es_manager.max_workers"),
    ],
)  # fmt: skip
def test_wrong_keys_are_named(path: str, value: Any, told: str) -> None:
    settings: dict[str, Any] = {
        "es_manager": {
            "train": {"env_groups": 4, "group_size": 3, "env_configs": {"tags": ["SokobanEnv"], "n_groups": [1]}}
        },
        "custom_envs": {"SokobanEnv": {"env_type": "sokoban", "max_actions_per_traj": 50}},
    }
    at, (*way, last) = settings, path.split(".")
    for key in way:
        at = at[key]
    at[last] = value
    with pytest.raises(UsageError, match=told):
        EnvStateManager(settings)
    with pytest.raises(UsageError, match="es_manager is missing"):
        EnvStateManager({})
    with pytest.raises(UsageError, match=r"found 'base\.yaml', a file's name: give what is in it"):
        EnvStateManager("base.yaml")


def upstreams(**more: Any) -> dict[str, Any]:
    """Nulls, parts of the trainer and a reference to nothing, as in RAGEN's own `base.yaml`."""
    return {
        **config("walk"),
        "seed": {"train": 7, "val": 123},
        "data": {"max_prompt_length": None, "max_response_length": None, "train_batch_size": None},
        "actor_rollout_ref": {"rollout": {"response_length": 400, "max_model_len": 3600, "dtype": "bfloat16"}},
        "ctx_manager": {"generation": {"gen_config": {"top_p": "${actor_rollout_ref.rollout.top_p}"}}},
        "algorithm": {"adv_estimator": "gae", "filter_groups": {"enable": False, "max_num_gen_batches": 0}},
        "trainer": {"logger": ["console"]},
        "mine": {"anything": 1},
        **more,
    }


@pytest.mark.parametrize("amount", [0.5, 0.3])
def test_one_penalty_is_given(amount: float) -> None:
    settings = config("bandit", format_penalty=-0.3) | {"agent_proxy": {"format_penalty": amount}}
    if amount == 0.3:
        assert EnvStateManager(settings).format_penalty == 0.3
        return
    with pytest.raises(UsageError, match=r"agent_proxy\.format_penalty=0\.5 and es_manager\.format_penalty=-0\.3 mean"):
        EnvStateManager(settings)


def test_a_whole_configuration_of_ragens_is_read() -> None:
    settings = upstreams()
    manager = EnvStateManager(settings)
    assert manager.sys_config is settings
    assert manager.config is settings["es_manager"]["train"]
    assert (manager.base_seed, manager.env_type, manager.use_parallel) == (7, "walk", True)
    assert EnvStateManager(settings, "val").base_seed == 123
    manager.use_multiprocessing = False
    assert manager.use_parallel is False
    manager.reset()
    assert [entry["status"].seed for entry in manager.envs] == [7, 7]
    manager.reset()
    assert [entry["status"].seed for entry in manager.envs] == [8, 8]
    manager.close()


def test_several_types_are_mixed() -> None:
    assert EnvStateManager(config("walk", "bandit")).env_type == "mixed"


@pytest.mark.parametrize(
    "switch", [{"use_parallel_envs": False}, {"use_parallel_execution": False}, {"use_multiprocessing": False}]
)
def test_each_switch_makes_it_sequential(switch: dict[str, bool]) -> None:
    settings = config("walk")
    (settings if "use_parallel_envs" in switch else settings["es_manager"]).update(switch)
    assert EnvStateManager(settings).use_parallel is False


def test_without_workers_it_continues_sequentially_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    settings = config("worker_bandit", max_workers=0)
    manager = EnvStateManager(settings)
    with caplog.at_level(logging.WARNING):
        manager.reset(seed=1)
    assert pids(manager) == []
    assert len(manager.step([{"env_id": 0, "actions": ["1"]}])) == 0
    manager.close()


def test_groups_follow_from_their_shares() -> None:
    settings = config("walk", "bandit", size=3)
    settings["es_manager"]["train"] = {"group_size": 3, "env_configs": {"tags": ["walk", "bandit"], "n_groups": [2, 1]}}
    assert [entry["tag"] for entry in EnvStateManager(settings).envs] == ["walk"] * 6 + ["bandit"] * 3


def test_a_closed_manager_says_so() -> None:
    manager = EnvStateManager(config("bandit"))
    manager.reset()
    manager.close()
    manager.close()
    with pytest.raises(ClosedError, match="closed: make another"):
        manager.reset()
    with pytest.raises(ClosedError, match="closed: make another"):
        manager.step([{"env_id": 0, "actions": ["1"]}])


def test_a_worker_loads_nothing_heavy_for_these_envs() -> None:
    modules = "asyncrollout.pool.worker.main, asyncrollout.dropin.ragen.hosting, asyncrollout.dropin.ragen.envs"
    code = f"import sys, {modules}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert {"aiohttp", "rich", "structlog", "cyclopts", "yaml"}.isdisjoint(loaded)


def test_numbers_of_numpy_are_ids_and_seeds() -> None:
    manager = EnvStateManager(config("bandit"))
    manager.reset(seed=np.int64(3))  # type: ignore[arg-type]
    assert manager.step([{"env_id": np.int64(1), "actions": ["1"]}]) == []


def test_equal_scores_are_equal_however_actions_are_split() -> None:
    manager = EnvStateManager(config("walk", groups=1, size=2, actions=10, use_multiprocessing=False))
    manager.reset(seed=3)
    words = ["Forth", "Back"] * 5
    for number in range(10):
        manager.step([{"env_id": 0, "actions": words[number : number + 1]}])
    for start in (0, 5):
        manager.step([{"env_id": 1, "actions": words[start : start + 5]}])
    earned = [[turn["reward"] for turn in cache["history"] if "reward" in turn] for cache in manager.rollout_cache]
    assert [len(rewards) for rewards in earned] == [10, 2]
    assert sum(earned[0]) != sum(earned[1])
    assert [total_reward(cache) for cache in manager.rollout_cache] == [-1.0, -1.0]
