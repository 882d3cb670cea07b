"""A run's configuration: what is read, what it is by default, and that it reads back as it was written."""

import inspect
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import inspect as inspect_types

import asyncrollout as ar
from asyncrollout import filters, rewards
from asyncrollout.batches.advantage import _NAMES
from asyncrollout.config import Config, build, parse_config, read_config, read_tasks, schema, to_yaml
from asyncrollout.config.type_info import bare, options, structs
from asyncrollout.dropin.ragen.config_keys import RAGEN_KEYS
from asyncrollout.redaction import is_secret
from asyncrollout.registry import env_names
from asyncrollout.video.recorder import Keep, VideoRecorder

ROOT = Path(__file__).parent.parent
EVALUATION = ROOT / "examples" / "configs" / "behavior_eval.yaml"  # of another kind: tests/test_evaluation.py reads it
EXAMPLES = sorted(path for path in EVALUATION.parent.glob("*.yaml") if path != EVALUATION)


def defaults(struct: type[msgspec.Struct]) -> dict[str, Any]:
    fields = msgspec.structs.fields(struct)
    return {
        field.name: {} if field.default_factory is dict else field.default for field in fields if not field.required
    }


def parameters(function: Any) -> dict[str, Any]:
    found = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in found if each.default is not each.empty}


def as_yaml(value: Any) -> Any:
    return msgspec.to_builtins(value)


def test_one_line_is_enough() -> None:
    config = parse_config("env: frozen_lake")
    assert config == Config(env="frozen_lake")
    assert config.policy == schema.Solver()
    assert config.entries == [schema.EnvEntry("frozen_lake")]
    assert config.imports == []


def test_defaults_are_those_of_rollouts() -> None:
    own = defaults(Config)
    theirs = parameters(ar.Rollouts)
    for elsewhere in (
        "pool",
        "policy",
        "agent",
        "run_dir",
        "resume",
        "accept_changes",
    ):  # said otherwise, or by who starts a run
        theirs.pop(elsewhere, None)
    theirs["env_kwargs"] = {}
    assert {name: as_yaml(own[name]) for name in theirs} == {name: as_yaml(value) for name, value in theirs.items()}
    others = {
        "name",
        "policy",
        "agent",
        "groups",
        "batches",
        "evaluate",
        "backend",
        "ray",
        "reward_normalization",
        "advantage",
    }
    assert own.keys() == theirs.keys() | others
    assert [*get_args(Config.__annotations__["backend"])[0].__args__] == ["process", "inline"]


def test_policies_and_agents_have_the_options_of_their_classes() -> None:
    openai = parameters(ar.OpenAIPolicy)
    own = defaults(schema.OpenAI)
    assert own["api_key_env"] == "OPENAI_API_KEY"
    assert openai.pop("api_key") is None
    assert own.pop("server") == openai.pop("kind") is None
    assert openai.pop("on_back") is None  # a trainer's function
    assert own == openai
    assert defaults(schema.Solver) == parameters(ar.SolverPolicy)
    local = defaults(schema.Local)
    assert parameters(ar.local_llm).items() <= local.items()
    assert local.keys() - parameters(ar.local_llm).keys() <= openai.keys()
    chat = {name: value for name, value in parameters(ar.ChatAgent).items() if name not in ("encode", "end_ids")}
    assert defaults(schema.Chat) == chat


def test_mirrored_structs_are_as_the_originals() -> None:
    own = {"runs": None, "eval": schema.EvalOptions()}
    assert defaults(schema.EnvEntry) == {**defaults(ar.Share), **own}
    assert schema.EvalOptions().split == parameters(ar.Rollouts.evaluate)["split"]
    normalize = parameters(rewards.normalize)
    assert defaults(schema.Normalization) == {name: normalize[name] for name in ("grouping", "method")}
    assert get_args(schema.Normalization.__annotations__["method"]) == get_args(rewards.Method)
    assert [*get_args(schema.AdvantageName)] == _NAMES
    assert defaults(schema.VideoOptions) == {
        name: value for name, value in parameters(VideoRecorder).items() if name != "directory"
    }
    assert get_args(schema.VideoOptions.__annotations__["keep"]) == get_args(Keep)


