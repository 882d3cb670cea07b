"""RAGEN's configuration, from any kind of object; errors name the key and what to do."""

import logging
import os
from typing import Annotated, Any, Literal

import msgspec

from asyncrollout.dropin.configs import plain
from asyncrollout.dropin.ragen import envs
from asyncrollout.dropin.ragen.env_keys import KNOWN_TAGS, REFUSED_TYPES, our_env, shares_problem
from asyncrollout.errors import UsageError
from asyncrollout.registry import EnvSpec, find_env
from asyncrollout.rewards import Grouping, Method
from asyncrollout.types import Placement
from asyncrollout.validation import did_you_mean

logger = logging.getLogger(__name__)

Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Mode = Literal["train", "val"]

_SEED, _VAL_SEED = 42, 123
_MOST_WORKERS = 8


class EnvConfigs(msgspec.Struct, frozen=True):
    tags: Annotated[list[str], msgspec.Meta(min_length=1)]
    n_groups: list[Count] | None = None


class ModeSettings(msgspec.Struct, frozen=True):
    """The environments of one mode."""

    env_groups: Count
    env_configs: EnvConfigs
    group_size: Count = 1


class EsManager(msgspec.Struct, frozen=True):
    train: ModeSettings
    val: ModeSettings | None = None
    format_penalty: float = 0.1
    use_multiprocessing: bool = True
    max_workers: Count | None = None
    sequential_env_types: list[str] = []
    step_timeout: Seconds = 60.0
    reset_timeout: Seconds = 120.0


class CustomEnv(msgspec.Struct, frozen=True):
    """What a tag stands for."""

    env_type: str
    max_actions_per_traj: Count | None = None
    env_config: dict[str, Any] | None = None
    env_instruction: str = ""


class RewardNormalization(msgspec.Struct, frozen=True):
    grouping: Grouping = "state"
    method: Method = "identity"


class AgentProxy(msgspec.Struct, frozen=True):
    max_turn: Count = 5
    action_sep: Annotated[str, msgspec.Meta(min_length=1)] = "||"
    max_actions_per_turn: Count = 5
    use_turn_scores: bool = False
    reward_normalization: RewardNormalization = RewardNormalization()


class FilterGroups(msgspec.Struct, frozen=True):
    enable: bool = False
    max_num_gen_batches: Count = 10
    on_exhausted: Literal["fill", "short", "raise"] = "fill"


class Algorithm(msgspec.Struct, frozen=True):
    filter_groups: FilterGroups = FilterGroups()


class Data(msgspec.Struct, frozen=True):
    train_batch_size: Count | None = None
    max_prompt_length: Count = 2048


class SeedSettings(msgspec.Struct, frozen=True):
    train: int | None = None
    val: int | None = None


class Settings(msgspec.Struct, frozen=True):
    """What of RAGEN's configuration matters here; other keys are left alone."""

    es_manager: EsManager
    custom_envs: dict[str, CustomEnv] = {}
    agent_proxy: AgentProxy = AgentProxy()
    algorithm: Algorithm = Algorithm()
    data: Data = Data()
    seed: int | SeedSettings | None = None
    use_parallel_envs: bool = True

    def part(self, mode: Mode) -> ModeSettings:
        part: ModeSettings | None = getattr(self.es_manager, mode)
        if part is None:
            raise UsageError(f"config: es_manager.{mode} is missing: say how many of which tags")
        return part

    def base_seed(self, mode: Mode) -> int:
        """The first seed of a mode; validation has its own, unless it is said."""
        given = getattr(self.seed, mode) if isinstance(self.seed, SeedSettings) else self.seed
        if mode == "val":
            return given if isinstance(self.seed, SeedSettings) and given is not None else _VAL_SEED
        return _SEED if given is None else given

    @property
    def workers(self) -> int:
        return self.es_manager.max_workers or min(_MOST_WORKERS, os.cpu_count() or 1)


