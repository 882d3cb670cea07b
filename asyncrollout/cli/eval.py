"""Evaluations: any env and any model, with pass@k and its intervals; or envs on ranked processes, in RLinf's keys."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from asyncrollout.cli.app import WHOLE, Output, Told
from asyncrollout.cli.directory import env_secrets, new_directory, next_attempt, write_config
from asyncrollout.cli.envs import option_value
from asyncrollout.cli.eval_rlinf import evaluate_ranked
from asyncrollout.cli.run import Runs, play
from asyncrollout.cli.terminal.logs import logging_to
from asyncrollout.config import Config, read_config, read_tasks, to_yaml
from asyncrollout.config.build import check_imports
from asyncrollout.config.document import load
from asyncrollout.config.reading import as_config, read_text
from asyncrollout.dropin.ragen.config_keys import RAGEN_KEYS
from asyncrollout.errors import UsageError
from asyncrollout.registry import allowed_env, find_env
from asyncrollout.validation import did_you_mean

_TASKS = 50
_NAMED_POLICIES = ("solver", "scripted", "local")
_COMMAND_LINE = "the command line"


async def eval(  # noqa: A001 (the command's name)
    *given: Annotated[
        str, Parameter(help="A YAML file, unless there is --env; then values as for `run`: agent.history=2")
    ],
    env: Annotated[
        str | None,
        Parameter(help="What to play, as `asyncrollout envs` lists it; its options follow, as --env.num_boxes 2."),
    ] = None,
    env_options: Annotated[dict[str, str] | None, Parameter(name="--env", show=False)] = None,
    tasks: Annotated[
        int | None,
        WHOLE,
        Parameter(name=["--tasks", "-n"], help=f"How many tasks (seeds) to play; {_TASKS} if not given."),
    ] = None,
    samples: Annotated[
        int | None,
        WHOLE,
        Parameter(name=["--samples", "-k"], help="How often to play each, for pass@k; 1 if not given."),
    ] = None,
    base_url: Annotated[str | None, Parameter(help="An OpenAI-compatible server; its key is $OPENAI_API_KEY.")] = None,
    model: Annotated[str | None, Parameter(help="The name of the server's model.")] = None,
    policy: Annotated[
        str | None,
        Parameter(help="Who plays instead: solver (the env's expert), scripted, local; in RLinf's form module:name."),
    ] = None,
    seed: Annotated[
        int | None, WHOLE, Parameter(help="Of tasks and sampling: the same seed plays the same tasks.")
    ] = None,
    max_turns: Annotated[int | None, WHOLE, Parameter(help="Where an episode ends at the latest.")] = None,
    temperature: Annotated[float | None, Parameter(help="Of sampling; the server's default if not given.")] = None,
    max_tokens: Annotated[int | None, WHOLE, Parameter(help="Of one reply.")] = None,
    workers: Annotated[
        int | None, WHOLE, Parameter(help="Worker processes for envs; one for each CPU if not given.")
    ] = None,
    max_in_flight: Annotated[int | None, WHOLE, Parameter(help="Rollouts at a time; 512 if not given.")] = None,
    name: Annotated[
        str | None, Parameter(help="The name of the run directory; eval-ENV-1 and so on if not given.")
    ] = None,
    run_dir: Annotated[Path | None, Parameter(help="The run directory itself, instead of --runs and --name.")] = None,
    runs: Runs = Path("runs"),
    allow_import: Annotated[bool, Parameter(help="Let it import code: an env class, a policy, `score`.")] = False,
    output: Told,
) -> int:
    """Evaluate a policy."""
    _check_policy(base_url, model, policy)
    options = {
        "evaluate": tasks,
        "group_size": samples,
        "seed": seed,
        "limits.turns": max_turns,
        "agent.sampling.temperature": temperature,
        "agent.sampling.max_tokens": max_tokens,
        "workers": workers,
        "max_in_flight": max_in_flight,
    }
    chosen = {key: value for key, value in options.items() if value is not None}
    for key in ("evaluate", "group_size", "limits.turns", "agent.sampling.max_tokens", "workers", "max_in_flight"):
        if chosen.get(key, 1) < 1:
            raise UsageError(f"{_flag(key)} {chosen[key]}: it must be a whole number from 1")
    if env is None and not given:
        raise UsageError("what is evaluated? Give --env NAME, such as --env sokoban, or a YAML file")
    if env is None and _is_ranked(Path(given[0])):
        own = {
            "--env.KEY": env_options,
            "--name": name,
            "--run-dir": run_dir,
            **dict.fromkeys(map(_flag, chosen), True),
        }
        _refuse(own, f"{given[0]} is in RLinf's keys, as env.eval.total_num_envs=8")
        return await evaluate_ranked(
            Path(given[0]), given[1:], base_url=base_url, model=model, policy=policy, allow_import=allow_import,
            output=output,
        )  # fmt: skip
    values = {**_policy_values(base_url, model, policy), **chosen}
    if env is not None:
        config = _from_options(env, env_options or {}, values, given)
    else:
        _refuse({"--env.KEY": env_options}, "they go with --env; with a file write env_kwargs.size=8")
        config = _from_file(Path(given[0]), values, given[1:])
    check_imports(config, allow_import=allow_import)
    for entry in config.entries:
        allowed_env(entry.env, allow_import=allow_import)
    return await _evaluate(config, _place(config, runs, name, run_dir), allow_import=allow_import, output=output)


def _check_policy(base_url: str | None, model: str | None, policy: str | None) -> None:
    if (base_url is None) != (model is None):
        raise UsageError("--base-url and --model go together: the address of a server, and one of its models")
    if policy is not None and base_url is not None:
        raise UsageError("--policy names a policy of yours, and --base-url a server: choose one")


def _is_ranked(path: Path) -> bool:
    """Whether a file has RLinf's keys: a run's names an env, or has RAGEN's keys."""
    if "=" in path.name and not path.exists():
        raise UsageError(f"{path}: what is evaluated? Give --env NAME before the values, or a YAML file")
    values = load(read_text(path), str(path)).value
    if not isinstance(values, dict):
        return True
    theirs = {*RAGEN_KEYS.top_level} - {"env"}
    return not (isinstance(values.get("env"), str | list) or theirs & values.keys())