@pytest.mark.parametrize("kind", get_args(schema.Keep), ids=lambda kind: kind.__name__)
def test_filters_are_made_from_what_they_say(kind: type[schema.Filter]) -> None:
    required: dict[str, dict[str, Any]] = {
        "success_between": {"low": 0.2, "high": 0.8},
        "min_valid": {"k": 2},
        "top_std": {"ratio": 0.5},
    }
    values = {"value": 0.5} if issubclass(kind, schema.Ranked) else required.get(str(kind.__struct_config__.tag), {})
    name, arguments = kind(**values).call
    made = getattr(filters, name)(**arguments) if arguments else getattr(filters, name)
    assert callable(made)
    elsewhere = {"group"} if kind is schema.TopP else {"group", "softmax"}
    assert arguments.keys() >= parameters(getattr(filters, name)).keys() - elsewhere
    assert all(
        arguments[key] == value for key, value in parameters(getattr(filters, name)).items() if key in defaults(kind)
    )


def test_short_forms() -> None:
    config = parse_config("env: bandit\npolicy: solver\nkeep: not_truncated")
    assert config.policy == schema.Solver()
    assert config.keep == schema.NotTruncated()
    assert parse_config("env: bandit\npolicy: {error_rate: 0.5}").policy == schema.Solver(error_rate=0.5)


def test_everything_that_yaml_can_say() -> None:
    config = parse_config("""
env:
  - &lake {env: frozen_lake, tag: a, env_kwargs: {size: 4, names: {0: x}}}
  - {<<: *lake, tag: b, share: 2, runs: io}
policy:
  kind: openai
  base_url: [http://localhost:1/v1, https://b/v1]
  model: "no"
  api_key_env: MY_KEY
  server: vllm
  concurrency: 8
  sampling: {temperature: 0, top_p: 0.9, stop: ["</answer>"], extra: {min_p: 0.1}}
agent: {history: 2, template: ragen, system_prompt: "", seeded: false}
keep: {name: top_p, value: 0.9, softmax: true}
tasks: [1, {a: b}, text]
score: my.module:Class.method
limits: {turns: 5, invalid: null}
failures: {min_valid: 2}
max_lag: null
workers: 2
reward_normalization: {grouping: batch}
advantage: gigpo
""")
    assert isinstance(config.env, list)
    assert config.env[1] == schema.EnvEntry("frozen_lake", "b", 2.0, {"size": 4, "names": {0: "x"}}, "io")
    assert isinstance(config.policy, schema.OpenAI)
    assert config.policy.base_url == ["http://localhost:1/v1", "https://b/v1"]
    assert config.policy.sampling == ar.Sampling(0, 0.9, stop=("</answer>",), extra={"min_p": 0.1})
    assert config.agent == schema.Chat(history=2, template="ragen", system_prompt="", seeded=False)
    assert config.tasks == read_tasks(config) == [1, {"a": "b"}, "text"]
    assert config.limits == ar.Limits(turns=5, invalid=None)
    assert parse_config(to_yaml(config)) == config


@pytest.mark.parametrize(
    ("text", "imports"),
    [
        ("env: gymnasium:CartPole-v1", []),
        ("env: gymnasium:my_module:Env-v0", ["gymnasium:my_module:Env-v0"]),
        ("env: my.module:Env\nscore: my.judge:score", ["my.module:Env", "my.judge:score"]),
        ("env: [{env: bandit}, {env: 'a:b'}]", ["a:b"]),
    ],
)
def test_imports_are_reported(text: str, imports: list[str]) -> None:
    assert parse_config(text).imports == imports


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_read(path: Path) -> None:
    config = read_config(path, dialect=RAGEN_KEYS)
    assert config.policy.__struct_config__.tag == "solver"  # needs no server
    assert parse_config(to_yaml(config)) == config


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
async def test_examples_play(path: Path) -> None:
    config = read_config(path, dialect=RAGEN_KEYS)
    assert isinstance(config.policy, schema.Solver)
    assert config.keep is not None
    name, arguments = config.keep.call
    envs: list[ar.Share | dict[str, Any]] = [
        ar.Share(entry.env, entry.tag, entry.share, entry.env_kwargs) for entry in config.entries
    ]
    async with (
        ar.EnvPool(backend="inline") as pool,
        ar.Rollouts(
            envs,
            agent=ar.ChatAgent(ar.SolverPolicy(config.policy.error_rate), template=config.agent.template),
            group_size=config.group_size,
            keep=getattr(filters, name)(**arguments),
            seed=config.seed,
            limits=config.limits,
            on_exhausted=config.on_exhausted,
            pool=pool,
        ) as rollouts,
    ):
        batch = await rollouts.collect(groups=len(envs))
    assert len(batch.groups) == len(envs)
    assert all(trajectory.valid for group in batch.groups for trajectory in group.trajectories)


