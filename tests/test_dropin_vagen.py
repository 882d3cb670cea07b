"""VAGEN's service and client for synchronous trainers: the document's code with its import lines changed only."""

import logging
import math
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from asyncrollout import PoolError, UsageError, registry
from asyncrollout.dropin.vagen import BaseServiceConfig, BatchEnvClient, EnvService, VideoEnvService
from asyncrollout.service.observations import to_json
from tests import seed_service as seed
from tests.envs.service import KNOWN
from tests.scripts.processes import LIMIT
from tests.test_guards import mark, running  # noqa: F401 (a fixture)
from tests.test_service_http import CANARY, serve
from tests.video_files import is_whole

REPLY = "<think>..</think><watch>0-5</watch>"
COUNTER = {"env_name": "counter"}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in KNOWN:
        monkeypatch.setitem(registry._registered, spec.name, spec)
    monkeypatch.delenv("ASYNCROLLOUT_TOKEN", raising=False)


@pytest.fixture(scope="module")
def data_config() -> str:
    """The YAML of generated clips, where the document says path/to/config.yaml."""
    from asyncrollout_envs.video.generate import default_config

    return str(default_config())


def run(block: str, names: dict[str, Any], data_config: str = "") -> None:
    block = re.sub(r"from vagen\.\S+ import", "from asyncrollout.dropin.vagen import", block)
    exec(block.replace("path/to/config.yaml", data_config), names)


@pytest.fixture(scope="module")
def server(data_config: str) -> Iterator[str]:
    """`asyncrollout serve`, which a token opens."""
    options = ("--token", CANARY, "--data-dir", str(Path(data_config).parent))
    with serve(*options) as (_, url):
        yield url


@pytest.fixture
def client(server: str) -> BatchEnvClient:
    return BatchEnvClient(server, token=CANARY)


@pytest.fixture
def workers() -> Callable[[], int]:
    """How many worker processes there are."""
    return lambda: sum("anyio.to_process" in child.cmdline() for child in psutil.Process().children())


# The document


