"""Batches of environments by id: the document's own code, what comes back, and whom trouble reaches."""

import ast
import asyncio
import base64
import enum
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from asyncrollout import (
    BaseServiceConfig,
    EnvPool,
    EnvService,
    MissingExtraError,
    UsageError,
    VideoEnvService,
    registry,
)
from asyncrollout.service.observations import from_json, observation_to_json, to_json
from asyncrollout.testing import same
from tests import seed_service as seed
from tests.envs.service import KNOWN, AsyncRounds
from tests.odd_values import Real, Row, Table, Text, Whole
from tests.playing import Gate, kill_worker_of


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in KNOWN:
        monkeypatch.setitem(registry._registered, spec.name, spec)


class Side(str, enum.Enum):  # noqa: UP042 (as many have it)
    LEFT = "left"


def config(name: str, **kwargs: Any) -> dict[str, Any]:
    return {"env_name": name, "env_config": kwargs}


# The document


@pytest.fixture(scope="module")
def data_config() -> str:
    """The YAML of generated clips, where the document says path/to/config.yaml."""
    from asyncrollout_envs.video.generate import default_config

    return str(default_config())


def awaited(block: str, data_config: str) -> Any:
    """The block with our names, and each call of a service awaited."""
    for theirs in ("vagen.env.video.service", "vagen.env.base.base_service_config"):
        block = block.replace(theirs, "asyncrollout")
    block = block.replace("path/to/config.yaml", data_config)
    block = re.sub(r"(video_service|self\.service)\.(\w+_batch)\(", r"await \1.\2(", block)
    block = re.sub(r"def (collect_batch_data|reset_environments)", r"async def \1", block)
    return compile(block, "the document", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


async def run(block: str, names: dict[str, Any], data_config: str) -> None:
    coroutine = eval(awaited(block, data_config), names)
    if asyncio.iscoroutine(coroutine):
        await coroutine


async def test_the_document(data_config: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    await run(seed.SETUP, names, data_config)
    service = names["video_service"]
    assert (service.max_workers, service.environments, service.env_configs) == (4, {}, {})
    async with service:
        for block in (seed.CREATE, seed.RESET):
            await run(block, names, data_config)
        for env_id, split in (("env_0", "train"), ("env_1", "test")):
            observation, info = names["reset_results"][env_id]
            assert info["split"] == split
            assert observation["obs_str"].count("<image>") == len(observation["multi_modal_data"]["<image>"]) == 16
        await run(seed.STEP, names, data_config)
        for env_id, reply in names["step_actions"].items():
            observation, reward, done, info = names["step_results"][env_id]
            assert info["metrics"]["turn_metrics"] == {"action_is_valid": True, "action_is_effective": True}
            assert info["metrics"]["traj_metrics"] == {"success": False}
            assert info["llm_raw_response"] == info["llm_response"] == reply["llm_raw_response"]
            assert (type(reward), done) == (float, False)
            assert len(observation["multi_modal_data"]["<image>"]) == 8
        json.dumps([names["reset_results"], names["step_results"]])
        await run(seed.ASK, names, data_config)
        assert all("<watch>" in prompt for prompt in names["prompts"].values())
        assert names["train_sizes"]["env_0"] > names["test_sizes"]["env_0"] > 0
        assert [status["ok"] for status in names["embedder_status"].values()] == [False, False]
        assert names["rewards"] == {env_id: result[1] for env_id, result in names["step_results"].items()}
        await run(seed.ERRORS, names, data_config)
        printed = capsys.readouterr().out
        assert "Environment env_0 reset successfully\n" in printed
        assert "Environment invalid_env failed: Environment invalid_env not found\n" in printed
        await run(seed.CLOSE, names, data_config)
        assert service.environments == service.env_configs == {}


async def test_the_document_s_training_manager(data_config: str) -> None:
    names: dict[str, Any] = {"VideoEnvService": VideoEnvService, "BaseServiceConfig": BaseServiceConfig}
    await run(seed.MANAGER, names, data_config)

    documented: Any = names["VideoTrainingManager"]

    class Manager(documented):  # type: ignore[misc]
        def setup_environments(self, num_envs: int) -> None:  # which the document leaves out
            self.configs = {f"env_{number}": config("video") for number in range(num_envs)}

    manager = Manager(num_envs=3, max_workers=2)
    async with manager.service as service:
        await service.create_environments_batch(manager.configs)
        seeds = {env_id: number for number, env_id in enumerate(manager.configs)}
        assert [*(await manager.reset_environments(seeds))] == [*seeds]
        data = await manager.collect_batch_data(dict.fromkeys(seeds, "<think>..</think><watch>0-5</watch>"))
        assert [result[3]["action_content"] for result in data.values()] == ["0-5"] * 3


async def test_watching_and_retrieving_the_same_frames_is_the_same() -> None:
    async with EnvPool(backend="inline") as pool, VideoEnvService(pool=pool) as service:
        await service.create_environments_batch(dict.fromkeys("ab", config("video", explain_invalid=False)))
        await service.reset_batch({"a": 3, "b": {"seed": 3, "extra_info": {"split": "train"}}})
        results = await service.step_batch({"a": "<watch>0-5</watch>", "b": "<retrieve>0,19</retrieve>"})
        assert results["a"][0] == results["b"][0]
        invalid = await service.step_batch({"a": "<watch>5-2</watch>", "b": "<watch>0-999</watch>"})
        assert [result[3]["action_is_valid"] for result in invalid.values()] == [False, False]
        assert [result[0] for result in invalid.values()] == [result[0] for result in results.values()]


# What comes back


async def test_shapes() -> None:
    async with EnvPool(backend="inline") as pool, EnvService(pool=pool) as service:
        await service.create_environments_batch({"g": config("gallery"), "raw": config("echo")})
        observation, info = (await service.reset_batch({"g": {"seed": 5, "extra_info": {"split": "test"}}}))["g"]
        assert observation["obs_str"].startswith("You are at total 0")
        assert info == {"seed": 5, "split": "test", "odd": [1, 3], "at": 0.5, "system_prompt": "Add numbers."}
        pictures = [np.asarray(picture) for picture in from_json(observation["multi_modal_data"]["<image>"])]
        assert [picture.tolist() for picture in pictures] == [np.full((4, 4, 3), value).tolist() for value in (0, 1)]
        assert (await service.compute_reward_batch(["g", "x"])) == {"g": 0.0, "x": 0.0}
        text = (await service.step_batch({"g": "add 3"}))["g"]
        as_dict = (await service.step_batch({"g": {"llm_raw_response": " jump ", "verbose": True}}))["g"]
        assert text[3]["metrics"]["turn_metrics"]["action_is_valid"]
        assert (as_dict[1], as_dict[2]) == (-0.1, False)
        assert as_dict[3]["metrics"]["turn_metrics"] == {"action_is_valid": False, "action_is_effective": False}
        assert (as_dict[3]["llm_raw_response"], as_dict[3]["llm_response"]) == (" jump ", "jump")
        assert await service.compute_reward_batch(["g"]) == {"g": text[1] - 0.1}
        await service.reset_batch({"g": 6})
        assert await service.compute_reward_batch(["g"]) == {"g": 0.0}
        raw = (await service.reset_batch({"raw": {"seed": 1, "extra_info": [1, "two"]}}))["raw"][0]
        assert raw == {"obs_str": "[1, 'two']", "multi_modal_data": {"<image>": []}, "data": [1, "two"]}


async def test_the_same_seed_is_the_same_episode() -> None:
    async with EnvPool(backend="inline") as pool, EnvService(pool=pool) as service:
        await service.create_environments_batch(dict.fromkeys("abc", config("text")))
        await service.create_environments_batch({"own": config("video", seed=7)})
        first = await service.reset_batch({"a": 7, "b": {"seed": 7}, "c": {"action": 1}, "own": None})
        assert first["a"] == first["b"]
        assert "unknown key 'action'" in first["c"][1]["error"]
        assert first["own"] == (await service.reset_batch({"own": 7}))["own"]
        results = await service.step_batch({"a": "add 4", "b": {"action": "add 4"}})
        assert results["a"] == results["b"]


async def test_prompts_splits_and_embedders() -> None:
    async with EnvPool(backend="inline") as pool, EnvService(pool=pool) as service:
        await service.create_environments_batch({"g": config("gallery"), "raw": config("counter")})
        asked = ["g", "raw", "x"]
        assert await service.get_system_prompts_batch(asked) == {"g": "Add numbers.", "raw": "", "x": ""}
        assert await service.get_split_size_batch(asked) == {"g": 12, "raw": 0, "x": 0}
        assert await service.get_split_size_batch(["g"], split="val") == {"g": 0}
        statuses = await service.init_embedder_batch(asked)
        assert statuses["g"] == {"ok": True, "error": ""}
        assert "offers no 'init_embedder'" in statuses["raw"]["error"]
        assert statuses["x"] == {"ok": False, "error": "Environment x not found"}
        assert not (await service.init_embedder_batch(["g"], service_url="http://localhost:1"))["g"]["ok"]


async def test_nothing_asked_nothing_done() -> None:
    async with EnvPool(backend="inline") as pool, EnvService(pool=pool) as service:
        await service.create_environments_batch({})
        assert await service.reset_batch({}) == {}
        assert await service.step_batch({}) == {}
        assert await service.compute_reward_batch([]) == {}
        assert await service.get_system_prompts_batch([]) == {}
        await service.close_batch([])
        await service.close_batch(["x"])


# Trouble


async def test_trouble_stays_with_its_env(tmp_path: Path) -> None:
    async with EnvService(max_workers=1) as service:
        configs: dict[str, Any] = {
            "good": config("text"),
            "unknown": config("tekst"),
            "refuses": config("refuses"),
            "option": config("text", limt=3),
            "no name": {"env_config": {}},
            "no dict": "text",
            "odd": config("text", spec_or_name=1),
            "raises": config("crasher", at=2, how="raise"),
            "exits": config("crasher", at=2, how="kill", once=str(tmp_path / "once")),
        }
        await service.create_environments_batch(configs)
        assert [*service.environments] == ["good", "raises", "exits"]
        assert "did you mean 'text'" in service.failures["unknown"]
        assert "no licence for this simulator" in service.failures["refuses"]
        assert "did you mean 'limit'" in service.failures["option"]
        resets = await service.reset_batch(dict.fromkeys(configs, 1) | {"good": -1})
        assert [*resets] == [*configs]
        assert resets["refuses"] == ({}, {"error": f"Environment refuses not found: {service.failures['refuses']}"})
        assert "seed must be a whole number from 0" in resets["good"][1]["error"]
        assert "error" not in (await service.reset_batch({"good": 1}))["good"][1]
        for turn in range(2):
            results = await service.step_batch({"good": "add 1", "raises": 1, "exits": 1, "x": "?"})
            assert results["x"] == ({}, 0.0, True, {"error": "Environment x not found"})
            assert ("error" in results["raises"][3]) == (turn == 1)
            assert "error" not in results["good"][3]
            assert "error" not in results["exits"][3]  # its worker died, and it was brought back
        assert "the env's own mistake" in results["raises"][3]["error"]
        assert "its episode failed" in (await service.step_batch({"raises": 1}))["raises"][3]["error"]
        assert "error" not in (await service.reset_batch({"raises": 1}))["raises"][1]


async def test_a_worker_killed_behind_the_service() -> None:
    async with EnvPool(workers=1) as pool, EnvService(max_workers=1, pool=pool) as service:
        await service.create_environments_batch(dict.fromkeys("ab", config("text")))
        await service.reset_batch({"a": 3, "b": 3})
        await service.step_batch({"a": "add 1", "b": "add 1"})
        kill_worker_of(pool, service.environments["a"].handle)
        after = await service.step_batch({"a": "add 2"})
        assert after["a"] == (await service.step_batch({"b": "add 2"}))["b"]
        assert pool.stats().restarts == 1


async def test_closing_and_replacing() -> None:
    async with EnvPool(workers=1) as pool:
        async with EnvService(pool=pool) as service:
            await service.create_environments_batch(dict.fromkeys("abc", config("text")))
            old = service.environments["a"]
            await service.create_environments_batch({"a": config("text", limit=5)})
            assert service.environments["a"] is not old
            assert service.env_configs["a"] == {"limit": 5}
            assert pool.stats().envs == 3
            await service.close_batch(["a", "x"])
            await service.close_batch(["a"])
            assert [*service.environments] == ["b", "c"]
            assert "not found" in (await service.reset_batch({"a": 1}))["a"][1]["error"]
        assert (service.environments, pool.stats().envs) == ({}, 0)


async def test_nothing_is_left_of_an_episode_when_a_reset_fails() -> None:
    async with EnvPool(backend="inline") as pool, EnvService(pool=pool) as service:
        await service.create_environments_batch({"g": config("gallery")})
        for bad in (-1, {"sed": 1}, {"seed": 1, "extra_info": {"no": "split"}}):
            await service.reset_batch({"g": 5})
            assert (await service.step_batch({"g": "add 3"}))["g"][1] != 0
            assert "error" in (await service.reset_batch({"g": bad}))["g"][1]
            assert await service.compute_reward_batch(["g"]) == {"g": 0.0}
            observation, reward, done, info = (await service.step_batch({"g": "add 3"}))["g"]
            assert (observation, reward, done) == ({}, 0.0, True)
            assert "cannot step: its last reset failed" in info["error"]
            assert await service.compute_reward_batch(["g"]) == {"g": 0.0}
            assert await service.get_system_prompts_batch(["g"]) == {"g": "Add numbers."}


async def test_a_reset_beside_other_calls(tmp_path: Path) -> None:
    """A reset that comes during a step, or during another reset, fails; the reset that came first counts."""
    gate = Gate(tmp_path)
    async with EnvService(max_workers=1) as service:
        await service.create_environments_batch({"g": config("gated", pipe=gate.pipe)})
        await service.reset_batch({"g": 1})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.step_batch, {"g": "wait"})
            await gate.begun()
            assert "still in flight" in (await service.reset_batch({"g": 2}))["g"][1]["error"]
            await gate.open()
        assert await service.compute_reward_batch(["g"]) == {"g": 0.0}
        assert "its last reset failed" in (await service.step_batch({"g": 1}))["g"][3]["error"]
        first: dict[Any, Any] = {}

        async def reset() -> None:
            first.update(await service.reset_batch({"g": 3}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reset)
            await anyio.lowlevel.checkpoint()
            second = await service.reset_batch({"g": 4})
        assert ["error" in printed["g"][1] for printed in (first, second)] == [False, True]
        assert "error" not in (await service.step_batch({"g": 1}))["g"][3]


async def test_a_step_without_a_form_as_json() -> None:
    async with EnvPool(backend="inline") as pool, EnvService(pool=pool) as service:
        await service.create_environments_batch({"a": config("boundless")})
        await service.reset_batch({"a": 1})
        assert "nested more than" in (await service.step_batch({"a": 80}))["a"][3]["error"]
        assert await service.compute_reward_batch(["a"]) == {"a": 0.0}
        assert "its last step failed" in (await service.step_batch({"a": 2}))["a"][3]["error"]
        await service.reset_batch({"a": 1})
        _, reward, done, info = (await service.step_batch({"a": 0}))["a"]
        assert (reward, done) == (sys.float_info.max, False)
        assert [info[key] for key in ("up", "down", "none")] == ["Infinity", "-Infinity", ["NaN"]]


async def test_a_picture_without_a_form_as_json_is_the_trouble_of_its_env_alone() -> None:
    image = pytest.importorskip("PIL.Image")
    async with EnvPool(backend="inline") as pool, EnvService(pool=pool) as service:
        await service.create_environments_batch({name: config("echo") for name in "abc"})
        await service.reset_batch(dict.fromkeys("abc", 1))
        shown = {"a": image.new("F", (2, 2)), "b": image.new("RGB", (0, 0)), "c": 1}
        results = await service.step_batch(shown)
        assert "mode 'F' and size 2x2 cannot be sent" in results["a"][3]["error"]
        assert "size 0x0 cannot be sent" in results["b"][3]["error"]
        assert results["c"][0]["data"] == 1


async def test_an_id_that_cannot_be_made_again_is_gone() -> None:
    async with EnvPool(backend="inline") as pool, EnvService(pool=pool) as service:
        await service.create_environments_batch(dict.fromkeys("abc", config("text")))
        await service.reset_batch(dict.fromkeys("abc", 1))
        again = {"a": config("refuses"), "b": {"env_config": 3}, "c": config("text")}
        await service.create_environments_batch(again)
        assert ([*service.environments], [*service.env_configs], pool.stats().envs) == (["c"], ["c"], 1)
        resets = await service.reset_batch(dict.fromkeys("abc", 1))
        assert "Environment a not found" in resets["a"][1]["error"]
        assert "no licence" in resets["a"][1]["error"]
        assert "no 'env_name'" in resets["b"][1]["error"]
        assert "error" not in resets["c"][1]


async def test_what_open_does_not_take_is_reported_in_its_place() -> None:
    async with EnvPool(backend="inline") as pool, EnvService(pool=pool) as service:
        odd = {"record": {"every": 1}, "beside": "good", "worker": "x", "text": 3}
        configs = {key: config("text", **{key: value}) for key, value in odd.items()}
        await service.create_environments_batch({**configs, "good": config("text")})
        assert [*service.environments] == ["good"]
        assert "is not what VideoRecorder.record() returns" in service.failures["record"]
        assert "is not an env that pool.open() gave" in service.failures["beside"]


async def test_idle_envs_are_closed() -> None:
    async with EnvPool(backend="inline") as pool, EnvService(pool=pool) as service:
        await service.create_environments_batch(dict.fromkeys("ab", config("light_text")))
        used = service.environments["b"].idle_since
        assert used is not None
        await service.reset_batch({"b": 1})
        assert await service.close_idle(used + 1e-9) == ["a"]
        error = (await service.reset_batch({"a": 1}))["a"][1]["error"]
        assert error == "Environment a not found: it was closed because nobody used it for long"


async def test_a_cancelled_batch_leaves_a_service_that_continues(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    async with EnvService(max_workers=1) as service:
        await service.create_environments_batch({"slow": config("gated", pipe=gate.pipe), "other": config("counter")})
        ids = {"slow": 1, "other": 1}
        begun = await service.reset_batch(ids)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.step_batch, {"slow": "wait", "other": 1})
            await gate.begun()
            tasks.cancel_scope.cancel()
        await gate.open()
        assert "call reset() first" in (await service.step_batch({"slow": 1}))["slow"][3]["error"]
        assert await service.reset_batch(ids) == begun
        results = await service.step_batch({"slow": 2, "other": 2})
        assert results["slow"] == results["other"]
        assert "error" not in results["slow"][3]


# How many at a time


async def test_as_many_at_work_as_there_are_workers(tmp_path: Path) -> None:
    """Eight envs on four workers: each waits until four are at work, so fewer would hang, and more would be seen."""
    log = tmp_path / "log"
    log.touch()
    async with EnvService(BaseServiceConfig(max_workers=4)) as service:
        ids = [f"env_{number}" for number in range(8)]
        pinned = [config("rounds", log=str(log), together=4, worker=number % 4) for number in range(8)]  # none moves
        await service.create_environments_batch(dict(zip(ids, pinned, strict=True)))
        await service.reset_batch(dict.fromkeys(ids, 0))
        results = await service.step_batch(dict.fromkeys(ids, 1))
    assert not [result[3]["error"] for result in results.values() if "error" in result[3]]
    signs = log.read_text()
    at_work = [signs[: place + 1].count("+") - signs[: place + 1].count("-") for place in range(len(signs))]
    assert (len(signs), max(at_work)) == (16, 4)


async def test_as_many_at_work_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncRounds, "most", 0)
    async with EnvPool(backend="inline") as pool, EnvService(max_workers=4, pool=pool) as service:
        await service.create_environments_batch(dict.fromkeys(range(8), config("async_rounds")))
        await service.reset_batch(dict.fromkeys(range(8), 0))
        results = await service.step_batch(dict.fromkeys(range(8), 4))
    assert [result[1] for result in results.values()] == [1.0] * 8
    assert AsyncRounds.most == 4


def test_a_service_is_made_without_an_event_loop() -> None:
    assert VideoEnvService(BaseServiceConfig(max_workers=3)).max_workers == 3
    assert EnvService({"max_workers": 5}).max_workers == 5
    assert (EnvService().max_workers, BaseServiceConfig().get("nothing", 7)) == (10, 7)
    with pytest.raises(UsageError, match="max_workers=0 is not a whole number from 1"):
        EnvService(max_workers=0)


# JSON

whole = hnp.boolean_dtypes() | hnp.integer_dtypes() | hnp.unsigned_integer_dtypes()
numbers = whole | hnp.floating_dtypes(sizes=(32, 64))
arrays = hnp.arrays(
    numbers | hnp.complex_number_dtypes(sizes=(64, 128)) | hnp.unicode_string_dtypes(min_len=1, max_len=4),
    hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=3),
)


