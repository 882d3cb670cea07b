"""The state of every environment of a training step: histories of states, actions and rewards, turn by turn."""

import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np

from asyncrollout import validation
from asyncrollout.dropin.blocking import Forwarded, OpenedBlocking, blocking
from asyncrollout.dropin.configs import lookup
from asyncrollout.dropin.ragen.env_batch import EnvBatch
from asyncrollout.dropin.ragen.hosting import joined
from asyncrollout.dropin.ragen.seeds import first_free, reserved_seeds
from asyncrollout.dropin.ragen.settings import EnvPlan, Mode, read_plans, read_settings
from asyncrollout.errors import RolloutError, UsageError
from asyncrollout.pool.batch_calls import Result
from asyncrollout.types import STEP_REWARDS, PoolStats

Cache = dict[str, Any]

NO_ACTION = "manager_invalid_action"
"""RAGEN's mark of a state that did not change, because the reply before it named no action."""

INVALID_REASON = "invalid_reason"
"""Our mark, with `agent_proxy.explain_invalid`: why the reply before a state was invalid."""

_NEEDED = {"env_id", "actions"}
_NOT_METRICS = ("error", "instruction", "success")


@dataclass
class EnvStatus:
    """How far an environment is. `truncated` means that it ended without success."""

    truncated: bool = False
    terminated: bool = False
    num_actions: int = 0
    rewards: list[float] = field(default_factory=list)
    seed: int | None = None


