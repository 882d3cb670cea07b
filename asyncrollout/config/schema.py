"""The keys of a configuration as typed structs; names and defaults are those of `Rollouts` and its parts.

Tests compare those that mirror a function or a class with it.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from asyncrollout.errors import UsageError
from asyncrollout.rollouts.episode.group import Failures
from asyncrollout.telemetry.sinks import SinkName
from asyncrollout.trajectories import Limits
from asyncrollout.types import Placement, Sampling

FromZero = Annotated[int, Meta(ge=0)]
FromOne = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Rate = Annotated[float, Meta(ge=0, le=1)]
FrameRate = Annotated[float, Meta(gt=0, le=1000)]
Text = Annotated[str, Meta(min_length=1)]
Url = Annotated[
    str,
    Meta(
        pattern=r"^https?://[^\s@?#]+\Z",
        description="an address with http:// or https://, such as http://localhost:8000/v1, "
        "and with neither password nor query in it",
        extra={"hidden": True},
    ),
]
VariableName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Z_][A-Z0-9_]*\Z",
        description="the name of an environment variable, in capitals, and never the key itself",
        extra={"hidden": True},
    ),
]
EnvName = Annotated[str, Meta(min_length=1, description="the name of an env (such as frozen_lake)")]
ImportPath = Annotated[str, Meta(pattern=r"^[\w.]+:[\w.]+\Z", description="an import path such as 'module:function'")]
# A list, since msgspec 0.22 crashes on a tuple of two beside a number with bounds.
Latency = Amount | Annotated[list[Amount], Meta(min_length=2, max_length=2, description="a pair such as [0.1, 0.5]")]

_GYMNASIUM = "gymnasium:"


class ConfigPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping of the file."""


class EvalOptions(ConfigPart, frozen=True):
    """What an evaluation plays of an env that has splits; null leaves it to `env_kwargs`."""

    split: Text | None = "test"


class EnvEntry(ConfigPart, frozen=True):
    """An env, or one of several, as `Share`; `runs` overrules where its kind of env runs."""

    env: EnvName
    tag: str = ""
    share: Positive = 1.0
    env_kwargs: dict[str, Any] = {}
    runs: Placement | None = None
    eval: EvalOptions = EvalOptions()


Entries = Annotated[list[EnvEntry], Meta(min_length=1, description="a list of envs with tags and shares")]


class Solver(ConfigPart, frozen=True, tag_field="kind", tag="solver"):
    """`SolverPolicy`: the env's own expert."""

    error_rate: Rate = 0.0
    latency: Latency = 0.0
    seed: FromZero = 0

    def __post_init__(self) -> None:
        if isinstance(self.latency, list) and self.latency[0] > self.latency[1]:
            raise UsageError(f"latency: found {self.latency}, expected the least before the most")


class Scripted(ConfigPart, frozen=True, tag_field="kind", tag="scripted"):
    """`ScriptedPolicy`: replies from a list."""

    replies: Annotated[list[str], Meta(min_length=1)]


class Calls(ConfigPart, frozen=True):
    """How a language model is asked."""

    mode: Literal["chat", "completions"] = "chat"
    sampling: Sampling = Sampling()
    logprobs: bool = True
    attempts: FromOne = 8
    attempt_seconds: Positive = 600.0
    seconds: Positive = 1_800.0


class OpenAI(Calls, frozen=True, kw_only=True, tag_field="kind", tag="openai"):
    """`OpenAIPolicy`; its `kind` is `server` here, and its key is in the environment variable `api_key_env`."""

    base_url: Url | Annotated[list[Url], Meta(min_length=1, description="a list of them")]
    model: Text
    api_key_env: VariableName = "OPENAI_API_KEY"
    server: Literal["openai", "vllm", "sglang", "llamacpp"] | None = None
    concurrency: Literal["adaptive"] | FromOne = "adaptive"
    max_concurrency: FromOne = 4096
    wait_for_server: Positive = 10.0
    version: FromZero = 0


class Local(Calls, frozen=True, tag_field="kind", tag="local"):
    """`local_llm`: a small model on this machine; `model` is a GGUF file."""

    model: Text | None = None
    parallel: FromOne = 4
    context: FromOne = 2048


class Chat(ConfigPart, frozen=True):
    """`ChatAgent`, as far as YAML can say it."""

    history: FromZero | None = None
    template: Literal["plain", "bare", "ragen"] = "plain"
    system_prompt: str | None = None
    sampling: Sampling = Sampling()
    seeded: bool = True


class Filter(ConfigPart, frozen=True, tag_field="name"):
    """A filter of `asyncrollout.filters`."""

    @property
    def call(self) -> tuple[str, dict[str, Any]]:
        """The function's name, and its arguments; without any, the function itself is the filter."""
        arguments = msgspec.to_builtins(self)
        return arguments.pop("name"), arguments


class RewardVaries(Filter, frozen=True, tag="reward_varies"):
    singleton: Literal["drop", "keep"] = "drop"


class SuccessBetween(Filter, frozen=True, tag="success_between"):
    low: Rate
    high: Rate

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise UsageError(f"low: found {self.low}, expected a number up to high, which is {self.high}")


class MinValid(Filter, frozen=True, tag="min_valid"):
    k: FromOne


class NotTruncated(Filter, frozen=True, tag="not_truncated"):
    pass


class TopStd(Filter, frozen=True, tag="top_std"):
    ratio: Rate
    largest: bool = True


class Ranked(Filter, frozen=True):
    value: Amount
    metric: Literal["reward_variance", "reward", "reward_sum"] = "reward_variance"
    largest: bool = True
    include_zero: bool = True
    selection_eps: Amount = 0.01

    @property
    def call(self) -> tuple[str, dict[str, Any]]:
        strategy, arguments = super().call
        return "ranked", {"strategy": strategy, **arguments}


