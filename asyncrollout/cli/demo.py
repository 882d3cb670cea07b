"""A first look: several envs at once, in groups, filtered and streamed in batches."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from asyncrollout.batches.batch import Batch
from asyncrollout.cli.app import WHOLE, Told, program
from asyncrollout.cli.directory import new_directory, next_attempt, write_config
from asyncrollout.cli.run import Runs, play
from asyncrollout.cli.terminal.live import Display
from asyncrollout.cli.terminal.logs import logging_to
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
    env: Annotated[str | None, Parameter(help="Only this one, such as sokoban.")] = None,
    *,
    base_url: Annotated[str | None, Parameter(help="An OpenAI-compatible server; its key is $OPENAI_API_KEY.")] = None,
    model: Annotated[str | None, Parameter(help="The name of the server's model.")] = None,
    local: Annotated[bool, Parameter(help="Ask a small model on this machine (after `make local-llm`).")] = False,
    batches: Annotated[int | None, WHOLE, Parameter(help="How many batches to play: 12, or 2 with a model.")] = None,
    runs: Runs = Path("runs"),
    output: Told,
) -> int:
    """Play a small run that shows what there is."""
    if (base_url is None) != (model is None):
        raise UsageError("--base-url and --model go together: the address of a server, and one of its models")
    if local and base_url is not None:
        raise UsageError("--local asks a model on this machine, and --base-url a server: choose one")
    if batches is not None and batches < 1:
        raise UsageError(f"--batches {batches}: there must be at least one")
    if env is not None:
        allowed_env(env, allow_import=False)
    asks_model = local or base_url is not None
    count = (2 if asks_model else 12) if batches is None else batches
    config = _config(env, _policy(base_url, model, local=local), count, asks_model=asks_model)
    show = _show_transcript if asks_model else _tell
    with new_directory(runs, None, "demo") as directory:
        write_config(directory, config, None)
        with logging_to(next_attempt(directory), console=not output.quiet):
            code = await play(config, directory, resume=False, output=output, on_batch=show)
        finished = next((read_head(line).uid for line in whole_lines(directory / TRAJECTORIES)), None)
    if finished is not None:
        output.say(f"\nLook at an episode, turn by turn:\n  {program()} replay {directory} {finished}")
    return code


def _policy(base_url: str | None, model: str | None, *, local: bool) -> schema.Policy:
    if base_url is not None and model is not None:
        return schema.OpenAI(base_url=base_url, model=model, logprobs=False)  # which not every server gives
    if local:
        return schema.Local(logprobs=False)
    return schema.Solver(error_rate=0.15, latency=0.3)


def _config(env: str | None, policy: schema.Policy, batches: int, *, asks_model: bool) -> Config:
    """Experts play larger groups than a model on this machine can."""
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
        # So few of the groups in flight are filmed that their encoders never run out.
        record=schema.VideoOptions(every=1 if asks_model else 8, keep="extremes", overlay=True),
    )


async def _tell(batch: Batch, display: Display) -> None:
    dropped = {name: value for name, value in batch.stats.items() if name.startswith("dropped_")}
    told = ", ".join(f"{value:g} {name.removeprefix('dropped_')}" for name, value in dropped.items()) or "none"
    reward = batch.stats["mean_reward"]
    display.say(f"batch {batch.index}: {len(batch.groups)} groups, mean reward {reward:.2f}; dropped: {told}")


async def _show_transcript(batch: Batch, display: Display) -> None:
    await _tell(batch, display)
    longest = max(batch.trajectories, key=_length)
    for message in longest.messages:
        text = message["content"] if isinstance(message["content"], str) else "(pictures)"
        display.say(f"  {message['role']}:")
        for line in text[:_SHOWN].splitlines():
            display.say(f"    {line}")
    display.say(f"  {longest.env}: reward {longest.reward:g}, {longest.stop_reason}")


def _length(trajectory: Trajectory) -> int:
    return sum(len(turn.reply) for turn in trajectory.turns)