def _refuse(options: Mapping[str, Any], why: str) -> None:
    found = [flag for flag, value in options.items() if value not in (None, {})]
    if found:
        raise UsageError(f"{', '.join(found)}: {why}")


def _flag(key: str) -> str:
    known = {"evaluate": "--tasks", "group_size": "--samples", "limits.turns": "--max-turns"}
    return known.get(key, f"--{key.rpartition('.')[2].replace('_', '-')}")


def _policy_values(base_url: str | None, model: str | None, policy: str | None) -> dict[str, Any]:
    """An evaluation needs no logprobs, and not every server gives them."""
    if base_url is not None:
        return {"policy": {"kind": "openai", "base_url": base_url, "model": model, "logprobs": False}}
    if policy is None:
        return {}
    if policy not in _NAMED_POLICIES:
        hint = ": a policy of yours is for RLinf's form" if ":" in policy else did_you_mean(policy, _NAMED_POLICIES)
        raise UsageError(f"--policy {policy!r} is not one of {', '.join(_NAMED_POLICIES)}{hint}")
    return {"policy": {"kind": policy, **({"logprobs": False} if policy == "local" else {})}}


def _from_options(
    env: str, env_options: Mapping[str, str], values: Mapping[str, Any], overrides: Sequence[str]
) -> Config:
    if "policy" not in values and not any(one.startswith("policy") for one in overrides):
        raise UsageError(
            "who plays? Give --base-url http://localhost:8000/v1 --model NAME, or --policy solver for the env's expert"
        )
    if ":" not in env:
        find_env(env)  # whose message has the nearest name
    kwargs = {key.replace("-", "_"): option_value(text) for key, text in env_options.items()}
    asked = {"evaluate": _TASKS, "group_size": 1, **values}
    return _made({"env": env, "env_kwargs": kwargs}, asked, overrides)


def _from_file(path: Path, values: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """What a run's file plays, evaluated: its filter and its batches are a trainer's."""
    config = read_config(path, overrides, dialect=RAGEN_KEYS)
    listed = read_tasks(config)
    asked = {"evaluate": config.evaluate or (_TASKS if listed is None else len(listed)), **values}
    group_size = {} if config.evaluate is not None else {"group_size": 1}
    values_of_file = load(to_yaml(config), str(path)).value
    return _made({**values_of_file, "keep": None}, {**group_size, **asked})


def _made(values: dict[str, Any], asked: Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    for key, value in asked.items():
        *parents, last = key.split(".")
        within = values
        for parent in parents:
            within = within.setdefault(parent, {})
        within[last] = value
    return as_config(values, overrides, _COMMAND_LINE, dialect=RAGEN_KEYS)


def _place(config: Config, runs: Path, name: str | None, run_dir: Path | None) -> tuple[Path, str | None, str]:
    """Where run directories are, the name of this one, and what it is called with a number if it has none."""
    if run_dir is not None:
        if name is not None:
            raise UsageError("--run-dir is the run directory itself, and --name its name under --runs: choose one")
        return run_dir.parent, run_dir.name, ""
    return runs, config.name if name is None else name, f"eval-{config.entries[0].env.rpartition(':')[2]}"


async def _evaluate(config: Config, place: tuple[Path, str | None, str], *, allow_import: bool, output: Output) -> int:
    with new_directory(*place) as directory:
        write_config(directory, config, None)
        with logging_to(next_attempt(directory), console=not output.quiet, secrets=env_secrets(config)):
            return await play(config, directory, resume=False, allow_import=allow_import, output=output)
