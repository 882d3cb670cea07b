"""RAGEN's configuration, from any kind of object; errors name the key and what to do."""

import difflib
import logging
import os
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from asyncrollout.dropin.configs import Part, converted, lookup, plain
from asyncrollout.dropin.ragen import envs
from asyncrollout.dropin.ragen.env_keys import KNOWN_TAGS, REFUSED_TYPES, our_env, played_config, shares_problem
from asyncrollout.errors import UsageError
from asyncrollout.registry import EnvSpec, find_env
from asyncrollout.rewards import Grouping, Method
from asyncrollout.types import Placement
from asyncrollout.validation import did_you_mean

logger = logging.getLogger(__name__)

Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Mode = Literal["train", "val"]

FORMAT_PENALTY = 0.1

_SEED, _VAL_SEED = 42, 123
_MOST_WORKERS = 8
_NEARLY = 0.85  # a key of the trainer's own hardly comes as close to one of ours


class EnvConfigs(Part, frozen=True):
    tags: Annotated[list[str], msgspec.Meta(min_length=1)]
    n_groups: list[Count] | None = None


class ModeSettings(Part, frozen=True):
    """The environments of one mode; without `env_groups`, those of `n_groups`."""

    env_configs: EnvConfigs
    env_groups: Count = 1
    group_size: Count = 1


class EsManager(Part, frozen=True):
    """`use_parallel_execution` is an older name of `use_multiprocessing`; without workers, everything is sequential."""

    train: ModeSettings | None = None
    val: ModeSettings | None = None
    format_penalty: float = FORMAT_PENALTY
    use_multiprocessing: bool = True
    use_parallel_execution: bool = True
    max_workers: Annotated[int, msgspec.Meta(ge=0)] | None = None
    sequential_env_types: tuple[str, ...] = ()
    step_timeout: Seconds = 60.0
    reset_timeout: Seconds = 120.0


class CustomEnv(Part, frozen=True):
    """What a tag stands for; `parallel_friendly` and `max_workers` configure RAGEN's threads, which are not used."""

    env_type: str
    max_actions_per_traj: Count | None = None
    env_config: dict[str, Any] | None = None
    env_instruction: str | None = None
    max_tokens: Count | None = None
    grid_vocab: dict[str, str] | None = None
    action_lookup: dict[Any, str] | None = None
    observation_format: str | None = None
    parallel_friendly: bool | None = None
    max_workers: int | None = None

    def option(self, name: str) -> Any:
        """A setting of the tag itself, or of its `env_config`."""
        own = getattr(self, name, None)
        return (self.env_config or {}).get(name) if own is None else own


class RewardNormalization(Part, frozen=True):
    grouping: Grouping = "state"
    method: Method = "identity"


class AgentProxy(Part, frozen=True):
    """`batch_adjust_mode` is for the trainer.

    `explain_invalid` is ours: a turn begins with why the last reply was invalid.
    """

    max_turn: Count = 5
    action_sep: Annotated[str, msgspec.Meta(min_length=1)] = "||"
    max_actions_per_turn: Count = 5
    use_turn_scores: bool = False
    enable_think: bool = True
    format_penalty: float | None = None
    context_window_mode: Literal["full", "limited_multi_turn", "single_turn"] | None = None
    max_context_window: int | None = None
    batch_adjust_mode: str | None = None
    explain_invalid: bool = False
    reward_normalization: RewardNormalization = RewardNormalization()

    @property
    def window(self) -> int | None:
        """How many turns a model sees, or None for all."""
        given = self.max_context_window
        if self.context_window_mode == "full":
            return None
        if given is None and self.context_window_mode is not None:
            return 1
        return given if given is not None and given > 0 else None


class FilterGroups(msgspec.Struct, frozen=True):
    enable: bool = False
    max_num_gen_batches: Annotated[int, msgspec.Meta(ge=0)] = 10
    on_exhausted: Literal["fill", "short", "raise"] = "fill"

    def __post_init__(self) -> None:
        if self.max_num_gen_batches == 0:  # verl's way of writing no bound
            msgspec.structs.force_setattr(self, "max_num_gen_batches", sys.maxsize)


class Algorithm(msgspec.Struct, frozen=True):
    filter_groups: FilterGroups = FilterGroups()


class Data(msgspec.Struct, frozen=True):
    """Without `max_prompt_length`, null, prompts are as wide as the longest of them."""

    train_batch_size: Count | None = None
    max_prompt_length: Count | None = 2048


class SeedSettings(Part, frozen=True):
    train: int | None = None
    val: int | None = None


class ModelLengths(msgspec.Struct, frozen=True):
    """Of the many keys of `actor_rollout_ref.rollout`, those that say what a model is asked."""

    response_length: Count | None = None
    max_model_len: Count | None = None


class ActorRolloutRef(msgspec.Struct, frozen=True):
    rollout: ModelLengths = ModelLengths()


class CollapseDetection(msgspec.Struct, frozen=True):
    first_turn_enabled: bool = False
    multi_turn_enabled: bool = False