def test_the_document(data_config: str, client: BatchEnvClient, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process and, with a client in the service's place, at a server."""
    names: dict[str, Any] = {}
    run(seed.SETUP, names)
    service = names["video_service"]
    assert (service.max_workers, service.environments, service.env_configs) == (4, {}, {})
    there: dict[str, Any] = {"video_service": client}
    for block in (seed.CREATE, seed.RESET, seed.STEP, seed.ASK):
        run(block, names, data_config)
        run(block, there, data_config)
    assert [info["split"] for _, info in names["reset_results"].values()] == ["train", "test"]
    for observation, reward, done, info in names["step_results"].values():
        assert info["metrics"]["turn_metrics"] == {"action_is_valid": True, "action_is_effective": True}
        assert (type(reward), done, len(observation["multi_modal_data"]["<image>"])) == (float, False, 8)
    assert all("<watch>" in prompt for prompt in names["prompts"].values())
    assert names["train_sizes"]["env_0"] > names["test_sizes"]["env_0"] > 0
    assert [status["ok"] for status in names["embedder_status"].values()] == [False, False]
    assert names["rewards"] == {env_id: result[1] for env_id, result in names["step_results"].items()}
    for told in ("prompts", "train_sizes", "test_sizes", "rewards"):
        assert there[told] == names[told]
    first, again = names["step_results"], there["step_results"]
    assert {env_id: result[1:3] for env_id, result in again.items()} == {
        env_id: result[1:3] for env_id, result in first.items()
    }
    (image, *_) = again["env_0"][0]["multi_modal_data"]["<image>"]
    assert isinstance(image, Image.Image)
    assert again["env_0"][0]["obs_str"] == first["env_0"][0]["obs_str"]

    capsys.readouterr()
    for place in (names, there):
        run(seed.ERRORS, place)
        told = capsys.readouterr().out
        assert "Environment env_0 reset successfully\n" in told
        assert "Environment invalid_env failed: Environment invalid_env not found\n" in told
        run(seed.CLOSE, place)
    assert service.environments == service.env_configs == client.env_configs == {}
    assert client.check_server_health()["active_environments"] == 0


def test_the_document_s_training_manager() -> None:
    names: dict[str, Any] = {}
    run(seed.SETUP + seed.MANAGER, names)
    documented: Any = names["VideoTrainingManager"]

    class Manager(documented):  # type: ignore[misc]
        def setup_environments(self, num_envs: int) -> None:  # which the document leaves out
            configs = {f"env_{number}": {"env_name": "video"} for number in range(num_envs)}
            self.service.create_environments_batch(configs)

    manager = Manager(num_envs=3, max_workers=2)
    seeds = {f"env_{number}": number for number in range(3)}
    assert [*manager.reset_environments(seeds)] == [*seeds]
    data = manager.collect_batch_data(dict.fromkeys(seeds, REPLY))
    assert [result[3]["action_content"] for result in data.values()] == ["0-5"] * 3


# The service


def test_workers_start_with_the_first_envs_and_end_with_the_last(workers: Callable[[], int]) -> None:
    service = EnvService(BaseServiceConfig(max_workers=2))
    assert service.reset_batch({"a": 1}) == {"a": ({}, {"error": "Environment a not found"})}
    assert workers() == 0
    for _ in range(2):
        service.create_environments_batch({"a": COUNTER, "b": COUNTER, "c": {"env_name": "countr"}})
        assert workers() == 2
        assert {*service.environments} == {*service.env_configs} == {"a", "b"}
        assert "did you mean 'counter'" in service.failures["c"]
        service.reset_batch({"a": 40})
        assert service.step_batch({"a": 2})["a"][0]["data"] == service.step_batch({"b": 2, "a": 0})["a"][0]["data"]
        service.close_batch(["b", "nobody"])
        assert ([*service.environments], workers()) == (["a"], 2)
        service.close_batch()
        service.close_batch()
        assert (service.environments, workers()) == ({}, 0)


def test_one_kind_of_env_alone_and_nothing_at_all(workers: Callable[[], int]) -> None:
    service = VideoEnvService(BaseServiceConfig(max_workers=1))
    service.create_environments_batch({})
    assert workers() == 0
    service.create_environments_batch({"a": COUNTER})
    assert service.failures == {"a": "Expected environment type 'video', got 'counter'"}
    with pytest.raises(UsageError, match="max_workers=0"):
        EnvService(max_workers=0)
    with pytest.raises(UsageError, match=r"a dict of ids and values, not \['a'\]"):
        service.reset_batch(["a"])  # type: ignore[arg-type]


def test_threads_share_a_service(workers: Callable[[], int]) -> None:
    service = EnvService(max_workers=1)

    def play(env_id: int) -> Any:
        service.create_environments_batch({env_id: {"env_name": "light_text"}})
        service.reset_batch({env_id: 1})
        return service.step_batch({env_id: "<answer>2</answer>"})[env_id][0]

    with ThreadPoolExecutor(8) as threads:
        seen = [*threads.map(play, range(16))]
    assert seen == [seen[0]] * 16
    assert "error" not in seen[0]
    assert [*service.compute_reward_batch(range(16)).values()] == [service.compute_reward_batch([0])[0]] * 16
    assert workers() == 1


async def test_a_service_works_where_a_loop_is_running() -> None:
    """As in a notebook."""
    service = EnvService(max_workers=1)
    service.create_environments_batch({"a": {"env_name": "light_text"}})
    assert "error" not in service.reset_batch({"a": 1})["a"][1]
    service.close_batch()


def test_what_was_never_closed_is_gone_at_exit(mark: str, tmp_path: Path) -> None:  # noqa: F811
    """Of VAGEN's and of RLinf's interfaces; videos are whole."""
    with running("sync_unclosed.py", str(tmp_path)) as process:
        out, err = process.communicate(timeout=2 * LIMIT)
    assert (process.returncode, err) == (0, "")
    told = [line for line in out.splitlines() if "episode_ended" not in line]
    videos = ["behavior_video_rank0_gpu0_env0.mp4", "behavior_video_rank0_gpu0_env1.mp4"]
    assert told == ["total 12", "error", str(videos)]
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == [*videos, f"own/{videos[0]}"]
    assert all(is_whole(tmp_path / name) for name in left)


# The client


def test_rewards_that_json_has_not(client: BatchEnvClient, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"results": {"a": [{}, "-Infinity", False, {}]}, "rewards": {"a": "NaN"}}
    monkeypatch.setattr(client, "_post", lambda *_: told)
    assert client.step("a", "")[1] == -math.inf
    assert math.isnan(client.compute_reward("a"))


def test_calls_of_one_env(client: BatchEnvClient) -> None:
    assert (client.timeout, client.max_workers) == (600, 10)
    assert client.wait_for_server() is True
    client.create_environments_batch({7: {"env_name": "frozen_lake"}, "x": {"env_name": "frozen_lak"}})
    assert [*client.env_configs] == [7]
    service = EnvService(max_workers=1)
    service.create_environments_batch({7: {"env_name": "frozen_lake"}})
    observation, info = client.reset(7, np.int64(3))
    assert to_json([observation, info]) == to_json(service.reset_batch({7: 3})[7])
    reply = "<think>..</think><answer>Right</answer>"
    assert to_json(client.step(7, reply)) == to_json(service.step_batch({7: reply})[7])
    assert client.compute_reward(7) == service.compute_reward_batch([7])[7]
    assert client.get_system_prompt(7) == service.get_system_prompts_batch([7])[7] != ""
    assert "did you mean 'frozen_lake'" in client.reset("x")[1]["error"]
    client.close(7)
    assert client.reset(7) == ({}, {"error": "Environment 7 not found"})


def test_what_is_wrong_with_all_envs_is_raised(client: BatchEnvClient, server: str) -> None:
    with pytest.raises(UsageError, match=r"/environments: status 400: a: .*did you mean 'frozen_lake'"):
        client.create_environments_batch({"a": {"env_name": "frozen_lak"}})
    stranger = BatchEnvClient(f"{server}/", token="nobody-knows-this-one")
    assert stranger.check_server_health()["status"] == "ok"
    with pytest.raises(UsageError, match="status 401") as caught:
        stranger.reset_batch({"a": 1})
    assert "nobody-knows" not in str(caught.value)
    with pytest.raises(UsageError, match="write it as http://host:8200"):
        BatchEnvClient("localhost:8200")


def test_what_a_newcomer_passes_is_named() -> None:
    with pytest.raises(UsageError, match=r"config must be a BaseServiceConfig or a dict, such as .*, not 4"):
        EnvService(4)  # type: ignore[arg-type]
    service = EnvService(max_workers=1)
    try:
        service.create_environments_batch({"env_0": {"env_name": "bandit"}})
        calls: list[Callable[[Any], Any]] = [
            service.close_batch,
            service.get_system_prompts_batch,
            service.compute_reward_batch,
        ]
        for call in [*calls, service.get_split_size_batch, service.init_embedder_batch]:
            with pytest.raises(UsageError, match=r"ids must be a list, such as \['env_0'\], not 'env_0'"):
                call("env_0")
        assert [*service.environments] == ["env_0"]
    finally:
        service.close_batch()


def test_a_server_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        client = BatchEnvClient(url, timeout=0.1)
        with pytest.raises(PoolError, match=rf"{url}/batch/step gave no answer within 0.1 s"):
            client.step_batch({"a": "left"})
        assert client.wait_for_server(1) is False
    with caplog.at_level(logging.INFO, "asyncrollout"):
        assert client.wait_for_server(max_retries=3, retry_delay=0.0) is False
    assert caplog.text.count("waiting_for_server") == 3
    health = client.check_server_health()
    assert (health["status"], url in health["message"]) == ("error", True)
    with pytest.raises(PoolError, match=rf"{url}/batch/reset cannot be asked"):
        client.reset("a")
