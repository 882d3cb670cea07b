"""`demo`: several envs at once, in groups, filtered and streamed in batches."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from asyncrollout.batches.batch import Batch
from asyncrollout.cli.run import BaseUrl, Model, Runs, check_server, play
from asyncrollout.cli.run_directory import new_directory, next_attempt, write_config
from asyncrollout.cli.terminal.live import Display
from asyncrollout.cli.terminal.logs import logging_to
from asyncrollout.cli.terminal.output import WHOLE, OutputParam, program
from asyncrollout.config import Config, schema
from asyncrollout.errors import UsageError
from asyncrollout.journal.files import read_head, whole_lines
from asyncrollout.journal.writer import TRAJECTORIES
from asyncrollout.registry import allowed_env
from asyncrollout.trajectories import Limits, Trajectory
from asyncrollout.types import Sampling

_ENVS: dict[str, dict[str, Any]] = {
    "sokoban": {"dim_room": [6, 6], "search_depth": 30, "max_actions_per_turn": 2},
    "frozen_lake": {"is_slippery": False, "max_actions_per_turn": 2},
    "countdown": {"num_numbers": 3},
    "webshop": {},
}
_LLM_ENVS: dict[str, dict[str, Any]] = {
    "bandit": {},
    "frozen_lake": {"is_slippery": False, "size": 3},
    "countdown": {"num_numbers": 3},
}
_SHOWN = 600


async def demo(
    env: Annotated[str | None, Parameter(help="Play only this environment, such as sokoban.")] = None,
    *,
    base_url: BaseUrl = None,
    model: Model = None,
    local: Annotated[bool, Parameter(help="Use a small model on this machine (after `make local-llm`).")] = False,
    batches: Annotated[
        int | None, WHOLE, Parameter(help="Number of batches to play (default: 12, or 2 with a model).")
    ] = None,
    runs: Runs = Path("runs"),
    output: OutputParam,
) -> int:
    """Play several environments at once; needs no server, GPU or API key.

    A scripted expert with a small error rate plays groups of rollouts, which are filtered and streamed in batches, as
    a trainer receives them. With a server or --local, a model plays instead.

    Example: asyncrollout demo

    Example: asyncrollout demo sokoban

    Example: asyncrollout demo --base-url http://localhost:8000/v1 --model Qwen/Qwen3-4B
    """
    check_server(base_url, model)
    if local and base_url is not None:
        raise UsageError("--local uses a model on this machine, --base-url a server: choose one")
    if batches is not None and batches < 1:
        raise UsageError(f"--batches {batches}: must be at least 1")
    if env is not None:
        allowed_env(env, allow_import=False)
    asks_model = local or base_url is not None
    count = (2 if asks_model else 12) if batches is None else batches
    config = _config(env, _policy(base_url, model, local=local), count, asks_model=asks_model)
    show = _show_transcript if asks_model else _show_batch
    output.say(_introduction(config, model))
    with new_directory(runs, None, "demo") as directory:
        write_config(directory, config, None)
        with logging_to(next_attempt(directory), console=not output.quiet):
            code = await play(config, directory, resume=False, output=output, on_batch=show)
        finished = next((read_head(line).uid for line in whole_lines(directory / TRAJECTORIES)), None)
    if finished is not None:
        output.say(f"\nReplay an episode turn by turn:\n  {program()} replay {directory} {finished}")
    return code


def _policy(base_url: str | None, model: str | None, *, local: bool) -> schema.Policy:
    if base_url is not None and model is not None:
        return schema.OpenAI(base_url=base_url, model=model, logprobs=False)  # which not every server gives
    if local:
        return schema.Local(logprobs=False)
    return schema.Solver(error_rate=0.15, latency=0.3)


def _config(env: str | None, policy: schema.Policy, batches: int, *, asks_model: bool) -> Config:
    """The run: larger groups for the expert than a model on this machine could play."""
    known = _LLM_ENVS if asks_model else _ENVS
    chosen = known if env is None else {env: {**_ENVS, **_LLM_ENVS}.get(env, {})}
    return Config(
        env=[schema.EnvEntry(env=name, env_kwargs=kwargs) for name, kwargs in chosen.items()],
        policy=policy,
        agent=schema.Chat(sampling=Sampling(max_tokens=80, temperature=0.3) if asks_model else Sampling()),
        group_size=3 if asks_model else 4,
        groups=3 if asks_model else 8,
        batches=batches,
        keep=None if asks_model else schema.RewardVaries(),
        limits=Limits(turns=4 if asks_model else 12, invalid=2 if asks_model else 3),
        on_exhausted="fill",
        max_in_flight=9 if asks_model else 128,
        # Few enough groups are recorded that encoders never run out.
        record=schema.VideoOptions(every=1 if asks_model else 8, keep="extremes", overlay=True),
    )


def _introduction(config: Config, model: str | None) -> str:
    player = {schema.Solver: "A scripted expert with a small error rate", schema.Local: "A small local model"}
    envs = ", ".join(entry.env for entry in config.entries)
    batches = f"{config.batches} batch{'es' * (config.batches != 1)} of {config.groups} groups"
    who = player.get(type(config.policy), model)
    return f"{who} plays {envs}: {batches}, {config.group_size} rollouts per group."


async def _show_batch(batch: Batch, display: Display) -> None:
    dropped = {name: value for name, value in batch.stats.items() if name.startswith("dropped_")}
    text = ", ".join(f"{value:g} {name.removeprefix('dropped_')}" for name, value in dropped.items()) or "none"
    reward = batch.stats["mean_reward"]
    display.say(f"batch {batch.index}: {len(batch.groups)} groups, mean reward {reward:.2f}; dropped: {text}")


async def _show_transcript(batch: Batch, display: Display) -> None:
    await _show_batch(batch, display)
    longest = max(batch.trajectories, key=_length)
    for message in longest.messages:
        text = message["content"] if isinstance(message["content"], str) else "(pictures)"
        display.say(f"  {message['role']}:")
        for line in text[:_SHOWN].splitlines():
            display.say(f"    {line}")
    display.say(f"  {longest.env}: reward {longest.reward:g}, {longest.stop_reason}")


def _length(trajectory: Trajectory) -> int:
    return sum(len(turn.reply) for turn in trajectory.turns)