class Settings(msgspec.Struct, frozen=True):
    """The parts of RAGEN's configuration that are read here; the others are the trainer's."""

    es_manager: EsManager
    custom_envs: dict[str, Any] = {}
    agent_proxy: AgentProxy = AgentProxy()
    algorithm: Algorithm = Algorithm()
    data: Data = Data()
    actor_rollout_ref: ActorRolloutRef = ActorRolloutRef()
    collapse_detection: CollapseDetection = CollapseDetection()
    seed: int | SeedSettings | None = None
    use_parallel_envs: bool = True
    enable_response_mask: bool = True

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
        given = self.es_manager.max_workers
        return min(_MOST_WORKERS, os.cpu_count() or 1) if given is None else given

    @property
    def is_parallel(self) -> bool:
        rules = self.es_manager
        return self.use_parallel_envs and rules.use_multiprocessing and rules.use_parallel_execution

    def custom_env(self, tag: str, key: str) -> CustomEnv:
        """What a tag stands for: as `custom_envs` says, or RAGEN's own files; `key` is where the tag is named."""
        if tag not in self.custom_envs and tag not in KNOWN_TAGS:
            known = [*self.custom_envs, *KNOWN_TAGS]
            raise UsageError(f"config: {key}: custom_envs does not define {tag!r}{did_you_mean(tag, known)}")
        given = self.custom_envs.get(tag, KNOWN_TAGS.get(tag))
        return converted(given, CustomEnv, f"custom_envs.{tag}")


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
        is_ours = envs.is_shipped(env_class)
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
    """From a dict, or anything with the same keys as attributes; only the parts that matter here are looked at."""
    if isinstance(config, Settings):
        return config
    if isinstance(config, str | os.PathLike):
        raise UsageError(
            f"config: found {config!r:.100}, a file's name: give what is in it, as yaml.safe_load reads it"
        )
    found = {name: lookup(config, name) for name in Settings.__struct_fields__}
    rollout = lookup(found["actor_rollout_ref"], "rollout")
    found["actor_rollout_ref"] = {"rollout": {name: lookup(rollout, name) for name in ModelLengths.__struct_fields__}}
    given = {name: plain(value) for name, value in found.items() if value is not None}
    if not isinstance(given.get("es_manager"), dict):
        raise UsageError("config: es_manager is missing: it says how many envs of which tags there are")
    for name in set(config if isinstance(config, Mapping) else vars(config)) - found.keys():
        if close := difflib.get_close_matches(str(name), found, n=1, cutoff=_NEARLY):
            raise UsageError(f"config: {name!r} is not a known key: did you mean {close[0]!r}?")
    return converted(_completed(given), Settings, "")


def _completed(given: dict[str, Any]) -> dict[str, Any]:
    """With what follows from other keys: the number of groups, and a penalty that stands in the wrong part."""
    rules = dict(given["es_manager"])
    for mode in ("train", "val"):
        part = rules.get(mode)
        configs = part.get("env_configs") if isinstance(part, dict) else None
        if isinstance(part, dict) and isinstance(configs, dict) and part.get("env_groups") is None:
            counts = configs.get("n_groups") or [1 for _ in configs.get("tags") or ()]
            is_counted = isinstance(counts, list) and counts and all(isinstance(count, int) for count in counts)
            rules[mode] = {**part, "env_groups": sum(counts) if is_counted else 1}
    penalty, usual = lookup(given.get("agent_proxy", {}), "format_penalty"), rules.get("format_penalty")
    if penalty is not None and usual is None:
        rules["format_penalty"] = penalty
    elif isinstance(penalty, int | float) and isinstance(usual, int | float) and abs(penalty) != abs(usual):
        raise UsageError(
            f"config: agent_proxy.format_penalty={penalty} and es_manager.format_penalty={usual} mean the same: give "
            "one of them"
        )
    return {**given, "es_manager": rules}


def read_plans(settings: Settings, mode: Mode) -> list[EnvPlan]:
    """The environments of a mode, in the order of their ids."""
    part = settings.part(mode)
    configs, groups = part.env_configs, _group_counts(part, mode)
    sequential = {our_env(name) for name in settings.es_manager.sequential_env_types}
    talk = settings.agent_proxy
    options = {"separator": talk.action_sep, "max_actions_per_turn": talk.max_actions_per_turn}
    plans: list[EnvPlan] = []
    for place, (tag, count) in enumerate(zip(configs.tags, groups, strict=True)):
        custom = settings.custom_env(tag, f"es_manager.{mode}.env_configs.tags[{place}]")
        env_type = registered_type(custom.env_type, f"custom_envs.{tag}.env_type")
        is_ours = envs.is_shipped(envs.REGISTERED_ENVS[env_type])
        config = played_config(msgspec.structs.asdict(custom)) if is_ours else custom.env_config or {}
        for _ in range(count):
            group = len(plans) // part.group_size
            plan = EnvPlan(
                tag,
                env_type,
                group,
                config,
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