class AsyncEnvStateManager:
    """RAGEN's `EnvStateManager` with coroutines; an async context manager.

    `use_multiprocessing` may be changed at any time: environments continue where they are. What runs where makes no
    difference to any result.
    """

    def __init__(self, config: Any, mode: Mode = "train") -> None:
        validation.check_choice("mode", mode, ("train", "val"))
        settings = read_settings(config)
        rules, part = settings.es_manager, settings.part(mode)
        self.sys_config = config
        self.config = lookup(lookup(config, "es_manager"), mode)
        self.mode = mode
        self.env_groups, self.group_size = part.env_groups, part.group_size
        self.base_seed, self.seed_counter = settings.base_seed(mode), 0
        self._reserved = reserved_seeds(settings, mode)
        self.max_workers = settings.workers
        self.use_multiprocessing = settings.is_parallel
        self.format_penalty = abs(rules.format_penalty)
        self._explains_invalid = settings.agent_proxy.explain_invalid
        self.rollout_cache: list[Cache] = []
        self._plans = read_plans(settings, mode)
        self.envs = [_entry(index, plan) for index, plan in enumerate(self._plans)]
        self._fleet = EnvBatch(
            self._plans,
            "TurnEnv",
            workers=self.max_workers,
            parallel=self.use_multiprocessing,
            falls_back=True,
            step_timeout=rules.step_timeout,
            reset_timeout=rules.reset_timeout,
        )

    @property
    def use_parallel(self) -> bool:
        """The older name of `use_multiprocessing`."""
        return self.use_multiprocessing

    @use_parallel.setter
    def use_parallel(self, value: bool) -> None:
        self.use_multiprocessing = value

    @property
    def env_type(self) -> str:
        """The one type of all environments, or "mixed"."""
        types = {plan.env_type for plan in self._plans}
        return types.pop() if len(types) == 1 else "mixed"

    async def __aenter__(self) -> Self:
        await self._fleet.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._fleet.__aexit__(kind, error, trace)

    async def reset(self, seed: int | None = None) -> list[Cache]:
        """New episodes: group g of seed + g. Without a seed, each reset in training takes the next ones.

        Those of validation are left out.
        """
        if seed is None:
            seed = first_free(self.base_seed + self.seed_counter, self.env_groups, self._reserved)
            if self.mode == "train":
                self.seed_counter = seed + self.env_groups - self.base_seed
        seed = validation.check_int("seed", operator.index(seed) if hasattr(seed, "__index__") else seed, 0)
        seeds = [seed + plan.group for plan in self._plans]
        members = [index % self.group_size for index in range(len(self._plans))]
        self._fleet.parallel = self.use_multiprocessing
        results = await self._fleet.reset(seeds, members)
        self.rollout_cache = [self._begin(*found) for found in zip(self.envs, seeds, results, strict=True)]
        return self.rollout_cache

    async def step(self, all_env_inputs: Sequence[Mapping[str, Any]]) -> list[Cache]:
        """Play a turn; the caches of the environments that are not done, in the order of the inputs."""
        inputs = self._read(all_env_inputs)
        stepped = list(inputs)

        def note(place: int, result: Result) -> None:  # while others are still at work
            env_id = stepped[place]
            self._note(self.envs[env_id], self.rollout_cache[env_id], inputs[env_id], result)

        self._fleet.parallel = self.use_multiprocessing
        await self._fleet.step({env_id: joined(given["actions"]) for env_id, given in inputs.items()}, note)
        return [self.rollout_cache[env_id] for env_id in inputs if not self.envs[env_id]["status"].terminated]

    def get_rollout_states(self) -> list[Cache]:
        """The caches of all environments, with their metrics."""
        if not self.rollout_cache:
            raise UsageError("no environment was reset: call reset() first")
        solved: dict[int, bool] = defaultdict(bool)
        for entry in self.envs:
            solved[entry["group_id"]] |= _is_success(entry["status"])
        for entry, cache in zip(self.envs, self.rollout_cache, strict=True):
            history, status = cache["history"], entry["status"]
            reported = _reported(history)
            turns = max(len(history) - 1, 1)
            metrics = {
                "success": float(_is_success(status)),
                "num_actions": status.num_actions,
                f"pass@{self.group_size}": float(solved[entry["group_id"]]),
                **{key: float(np.sum(values)) / turns for key, values in reported.items()},
            }
            history[-1]["metrics"] = reported
            cache["metrics"] = {f"{entry['tag']}/{key}": value for key, value in metrics.items()}
        return self.rollout_cache

    def render(self) -> list[Any]:
        """The present state of each environment: its text, or its pictures."""
        last = [cache["history"][-1] for cache in self.rollout_cache]
        return [item.get("images", item["state"]) for item in last]

    def stats(self) -> PoolStats:
        """How the workers fare, or, without any, the loop."""
        return self._fleet.stats()

    def _read(self, all_env_inputs: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
        """Inputs by environment, without those for environments that are done."""
        if isinstance(all_env_inputs, Mapping | str):
            raise UsageError(
                f"all_env_inputs must be a list, with a dict for each environment: {all_env_inputs!r:.200}"
            )
        if not self.rollout_cache:
            raise UsageError("no environment was reset: call reset() first")
        inputs: dict[int, Mapping[str, Any]] = {}
        known = range(len(self.rollout_cache))
        for given in all_env_inputs:
            if not isinstance(given, Mapping) or not given.keys() >= _NEEDED:
                raise UsageError(f"{given!r:.200} is not the input of an environment: it needs 'env_id' and 'actions'")
            env_id = given["env_id"]
            if env_id not in known:
                raise UsageError(f"env_id={env_id!r}: there are {len(known)} environments, numbered from 0")
            if env_id in inputs:
                raise UsageError(f"env_id={env_id} is in the inputs twice: a turn of an environment is one entry")
            actions = given["actions"]
            is_list = isinstance(actions, Sequence | np.ndarray) and not isinstance(actions, str)
            if not is_list or not all(isinstance(action, str) for action in actions):
                raise UsageError(f"env_id={env_id}: actions={actions!r:.200} is not a list of actions in words")
            inputs[int(env_id)] = given
        return {env_id: given for env_id, given in inputs.items() if not self.envs[env_id]["status"].terminated}

    def _begin(self, entry: dict[str, Any], seed: int, result: Result) -> Cache:
        status = entry["status"] = EnvStatus(seed=seed)
        entry["instruction"], state = "", ""
        cache = {key: entry[key] for key in ("env_id", "group_id", "tag")}
        first: dict[str, Any] = {}
        if isinstance(result, RolloutError):
            status.terminated = status.truncated = True
            first["info"] = {"error": str(result)}
        else:
            entry["instruction"], state = result.info["instruction"], result.observation
        first |= _shown(state, entry["max_actions_per_traj"])
        return {**cache, "history": [first], "penalty": 0}

    def _note(self, entry: dict[str, Any], cache: Cache, given: Mapping[str, Any], result: Result) -> None:
        """A turn was played, or failed: then the error ends the episode, and the state is the last that was seen."""
        status, history = entry["status"], cache["history"]
        if isinstance(result, RolloutError):
            played, reward, info = [], TurnReward(), {"error": str(result), "success": False}
            reason = ""
            state = history[-1].get("images", history[-1]["state"])
            status.terminated = status.truncated = True
        else:
            state, reward = result.observation, TurnReward(result.reward)
            reward.parts = result.info.get(STEP_REWARDS, ())
            info, played = result.info["env_info"], result.info["played"]
            reason = result.info.get("invalid_reason", "")
            if not result.info["is_valid"]:
                cache["penalty"] -= self.format_penalty
            status.terminated = result.done
            status.truncated = result.done and not (result.terminated and info.get("success", False))
        status.num_actions += len(played)
        status.rewards.append(reward)
        said = {key: given.get(key, "") for key in ("llm_response", "llm_raw_response")}
        history[-1].update(actions=played, reward=reward, info=info, **said)
        marks: dict[str, Any] = {NO_ACTION: True} if not played and "error" not in info else {}
        if reason and self._explains_invalid:
            marks[INVALID_REASON] = reason
        history.append(_shown(state, entry["max_actions_per_traj"] - status.num_actions) | marks)


class TurnReward(float):
    """A turn's reward, as RAGEN has it, which also knows those of its single actions if there were several."""

    parts: Sequence[float] = ()


class EnvStateManager(OpenedBlocking[AsyncEnvStateManager]):
    """RAGEN's environment state manager. Close it, or let it go; workers never outlive the program."""

    sys_config = Forwarded[Any]()
    config = Forwarded[Any]()
    envs = Forwarded[list[dict[str, Any]]]()
    rollout_cache = Forwarded[list[Cache]]()
    mode = Forwarded[Mode]()
    env_groups = Forwarded[int]()
    group_size = Forwarded[int]()
    max_workers = Forwarded[int]()
    format_penalty = Forwarded[float]()
    base_seed = Forwarded[int]()
    seed_counter = Forwarded[int]()
    env_type = Forwarded[str]()
    use_multiprocessing = Forwarded[bool]()
    use_parallel = Forwarded[bool]()
    reset = blocking(AsyncEnvStateManager.reset)
    step = blocking(AsyncEnvStateManager.step)
    get_rollout_states = blocking(AsyncEnvStateManager.get_rollout_states)
    render = blocking(AsyncEnvStateManager.render)
    stats = blocking(AsyncEnvStateManager.stats)

    def __init__(self, config: Any, mode: Mode = "train") -> None:
        super().__init__(AsyncEnvStateManager(config, mode))


def _entry(index: int, plan: EnvPlan) -> dict[str, Any]:
    if plan.max_actions is None:
        raise UsageError(
            f"config: custom_envs.{plan.tag}.max_actions_per_traj is missing: how many actions may it take?"
        )
    return {
        "tag": plan.tag,
        "group_id": plan.group,
        "env_id": index,
        "env": None,  # it lives in a worker, or on the loop
        "config": plan.config,
        "status": EnvStatus(),
        "max_actions_per_traj": plan.max_actions,
        "instruction": "",
    }


def _shown(state: Any, actions_left: int) -> dict[str, Any]:
    """A state in a history: text, or pictures and a mark for each."""
    if isinstance(state, str):
        return {"state": state, "actions_left": actions_left}
    pictures = list(state) if isinstance(state, list | tuple) else [state]
    return {"state": "<images>" * len(pictures), "images": pictures, "actions_left": actions_left}


def _is_success(status: EnvStatus) -> bool:
    return status.terminated and not status.truncated


def _reported(history: list[dict[str, Any]]) -> dict[str, list[float]]:
    """The numbers in the infos of all turns."""
    reported: dict[str, list[float]] = defaultdict(list)
    for turn in history:
        for key, value in turn.get("info", {}).items():
            if key not in _NOT_METRICS and isinstance(value, bool | int | float | np.number):
                reported[key].append(float(value))
    return dict(reported)