@given(arrays)
def test_arrays_come_back_equal(array: Any) -> None:
    printed = json.loads(json.dumps(to_json({"a": [array]}), allow_nan=False))
    assert same(from_json(printed)["a"][0], array)


def test_values_as_json() -> None:
    printed = to_json({"set": {2, 1}, "tuple": (1, np.int8(2)), 3: np.bool_(True), "odd": object, "text": "\ud800"})
    assert to_json({2**64: -(2**70)}) == {str(2**64): str(-(2**70))}
    assert printed == {"set": [1, 2], "tuple": [1, 2], 3: True, "odd": "<class 'object'>", "text": "?"}
    boundless = to_json([math.inf, -math.inf, math.nan, np.float64("inf"), np.float16("nan"), np.array(-np.inf)])
    assert boundless == ["Infinity", "-Infinity", "NaN", "Infinity", "NaN", "-Infinity"]
    subclasses = [Whole(7), Real(7.5), Real("inf"), Text("a"), Row([Whole(1)]), Table({Whole(2): Real(2)}), True]
    assert json.loads(msgspec.json.encode(to_json(subclasses))) == [7, 7.5, "Infinity", "a", [1], {"2": 2.0}, True]
    assert to_json({Side.LEFT: [Side.LEFT]}) == {"left": ["left"]}
    masked = np.ma.masked_array([[1.0, 2.0], [3.0, np.inf]], mask=[[False, True], [False, False]])
    assert from_json(to_json(masked)) == [[1.0, None], [3.0, "Infinity"]]

    class Mute:
        def __str__(self) -> str:
            raise RuntimeError

    assert "no text can be made" in to_json([Mute()])[0]
    assert [*to_json({Mute(): 1}).values()] == [1]
    assert "no text can be made" in observation_to_json(Mute())["obs_str"]
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(UsageError, match="nested more than"):
        to_json(deep)


