"""One env of a service, with VAGEN's calls and return values."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import anyio.to_thread
import msgspec

from asyncrollout.errors import UsageError
from asyncrollout.logs import get_logger
from asyncrollout.pool.handle import EnvHandle
from asyncrollout.service.observations import observation_to_json, to_json
from asyncrollout.text.replies import after_invalid
from asyncrollout.types import STEP_REWARDS, Observation, Outcome, total_reward
from asyncrollout.validation import did_you_mean

log = get_logger(__name__)

Shown = tuple[dict[str, Any], dict[str, Any]]
Stepped = tuple[dict[str, Any], float, bool, dict[str, Any]]

FINAL_REWARD = "compute_reward"
"""The key in an env's info of what `compute_reward` returns, if that is not the sum of its rewards."""

_LONGEST_LOGGED = 200


class ServedEpisode:
    """What is kept of an episode; `trouble` says why it cannot be stepped, if the env's handle does not know."""

    def __init__(self, trouble: str = "") -> None:
        self.trouble = trouble
        self.prompt: str | None = None
        self.earned: list[tuple[float, dict[str, Any]]] = []
        self.final: float | None = None


class ServedEnv:
    """An env with its id. `reward` is the sum since the reset, or its own; `idle_since` is None while it works.

    Unless `explains_invalid` is false, an observation begins with the reason why the last reply was invalid.
    """

    def __init__(
        self, env_id: Any, handle: EnvHandle, config: Mapping[str, Any], *, explains_invalid: bool = True
    ) -> None:
        self.id = env_id
        self.handle = handle
        self.idle_since: float | None = time.monotonic()
        self._own_seed = config.get("seed")
        self._explains_invalid = explains_invalid
        self._episode = ServedEpisode()

    @property
    def reward(self) -> float:
        final = self._episode.final
        return total_reward(self._episode.earned) if final is None else final

    @contextmanager
    def at_work(self) -> Iterator[None]:
        before, self.idle_since = self.idle_since, None
        try:
            yield
        finally:
            if before is not None:  # otherwise another call is in flight, and sets it at its end
                self.idle_since = time.monotonic()

    async def reset(self, given: Any) -> Shown:
        """Reset from a seed, or from `{"seed": ..., "extra_info": ...}`; `extra_info` is the env's task.

        The previous episode is gone, even if this fails.
        """
        self._episode = episode = ServedEpisode("its last reset failed: call reset first")
        seed, task = given, None
        if isinstance(given, Mapping):
            _check_keys("reset", given, ("seed", "extra_info"))
            seed, task = given.get("seed"), given.get("extra_info")
        outcome = await self.handle.reset(seed=self._own_seed if seed is None else seed, task=task)
        shown = await _shown(outcome)
        episode.final = shown[1].pop(FINAL_REWARD, None)
        episode.trouble, episode.prompt = "", outcome.info.get("system_prompt")
        self._episode = episode  # another reset may have failed meanwhile
        return shown

    async def step(self, given: Any) -> Stepped:
        """Step by a reply, or by `{"llm_raw_response": ..., "verbose": ...}`."""
        reply, verbose = given, False
        if isinstance(given, Mapping):
            _check_keys("step", given, ("llm_raw_response", "action", "verbose"))
            if "llm_raw_response" not in given and "action" not in given:
                raise UsageError("step: neither 'llm_raw_response' nor 'action' is given")
            reply, verbose = given.get("llm_raw_response", given.get("action")), bool(given.get("verbose"))
        episode = self._episode  # a reset meanwhile starts another one
        if episode.trouble:
            raise UsageError(f"env {self.handle.name!r} cannot step: {episode.trouble}")
        outcome = await self.handle.step(reply)
        episode.trouble = "its last step failed: call reset first"
        observation, info = await _shown(self._explained(outcome))
        episode.trouble, episode.final = "", info.pop(FINAL_REWARD, None)
        episode.earned.append((outcome.reward, {STEP_REWARDS: outcome.info.get(STEP_REWARDS)}))
        if verbose:
            clipped = str(reply)[:_LONGEST_LOGGED]
            log.info("env_step", env_id=self.id, reply=clipped, reward=outcome.reward, done=outcome.done)
        return observation, outcome.reward, outcome.done, {**_metrics(outcome, reply), **info}

    def _explained(self, outcome: Outcome) -> Outcome:
        reason, seen = outcome.info.get("invalid_reason"), outcome.observation
        if not self._explains_invalid or not isinstance(reason, str) or not isinstance(seen, Observation):
            return outcome
        return msgspec.structs.replace(
            outcome, observation=msgspec.structs.replace(seen, text=after_invalid(seen.text, reason))
        )

    async def system_prompt(self, _: Any = None) -> str:
        episode = self._episode
        if episode.prompt is None:
            episode.prompt = str(await self.handle.call("system_prompt", keep=False))
        return episode.prompt

    async def split_size(self, split: Any) -> int:
        return int(await self.handle.call("get_split_size", split, keep=False))

    async def init_embedder(self, service_url: Any) -> dict[str, Any]:
        status = await self.handle.call("init_embedder", service_url, keep=True)
        return to_json(status) if isinstance(status, Mapping) else {"ok": status is None or bool(status)}


def _metrics(outcome: Outcome, reply: Any) -> dict[str, Any]:
    info = outcome.info
    turn = {key: bool(info.get(key, True)) for key in ("action_is_valid", "action_is_effective")}
    metrics = {"turn_metrics": turn, "traj_metrics": {"success": bool(info.get("success", False))}}
    raw = reply if isinstance(reply, str) else str(reply)
    return {"metrics": metrics, "llm_raw_response": to_json(raw), "llm_response": to_json(raw.strip())}


async def _shown(outcome: Outcome) -> Shown:
    """Observation and info as JSON; images are encoded in a thread."""
    observation = outcome.observation
    if isinstance(observation, Observation) and not observation.images:
        return observation_to_json(observation), to_json(outcome.info)
    return await anyio.to_thread.run_sync(observation_to_json, observation), to_json(outcome.info)


def _check_keys(what: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise UsageError(f"{what}: unknown key {key!r}{did_you_mean(str(key), known)}")
