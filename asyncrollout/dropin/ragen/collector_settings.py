"""What a collector reads of RAGEN's or verl-agent's configuration."""

from typing import Any, Literal

import msgspec

from asyncrollout.dropin.configs import plain
from asyncrollout.dropin.ragen.settings import FORMAT_PENALTY, Algorithm, Count, RewardNormalization
from asyncrollout.dropin.ragen.tokens import Truncation
from asyncrollout.errors import UsageError

_MOST_TURNS = 50
_LONGEST_PROMPT = 2048
_SECTIONS = ("env", "agent_proxy", "es_manager", "algorithm", "data")


class CollectorEnv(msgspec.Struct, frozen=True):
    max_steps: Count | None = None


class CollectorData(msgspec.Struct, frozen=True):
    train_batch_size: Count | None = None
    max_prompt_length: Count | None = None
    truncation: Truncation = "error"
    return_raw_chat: bool = False
    apply_chat_template_kwargs: dict[str, Any] = {}


class Turns(msgspec.Struct, frozen=True):
    """RAGEN's `agent_proxy`, as far as collectors have to do with it."""

    max_turn: Count | None = None
    use_turn_scores: bool = False
    format_penalty: float | None = None
    reward_normalization: RewardNormalization = RewardNormalization()


class Formats(msgspec.Struct, frozen=True):
    """RAGEN's `es_manager`, as far as collectors have to do with it."""

    format_penalty: float | None = None


class Scoring(msgspec.Struct, frozen=True):
    """How `rm_scores` follow from rewards: of whole episodes, normalized, or of single turns, as they are."""

    of: Literal["episodes", "turns"]
    penalty: float
    normalization: RewardNormalization


class CollectorSettings(msgspec.Struct, frozen=True):
    env: CollectorEnv = CollectorEnv()
    agent_proxy: Turns | None = None
    es_manager: Formats | None = None
    algorithm: Algorithm = Algorithm()
    data: CollectorData = CollectorData()

    @property
    def turns(self) -> int:
        return self.env.max_steps or (self.agent_proxy or Turns()).max_turn or _MOST_TURNS

    @property
    def longest_prompt(self) -> int:
        return self.data.max_prompt_length or _LONGEST_PROMPT

    @property
    def penalty(self) -> float:
        """Of a reply that cannot be read. In verl-agent the trainer subtracts its own."""
        if self.es_manager is None:
            return 0.0
        parts = (self.es_manager, self.agent_proxy)
        given = [part.format_penalty for part in parts if part is not None and part.format_penalty is not None]
        return abs(given[0]) if given else FORMAT_PENALTY

    @property
    def scoring(self) -> Scoring | None:
        """RAGEN's. verl-agent has none: its reward manager makes scores of `episode_rewards`."""
        if self.agent_proxy is None and self.es_manager is None:
            return None
        talk = self.agent_proxy or Turns()
        return Scoring("turns" if talk.use_turn_scores else "episodes", self.penalty, talk.reward_normalization)


def read_collector_settings(config: Any) -> CollectorSettings:
    """From a dict, or anything with the same keys as attributes; other sections are not looked at."""
    found = {name: plain(section) for name in _SECTIONS if (section := _section(config, name)) is not None}
    try:
        return msgspec.convert(found, CollectorSettings)
    except msgspec.ValidationError as error:
        raise UsageError(f"config: {error}".replace("$.", "").replace("`", "'")) from error


def _section(config: Any, name: str) -> Any:
    get = getattr(config, "get", None)
    return get(name) if callable(get) else getattr(config, name, None)