class TopP(Ranked, frozen=True, tag="top_p"):
    softmax: bool = False


class TopK(Ranked, frozen=True, tag="top_k"):
    pass


class TopKAbs(Ranked, frozen=True, tag="top_k_abs"):
    pass


class MinP(Ranked, frozen=True, tag="min_p"):
    pass


class VideoOptions(ConfigPart, frozen=True):
    """As `asyncrollout.video.VideoRecorder`, in the run's own directory."""

    every: FromOne = 1
    keep: Literal["all", "failures", "extremes"] = "all"
    fps: FrameRate | None = None
    overlay: bool = False
    max_encoders: FromOne = 32
    max_bytes: FromOne = 4 << 30


class RayCluster(ConfigPart, frozen=True):
    """`RayShards`, without their number: a Ray cluster, and what each shard takes of a node."""

    address: Text | None = None
    num_cpus: Amount = 1
    num_gpus: Amount = 0
    resources: dict[str, Amount] = {}
    labels: dict[str, str] = {}
    wait: Positive = 5.0


class Normalization(ConfigPart, frozen=True):
    """As `rewards.normalize`."""

    grouping: Literal["state", "inductive", "batch"] = "state"
    method: Literal["identity", "mean", "mean_std", "asym_clip"] = "identity"


Policy = Solver | Scripted | OpenAI | Local
Keep = RewardVaries | SuccessBetween | MinValid | NotTruncated | TopStd | TopP | TopK | TopKAbs | MinP
AdvantageName = Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "max_rl", "pass_at_k", "gigpo"]


class Config(ConfigPart, frozen=True, kw_only=True):
    """A run. `tasks` is a list, or the absolute path of a .jsonl or .json file.

    With `evaluate`, that many tasks are played for figures alone, and no batches.
    """

    name: Text | None = None
    seed: FromZero = 0
    env: EnvName | EnvEntry | Entries
    env_kwargs: dict[str, Any] = {}
    policy: Policy = Solver()
    agent: Chat = Chat()
    group_size: FromOne = 8
    groups: FromOne = 8
    batches: FromOne = 4
    evaluate: FromOne | None = None
    keep: Keep | None = None
    tasks: Text | list[Any] | None = None
    score: ImportPath | None = None
    limits: Limits = Limits()
    failures: Failures = Failures()
    order: Literal["finish", "start"] = "finish"
    max_in_flight: FromOne = 512
    max_lag: FromZero | None = 1
    max_num_gen_batches: FromOne | None = 10
    on_exhausted: Literal["raise", "short", "fill"] = "raise"
    shares: Literal["drawn", "delivered"] = "drawn"
    stall_seconds: Positive = 900.0
    gc_threshold: FromOne | None = 10_000
    workers: FromOne | None = None
    backend: Literal["process", "inline"] | None = None
    shards: FromOne | None = None
    ray: RayCluster | None = None
    metrics: tuple[SinkName, ...] = ()
    record: bool | VideoOptions = False
    reward_normalization: Normalization | None = None
    advantage: AdvantageName | None = None

    def __post_init__(self) -> None:
        if self.max_in_flight < self.group_size:
            raise UsageError(
                f"max_in_flight: found {self.max_in_flight}, expected a whole number from group_size, which is "
                f"{self.group_size}: a group plays at once"
            )
        if self.shares == "delivered" and self.order == "start":
            raise UsageError("shares: found 'delivered', which depends on timing, but order: start does not")
        if self.backend == "inline" and self.workers is not None:
            raise UsageError(f"workers: found {self.workers}, but with backend: inline there are none: leave it out")
        if self.shards is not None:
            self._check_shards()
        elif self.ray is not None:
            raise UsageError("ray: is where shards run, and there are none: say how many, such as shards: 8")
        if self.evaluate is not None and self.keep is not None:
            raise UsageError("keep: an evaluation counts every group, and filters none: leave it out")
        if not isinstance(self.env, list):
            if isinstance(self.env, EnvEntry) and self.env.env_kwargs and self.env_kwargs:
                raise UsageError("env_kwargs: env has env_kwargs, too: give one of them")
            return
        if self.env_kwargs:
            raise UsageError("env_kwargs: is for one env: with several, each entry of env has its own")
        tags = [entry.tag or entry.env for entry in self.env]
        if len({*tags}) < len(tags):
            raise UsageError(f"env: the tags {tags} are not all different: give each entry its own tag")

    def _check_shards(self) -> None:
        if self.backend is not None:
            raise UsageError(f"backend: found {self.backend!r}, but each shard has a pool of its own: leave it out")
        if self.record is not False:
            raise UsageError("record: videos are made where envs live, on the nodes of the shards: leave one out")
        if isinstance(self.policy, Local):
            raise UsageError("policy: the server of kind local is on this machine, which shards do not reach")

    @property
    def entries(self) -> list[EnvEntry]:
        """The envs, also if there is only one."""
        if isinstance(self.env, list):
            return self.env
        if isinstance(self.env, str):
            return [EnvEntry(env=self.env, env_kwargs=self.env_kwargs)]
        return [msgspec.structs.replace(self.env, env_kwargs=self.env.env_kwargs or self.env_kwargs)]

    @property
    def imports(self) -> list[str]:
        """The import paths that it names: code that must not run unless the user allows it."""
        named = [entry.env for entry in self.entries if ":" in entry.env.removeprefix(_GYMNASIUM)]
        return named if self.score is None else [*named, self.score]