def test_pictures_of_pil(monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image").fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    printed = to_json([image])
    seen = from_json(json.loads(json.dumps(printed)))[0]
    assert np.array_equal(np.asarray(seen), np.asarray(image))
    assert base64.b64decode(printed[0]["__pil_image__"]).startswith(b"\x89PNG")
    with pytest.raises(UsageError, match="not a valid image or array"):
        from_json({"__pil_image__": base64.b64encode(b"GIF?").decode()})
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match="pip install pillow"):
        from_json(printed)


BROKEN = [{}, {"data": 1, "dtype": "O2", "shape": []}, {"data": [1], "dtype": "i4", "shape": [2]}, 3]


@pytest.mark.parametrize("broken", BROKEN)
def test_broken_arrays(broken: Any) -> None:
    with pytest.raises(UsageError, match="not a valid image or array"):
        from_json([{"__numpy_array__": broken}])


async def test_shipped_envs_tell_their_splits_and_rules_before_a_reset() -> None:
    async with EnvService() as service:
        await service.create_environments_batch(
            {name: {"env_name": name, "env_config": {}} for name in ("metamathqa", "webshop", "bandit")}
        )
        sizes = [
            await service.get_split_size_batch(["metamathqa", "webshop"], split) for split in ("train", "val", "test")
        ]
        assert [tuple(size.values()) for size in sizes] == [(160, 2435), (20, 1000), (20, 500)]
        assert "phoenix" in (await service.get_system_prompts_batch(["bandit"]))["bandit"]


