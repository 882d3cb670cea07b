"""`eval`: any env and any model, with pass@k and its intervals. Files with RLinf's keys go to `eval_rlinf`."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from asyncrollout.cli.envs import option_value
from asyncrollout.cli.eval_rlinf import evaluate_rlinf, is_rlinf
from asyncrollout.cli.run import AllowImport, BaseUrl, Model, RayAddress, Runs, Shards, check_server, play
from asyncrollout.cli.run_directory import env_secrets, new_directory, next_attempt, write_config
from asyncrollout.cli.terminal.logs import logging_to
from asyncrollout.cli.terminal.output import WHOLE, Output, OutputParam
from asyncrollout.config import Config, read_config, read_tasks, to_yaml
from asyncrollout.config.build import check_imports
from asyncrollout.config.document import load
from asyncrollout.config.reading import as_config
from asyncrollout.dropin.ragen.config_keys import RAGEN_KEYS
from asyncrollout.errors import UsageError
from asyncrollout.registry import allowed_env, find_env
from asyncrollout.validation import did_you_mean

_TASKS = 50
_NAMED_POLICIES = ("solver", "scripted", "local")
_COMMAND_LINE = "the command line"


async def eval(  # noqa: A001 (the command's name)
    *given: Annotated[str, Parameter(help="YAML file, unless --env is given; then overrides, such as agent.history=2")],
    env: Annotated[
        str | None,
        Parameter(help="Environment to play, from `asyncrollout envs`; set its options as --env.num_boxes 2."),
    ] = None,
    env_options: Annotated[dict[str, str] | None, Parameter(name="--env", show=False)] = None,
    tasks: Annotated[
        int | None, WHOLE, Parameter(name=["--tasks", "-n"], help=f"Number of tasks (seeds) (default: {_TASKS}).")
    ] = None,
    samples: Annotated[
        int | None, WHOLE, Parameter(name=["--samples", "-k"], help="Rollouts of each task, for pass@k (default: 1).")
    ] = None,
    split: Annotated[
        str | None, Parameter(help="Split to play, in envs that have splits: test (default), val or train.")
    ] = None,
    base_url: BaseUrl = None,
    model: Model = None,
    policy: Annotated[
        str | None,
        Parameter(help="Play without a server: solver (the env's expert), scripted or local."),
    ] = None,
    seed: Annotated[
        int | None, WHOLE, Parameter(help="Seed of tasks and sampling: the same seed plays the same tasks.")
    ] = None,
    max_turns: Annotated[int | None, WHOLE, Parameter(help="Maximum number of turns of an episode.")] = None,
    temperature: Annotated[float | None, Parameter(help="Sampling temperature (default: the server's).")] = None,
    max_tokens: Annotated[int | None, WHOLE, Parameter(help="Maximum number of tokens of a reply.")] = None,
    workers: Annotated[int | None, WHOLE, Parameter(help="Worker processes for envs (default: one per core).")] = None,
    max_in_flight: Annotated[int | None, WHOLE, Parameter(help="Rollouts in flight (default: 512).")] = None,
    shards: Shards = None,
    ray: RayAddress = None,
    name: Annotated[str | None, Parameter(help="Name of the run directory (default: eval-ENV-1 and so on).")] = None,
    run_dir: Annotated[Path | None, Parameter(help="The run directory itself, instead of --runs and --name.")] = None,
    runs: Runs = Path("runs"),
    allow_import: AllowImport = False,
    output: OutputParam,
) -> int:
    """Evaluate a model on any environment: pass@k and rewards with confidence intervals.

    Plays each of -n tasks -k times, as Rollouts.evaluate does, and records everything in a run directory, with a
    report. Ctrl-C or a kill loses nothing: `asyncrollout resume DIR` plays the rest. Give the YAML file of a run
    instead of --env to evaluate what it plays; set any other key of a run with key=value.

    Files with RLinf's keys (env.eval, cluster) are evaluated as RLinf does it: envs on ranked processes, each with a
    video. They take RLinf's keys instead of the options below, and --policy module:name.

    Example: asyncrollout eval --env sokoban --base-url http://localhost:8000/v1 --model Qwen/Qwen3-4B -n 50 -k 4

    Example: asyncrollout eval --env sokoban --env.num_boxes 2 --policy solver policy.error_rate=0.3 -k 4

    Example: asyncrollout eval examples/configs/frozen_lake_solver.yaml -n 100 -k 8 --max-turns 20

    Example: asyncrollout eval examples/configs/behavior_eval.yaml env.eval.total_num_envs=8
    """
    check_server(base_url, model)
    if policy is not None and base_url is not None:
        raise UsageError("--policy and --base-url both name a policy: choose one")
    options: dict[str, Any] = {
        "evaluate": tasks,
        "group_size": samples,
        "seed": seed,
        "limits.turns": max_turns,
        "agent.sampling.temperature": temperature,
        "agent.sampling.max_tokens": max_tokens,
        "workers": workers,
        "max_in_flight": max_in_flight,
        "shards": shards,
        "ray.address": ray,
    }
    chosen = {key: value for key, value in options.items() if value is not None}
    for key in (
        "evaluate",
        "group_size",
        "limits.turns",
        "agent.sampling.max_tokens",
        "workers",
        "max_in_flight",
        "shards",
    ):
        if chosen.get(key, 1) < 1:
            raise UsageError(f"{_flag(key)} {chosen[key]}: must be a whole number from 1")
    if env is None and (not given or ("=" in given[0] and not os.path.exists(given[0]))):  # noqa: ASYNC240, PTH110
        raise UsageError("nothing to evaluate: give --env NAME, such as --env sokoban, or a YAML file")
    if env is None and is_rlinf(Path(given[0]), given[1:]):
        own = {
            "--env.KEY": env_options,
            "--split": split,
            "--name": name,
            "--run-dir": run_dir,
            **dict.fromkeys(map(_flag, chosen), True),
        }
        _refuse(own, f"{given[0]} has RLinf's keys: set one of them instead, such as env.eval.total_num_envs=8")
        return await evaluate_rlinf(
            Path(given[0]), given[1:], base_url=base_url, model=model, policy=policy, allow_import=allow_import,
            output=output,
        )  # fmt: skip
    values = {**_policy_values(base_url, model, policy), **chosen}
    if env is not None:
        config = _from_options(env, env_options or {}, split, values, given)
    else:
        _refuse({"--env.KEY": env_options}, "only with --env; with a file, write env_kwargs.KEY=VALUE")
        config = _from_file(Path(given[0]), split, values, given[1:])
    check_imports(config, allow_import=allow_import)
    for entry in config.entries:
        allowed_env(entry.env, allow_import=allow_import)
    return await _evaluate(config, _place(config, runs, name, run_dir), allow_import=allow_import, output=output)


def _refuse(options: Mapping[str, Any], why: str) -> None:
    found = [flag for flag, value in options.items() if value not in (None, {})]
    if found:
        raise UsageError(f"{', '.join(found)}: {why}")


def _flag(key: str) -> str:
    known = {"evaluate": "--tasks", "group_size": "--samples", "limits.turns": "--max-turns"}
    return known.get(key, f"--{key.rpartition('.')[2].replace('_', '-')}")


def _policy_values(base_url: str | None, model: str | None, policy: str | None) -> dict[str, Any]:
    """An evaluation needs no logprobs, and not every server returns them."""
    if base_url is not None:
        return {"policy": {"kind": "openai", "base_url": base_url, "model": model, "logprobs": False}}
    if policy is None:
        return {}
    if policy not in _NAMED_POLICIES:
        hint = (
            " (an import path works with RLinf's keys only)" if ":" in policy else did_you_mean(policy, _NAMED_POLICIES)
        )
        raise UsageError(f"--policy {policy!r} is not one of {', '.join(_NAMED_POLICIES)}{hint}")
    return {"policy": {"kind": policy, **({"logprobs": False} if policy == "local" else {})}}


def _from_options(
    env: str, env_options: Mapping[str, str], split: str | None, values: Mapping[str, Any], overrides: Sequence[str]
) -> Config:
    if "policy" not in values and not any(one.startswith("policy") for one in overrides):
        raise UsageError(
            "no policy: give --base-url http://localhost:8000/v1 --model NAME, or --policy solver for the env's expert"
        )
    if ":" not in env:
        find_env(env)  # its error suggests the nearest name
    kwargs = {key.replace("-", "_"): option_value(text) for key, text in env_options.items()}
    played: Any = env
    if split is not None:
        played = _with_split(env, split)
    elif "split" in kwargs:  # shown as the one that is played, if the env has splits
        played = _with_split(env, kwargs["split"] if ":" not in env and find_env(env).splits else None)
    asked = {"evaluate": _TASKS, "group_size": 1, **values}
    return _made({"env": played, "env_kwargs": kwargs}, asked, overrides)


def _from_file(path: Path, split: str | None, values: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """The config of an evaluation of what a run's file plays; its filter and batches are for training."""
    values = dict(values)
    policy = values.pop("policy", None)  # first, so that `policy.attempts=3` after it applies to it
    chosen = [] if policy is None else [f"policy={json.dumps(policy)}"]
    config = read_config(path, [*chosen, *overrides], dialect=RAGEN_KEYS)
    listed = read_tasks(config)
    asked = {"evaluate": config.evaluate or (_TASKS if listed is None else len(listed)), **values}
    group_size = {} if config.evaluate is not None else {"group_size": 1}
    values_of_file = load(to_yaml(config), str(path)).value
    if split is not None:
        values_of_file["env"] = _with_split(values_of_file["env"], split)
    return _made({**values_of_file, "keep": None}, {**group_size, **asked})