class EnvPlan(msgspec.Struct, frozen=True):
    """One environment to be opened."""

    tag: str
    env_type: str
    group: int
    config: dict[str, Any]
    mode: Mode = "train"
    max_actions: int | None = None
    options: dict[str, Any] = {}  # of the text interface: how actions are separated
    on_loop: bool = False

    def spec(self, host: str) -> EnvSpec:
        """For the pool, as a `StepEnv` or a `TurnEnv`."""
        env_class = envs.REGISTERED_ENVS[self.env_type]
        is_ours = isinstance(env_class, type) and issubclass(env_class, envs.RagenEnv)
        usual: Placement = find_env(env_class.env_type).runs if is_ours else "cpu"
        runs = "light" if self.on_loop else getattr(env_class, "runs", None) or usual
        more = {**self.options, **({"split": "val"} if self.mode == "val" else {})} if is_ours else {}
        kwargs = {
            "make_env": env_class,
            "make_config": envs.REGISTERED_ENV_CONFIGS[self.env_type],
            "config": {**more, **self.config},
            "mode": self.mode,
            "max_actions": self.max_actions,
        }
        factory = f"asyncrollout.dropin.ragen.hosting:{host}"
        return EnvSpec(name=self.tag, factory=factory, kwargs=kwargs, runs=runs)


def read_settings(config: Any) -> Settings:
    """From a dict, or anything with the same keys as attributes."""
    if isinstance(config, Settings):
        return config
    found = plain(config)
    if not isinstance(found, dict) or "es_manager" not in found:
        raise UsageError("config: es_manager is missing: it says how many envs of which tags there are")
    try:
        return msgspec.convert(found, Settings)
    except msgspec.ValidationError as error:
        raise UsageError(f"config: {error}".replace("$.", "").replace("`", "'")) from error


def read_plans(settings: Settings, mode: Mode) -> list[EnvPlan]:
    """The environments of a mode, in the order of their ids."""
    part = settings.part(mode)
    configs, groups = part.env_configs, _group_counts(part, mode)
    sequential = {our_env(name) for name in settings.es_manager.sequential_env_types}
    talk = settings.agent_proxy
    options = {"separator": talk.action_sep, "max_actions_per_turn": talk.max_actions_per_turn}
    plans: list[EnvPlan] = []
    for place, (tag, count) in enumerate(zip(configs.tags, groups, strict=True)):
        custom = _custom_env(settings, tag, f"es_manager.{mode}.env_configs.tags[{place}]")
        env_type = registered_type(custom.env_type, f"custom_envs.{tag}.env_type")
        for _ in range(count):
            group = len(plans) // part.group_size
            plan = EnvPlan(
                tag,
                env_type,
                group,
                custom.env_config or {},
                mode,
                custom.max_actions_per_traj,
                {**options, "max_actions_per_traj": custom.max_actions_per_traj},
                on_loop=env_type in sequential,
            )
            plans += [plan] * part.group_size
    return plans


def registered_type(name: str, key: str) -> str:
    """An env type by its name in `REGISTERED_ENVS`, or by another name that RAGEN has for it."""
    for known in (name, our_env(name)):
        if known in envs.REGISTERED_ENVS and known in envs.REGISTERED_ENV_CONFIGS:
            return str(known)
    if name.lower() in REFUSED_TYPES:
        raise UsageError(f"{key}: env type {name!r} is not shipped: {REFUSED_TYPES[name.lower()]}")
    raise UsageError(f"{key}: no env type is called {name!r}{did_you_mean(name, envs.REGISTERED_ENVS)}")


def _custom_env(settings: Settings, tag: str, key: str) -> CustomEnv:
    if tag in settings.custom_envs:
        return settings.custom_envs[tag]
    if tag in KNOWN_TAGS:
        return msgspec.convert(KNOWN_TAGS[tag], CustomEnv)
    known = [*settings.custom_envs, *KNOWN_TAGS]
    raise UsageError(f"config: {key}: custom_envs does not define {tag!r}{did_you_mean(tag, known)}")


def _group_counts(part: ModeSettings, mode: Mode) -> list[int]:
    """The number of groups of each tag."""
    key, configs = f"es_manager.{mode}", part.env_configs
    given = configs.n_groups or [1] * len(configs.tags)
    if problem := shares_problem(given, len(configs.tags), part.env_groups):
        raise UsageError(f"config: {key}.env_configs.n_groups: {problem}")
    total = sum(given)
    if part.env_groups != total:
        logger.info("%s: n_groups %s are taken as shares of env_groups, %d", key, given, part.env_groups)
    return [count * part.env_groups // total for count in given]