async def test_a_failed_reset_leaves_no_reward() -> None:
    async with EnvService() as service:
        await service.create_environments_batch({"m": {"env_name": "metamathqa", "env_config": {}}})
        await service.reset_batch({"m": {"seed": 0, "extra_info": 0}})
        await service.step_batch({"m": "no answer at all <answer></answer>"})
        assert await service.compute_reward_batch(["m"]) == {"m": -0.1}
        failed = await service.reset_batch({"m": {"seed": 0, "extra_info": 10**6}})
        assert "error" in failed["m"][1]
        assert await service.compute_reward_batch(["m"]) == {"m": 0.0}


@pytest.mark.parametrize(
    ("options", "is_told"), [({}, True), ({"explain_invalid": True}, True), ({"explain_invalid": False}, False)]
)
async def test_an_observation_begins_with_why_the_last_reply_was_invalid(
    options: dict[str, Any], is_told: bool
) -> None:
    async with EnvService() as service:
        await service.create_environments_batch({"s": config("sokoban", **options)})
        first, _ = (await service.reset_batch({"s": 7}))["s"]
        after, *_, info = (await service.step_batch({"s": "<answer>jump <image></answer>"}))["s"]
        reason = "Your last reply was invalid: not an action: 'jump (image)'.\n" if is_told else ""
        assert after["obs_str"] == reason + first["obs_str"]
        assert info["invalid_reason"] == "not an action: 'jump <image>'"
        valid, *_ = (await service.step_batch({"s": "<answer>Up</answer>"}))["s"]
        assert "invalid" not in valid["obs_str"]


async def test_a_service_says_what_explain_invalid_takes() -> None:
    async with EnvService() as service:
        await service.create_environments_batch({"s": config("sokoban", explain_invalid="no")})
        assert "explain_invalid='no' is neither true nor false" in service.failures["s"]