def test_keys_may_be_written_with_dots() -> None:
    dotted = parse_config("env: frozen_lake\nenv_kwargs.size: 8\nlimits.turns: 3")
    assert dotted == parse_config("env: frozen_lake\nenv_kwargs: {size: 8}\nlimits: {turns: 3}")
    with pytest.raises(ar.UsageError, match=r"config.yaml, line 2: 'limits.turns' is given twice"):
        parse_config("env: frozen_lake\nlimits.turns: 3\nlimits: {turns: 4}")
    with pytest.raises(ar.UsageError, match=r"line 2: limits.turns: found 0"):
        parse_config("env: frozen_lake\nlimits.turns: 0")


def test_there_are_three_examples() -> None:
    assert [path.stem for path in EXAMPLES] == ["frozen_lake_solver", "mixed_dapo", "ragen_style"]


def told_defaults(kind: inspect_types.Type, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Every key, and its default as the documentation writes it; a key of several variants may have several."""
    for struct in structs(kind):
        if struct.tag_field:
            yield ".".join([*path, struct.tag_field]), "`solver`" if struct.tag_field == "kind" else "required"
        for field in struct.fields:
            below = (*path, field.encode_name)
            yield ".".join(below), "required" if field.required else f"`{_written(field)}`"
            yield from told_defaults(field.type, below)
    for option in map(bare, options(kind)):
        if isinstance(option, inspect_types.ListType):
            yield from told_defaults(option.item_type, (*path, "0"))


def _written(field: inspect_types.Field) -> str:
    if field.default_factory is dict or isinstance(field.default, msgspec.Struct):
        return "solver" if isinstance(field.default, schema.Solver) else "{}"
    return field.default if isinstance(field.default, str) and field.default else json.dumps(field.default)


def test_documentation_has_every_key_with_its_default() -> None:
    expected: dict[str, dict[str, None]] = {}
    for key, default in told_defaults(inspect_types.type_info(Config)):
        expected.setdefault(key, {})[default] = None
    lines = (ROOT / "docs" / "configuration.md").read_text().splitlines()
    rows = [line.removeprefix("| `").split(" | ") for line in lines if line.startswith("| `")]
    reported = {row[0].rstrip("`"): row[1] for row in rows if len(row) == 3}
    assert reported == {key: ", ".join(sorted(defaults)) for key, defaults in expected.items()}


def test_tasks_are_found_beside_the_config(tmp_path: Path) -> None:
    folder = tmp_path / "configs"
    folder.mkdir()
    (tmp_path / "a.jsonl").write_text('1\n\n{"b": 2}\n')
    (folder / "b.json").write_text("[1, 2]")
    path = folder / "run.yaml"
    path.write_text("env: bandit\ntasks: ../a.jsonl")
    config = read_config(path)
    assert config.tasks == str(tmp_path / "a.jsonl")
    assert read_tasks(config) == [1, {"b": 2}]
    (tmp_path / "a.jsonl").write_text('1\n\n{"b": 2}\n', encoding="utf-8-sig")  # as Windows editors do
    assert read_tasks(config) == [1, {"b": 2}]
    assert parse_config(to_yaml(config), where="elsewhere/x.yaml") == config
    path.write_text("env: bandit\ntasks: b.json")
    assert read_tasks(read_config(path)) == [1, 2]
    assert read_tasks(parse_config("env: bandit")) is None


def test_a_model_is_found_beside_the_config(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("env: bandit\npolicy: {kind: local, model: m.gguf}")
    assert read_config(path).policy == schema.Local(model=str(tmp_path / "m.gguf"))


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.jsonl", '1\n{"a"\n', "a.jsonl, line 2: not valid JSON"),
        ("a.jsonl", " \n", "has no tasks in it"),
        ("a.json", '{"a": 1}', "found a dict, expected a list of tasks"),
        ("a.json", "[" * 100_000, "not valid JSON"),
    ],
)
def test_tasks_that_cannot_be_read(tmp_path: Path, name: str, content: str, error: str) -> None:
    (tmp_path / name).write_text(content)
    config = parse_config(f"env: bandit\ntasks: {name}", where=str(tmp_path / "x.yaml"))
    with pytest.raises(ar.UsageError, match=error):
        read_tasks(config)


def test_tasks_that_are_gone(tmp_path: Path) -> None:
    with pytest.raises(ar.UsageError, match="cannot be read: No such file"):
        read_tasks(Config(env="bandit", tasks=str(tmp_path / "a.jsonl")))


def test_secrets_are_never_written() -> None:
    config = Config(env="bandit", env_kwargs={"judge": [{"Api-Key": "sk-canary"}]})
    with pytest.raises(ar.UsageError, match=r"env_kwargs\.judge\.0\.Api-Key: ") as caught:
        to_yaml(config)
    assert "canary" not in str(caught.value)


def test_a_config_made_in_python_is_checked_too() -> None:
    with pytest.raises(ar.UsageError, match="max_in_flight: found 4"):
        Config(env="bandit", max_in_flight=4)


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("env: bandit", ["group_size=4"], {"group_size": 4}),
        ("env: bandit", ["env_kwargs.size=8", "env_kwargs.size=9"], {"env_kwargs": {"size": 9}}),
        ("env: bandit\npolicy: solver", ["policy.error_rate=0.2"], {"policy": schema.Solver(error_rate=0.2)}),
        ("env: bandit", ["policy.error_rate=0.2"], {"policy": schema.Solver(error_rate=0.2)}),
        ("env: bandit\nkeep: top_p", ["keep.value=0.5"], {"keep": schema.TopP(value=0.5)}),
        ("env: bandit\nkeep: reward_varies", ["keep=null"], {"keep": None}),
        ("env: bandit", ["max_lag="], {"max_lag": None}),
        ("env: bandit", ["env.eval.split=val"], {"env": schema.EnvEntry("bandit", eval=schema.EvalOptions("val"))}),
        ("env: [{env: bandit}]", ["env.0.share=2"], {"env": [schema.EnvEntry("bandit", share=2.0)]}),
        ("env: bandit", ["tasks=[1, {a: b=c}]"], {"tasks": [1, {"a": "b=c"}]}),
        ("", ["env=bandit"], {"env": "bandit"}),
        ("env: bandit\nlimits: {turns: 3}", ["limits.tokens=9"], {"limits": ar.Limits(turns=3, tokens=9)}),
    ],
)
def test_overrides(text: str, overrides: list[str], expected: dict[str, Any]) -> None:
    config = parse_config(text, overrides)
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("group_size", "override 'group_size': no '=' in it"),
        ("policy.api_key: sk-canary", "override 'policy.api_key': no '=' in it"),
        ("=4", "names with single dots"),
        ("a..b=4", "override 'a..b': write the key as names with single dots"),
        ("env.0=x", "override 'env.0': 'env' is a single value and has no '0'"),
        ("tasks.2=x", "'tasks' is a list of 2: '2' is not an index"),
        ("tasks.-1=x", "'tasks' is a list of 2: '-1' is not an index"),
        (f"tasks.{'9' * 5_000}=x", "'tasks' is a list of 2: '9999"),
        (f"{'a.' * 5_000}b=x", "names with single dots"),
        (f"name={'0' * 5_000}", "which YAML 1.1 reads as the number 0"),
        ("group_size=[", "override 'group_size': not valid YAML"),
        ("group_size=0", "config.yaml, override 'group_size': group_size: found 0, expected a whole number from 1"),
        (
            "env_kwarg.size=8",
            "override 'env_kwarg.size': unknown key 'env_kwarg.size': did you mean 'env_kwargs.size'?",
        ),
        ("policy.api_key=sk-canary", "override 'policy.api_key': policy.api_key: a key is never written into a file"),
        ("name=no", "name: found no, which YAML reads as the bool false"),
        ("name=\x00sk-canary", "override 'name': not text"),
    ],
)
def test_overrides_that_make_no_sense(override: str, error: str) -> None:
    with pytest.raises(ar.UsageError) as caught:
        parse_config("env: bandit\ntasks: [1, 2]", [override])
    assert error in str(caught.value)
    assert "canary" not in str(caught.value)


words = st.text(min_size=1)
counts = st.integers(1, 2**40)
amounts = st.floats(0, 1e9)
rates = st.floats(0, 1)
positive = st.floats(0, 1e9, exclude_min=True)
numbers = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False)
names = st.text().filter(lambda name: not is_secret(name))
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | st.integers(-9, 9), inner, max_size=3),
    max_leaves=8,
)
kwargs = st.dictionaries(names, anything, max_size=3)
samplings = st.builds(
    ar.Sampling,
    temperature=st.none() | amounts,
    top_p=st.none() | st.floats(0, 1, exclude_min=True),
    max_tokens=st.none() | counts,
    stop=st.lists(st.text(), max_size=2).map(tuple),
    seed=st.none() | st.integers(-(2**40), 2**40),
    extra=kwargs,
)
calls = {"sampling": samplings, "logprobs": st.booleans(), "attempts": counts, "seconds": positive}
urls = st.sampled_from(["http://a/v1", "https://b:80/v1"])
policies = st.one_of(
    st.builds(schema.Solver, error_rate=rates, latency=amounts | st.lists(amounts, min_size=2, max_size=2).map(sorted)),
    st.builds(schema.Scripted, st.lists(st.text(), min_size=1)),
    st.builds(
        schema.OpenAI,
        base_url=urls | st.lists(urls, min_size=1),
        model=words,
        api_key_env=st.sampled_from(["KEY", "_A1"]),
        concurrency=st.just("adaptive") | counts,
        server=st.sampled_from([None, "vllm"]),
        **calls,
    ),
    st.builds(schema.Local, model=st.none() | st.just(f"{os.sep}m.gguf"), parallel=counts, **calls),
)
keeps = st.one_of(
    st.none(),
    st.builds(schema.RewardVaries, singleton=st.sampled_from(["drop", "keep"])),
    st.builds(schema.SuccessBetween, st.just(0.25), st.floats(0.25, 1)),
    st.builds(schema.TopK, value=amounts, largest=st.booleans(), metric=st.sampled_from(["reward", "reward_sum"])),
)
one_env = {"env": st.sampled_from(env_names()), "env_kwargs": kwargs}
several = st.lists(
    st.builds(schema.EnvEntry, tag=words, share=positive, runs=st.sampled_from([None, "io"]), **one_env),
    min_size=1,
    max_size=3,
    unique_by=lambda entry: entry.tag,
)
common = {
    "name": st.none() | words,
    "seed": st.integers(0, 2**40),
    "policy": policies,
    "agent": st.builds(schema.Chat, history=st.none() | st.integers(0, 9), system_prompt=st.none() | st.text()),
    "keep": keeps,
    "tasks": st.none() | st.lists(anything, max_size=3),
    "limits": st.builds(ar.Limits, turns=st.none() | counts, seconds=st.none() | positive),
    "max_lag": st.none() | st.integers(0, 9),
    "order": st.sampled_from(["finish", "start"]),
    "reward_normalization": st.none() | st.builds(schema.Normalization),
}
configs = st.builds(Config, **one_env, **common) | st.builds(Config, env=several, **common)


@example(Config(env="bandit", env_kwargs={"": "\x85", "a": "\u2028\r\n "}))
@given(configs)
def test_a_config_reads_back_as_it_was_written(config: Config) -> None:
    assert parse_config(to_yaml(config)) == config


@given(anything)
def test_any_document_is_a_config_or_an_error(value: Any) -> None:
    text = yaml.safe_dump(value) if not isinstance(value, float) else json.dumps(value)
    reported = "config.yaml"
    try:
        parse_config(text)
    except ar.UsageError as error:
        reported = str(error)
    assert reported.startswith("config.yaml")


def test_shards_of_a_cluster() -> None:
    config = parse_config("env: bandit\nshards: 4\nray: {address: 'auto', num_cpus: 2, labels: {zone: a}}")
    assert config.shards == 4
    assert build._shards(config) == ar.RayShards(4, address="auto", num_cpus=2, labels={"zone": "a"})


@pytest.mark.parametrize(("text", "said"), [
    ("ray: {address: auto}", "ray: is where shards run, and there are none"),
    ("shards: 2\nbackend: inline", "each shard has a pool of its own"),
    ("shards: 2\nrecord: true", "on the nodes of the shards"),
    ("shards: 2\npolicy: {kind: local}", "is on this machine, which shards do not reach"),
])  # fmt: skip
def test_what_does_not_go_with_shards(text: str, said: str) -> None:
    with pytest.raises(ar.UsageError, match=said):
        parse_config(f"env: bandit\n{text}")