def _with_split(env: Any, split: str | None) -> Any:
    """What a file has as `env`, with a split to play: for all envs, if there are several."""
    if isinstance(env, list):
        return [_with_split(entry, split) for entry in env]
    return {**({"env": env} if isinstance(env, str) else env), "eval": {"split": split}}


def _made(values: dict[str, Any], asked: Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    for key, value in asked.items():
        *parents, last = key.split(".")
        within = values
        for parent in parents:
            within = within.setdefault(parent, {})
        within[last] = value
    return as_config(values, overrides, _COMMAND_LINE, dialect=RAGEN_KEYS)


def _place(config: Config, runs: Path, name: str | None, run_dir: Path | None) -> tuple[Path, str | None, str]:
    """The parent of run directories, the name of this one, and the stem of a numbered name if it has none."""
    if run_dir is not None:
        if name is not None:
            raise UsageError("--run-dir and --name both name the run directory: choose one")
        return run_dir.parent, run_dir.name, ""
    return runs, config.name if name is None else name, f"eval-{config.entries[0].env.rpartition(':')[2]}"


async def _evaluate(config: Config, place: tuple[Path, str | None, str], *, allow_import: bool, output: Output) -> int:
    with new_directory(*place) as directory:
        write_config(directory, config, None)
        with logging_to(next_attempt(directory), console=not output.quiet, secrets=env_secrets(config)):
            return await play(config, directory, resume=False, allow_import=allow_import, output=output)
