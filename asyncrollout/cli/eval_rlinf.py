"""`eval` on files with RLinf's keys: envs on ranked processes, each with a video, and a table of outcomes."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from asyncrollout.cli.terminal.numbers import number
from asyncrollout.cli.terminal.output import DONE, STOPPED, Output
from asyncrollout.cli.terminal.rlinf_table import by_task, outcomes
from asyncrollout.cli.terminal.signals import stoppable
from asyncrollout.config.build import check_imports
from asyncrollout.config.document import load
from asyncrollout.config.reading import read_text
from asyncrollout.dropin.rlinf.config import EvaluationConfig, read_evaluation
from asyncrollout.dropin.rlinf.plan import EvaluationPlan, make_plan
from asyncrollout.dropin.rlinf.player import open_player
from asyncrollout.dropin.rlinf.ranks import devices
from asyncrollout.dropin.rlinf.results import EvaluatedEpisode, decided, summarize
from asyncrollout.dropin.rlinf.run import run_plan, videos_in, with_videos
from asyncrollout.errors import RolloutError, UsageError
from asyncrollout.registry import allowed_env

_EXPERT = "solver"


def is_rlinf(path: Path, overrides: Sequence[str]) -> bool:
    """Whether a file or its overrides have RLinf's keys, `env.eval` and `cluster`; one that names its `env` has not."""
    values = load(read_text(path), str(path)).value
    values = values if isinstance(values, dict) else {}
    env = values.get("env") or {}
    if not isinstance(env, dict) or "env" in env:
        return False
    keys = [*map(str, values), *(f"env.{key}" for key in env), *overrides]
    return any(key.startswith(("env.eval", "cluster")) for key in keys)


async def evaluate_rlinf(
    config: Path,
    overrides: Sequence[str],
    *,
    base_url: str | None,
    model: str | None,
    policy: str | None,
    allow_import: bool,
    output: Output,
) -> int:
    """Evaluate a policy on ranked processes, as configured in a file."""
    chosen = read_evaluation(config, [*_policy_override(base_url, model, policy), *overrides])
    check_imports(chosen, allow_import=allow_import)
    spec = allowed_env(chosen.env.eval.env_type, allow_import=allow_import)
    plan = make_plan(chosen, spec, visible=devices())
    watch = _LiveView(plan, output)
    async with stoppable() as stop:
        with stop.scope() as playing:
            async with open_player(chosen, spec) as player:
                output.say(_introduced(plan, chosen))
                with watch.shown():
                    await run_plan(plan, chosen.env.eval, player, on_step=watch.step, on_episode=watch.end)
    return _ended(plan, watch.episodes, chosen, output, has_stopped=playing.cancelled_caught)


def _policy_override(base_url: str | None, model: str | None, named: str | None) -> list[str]:
    """The policy of the command line in place of the file's; `policy.attempts=3` after it applies to it."""
    if base_url is not None and model is not None:
        return [_as_policy(kind="openai", base_url=base_url, model=model)]
    if named is None:
        return []
    if named == _EXPERT:
        return [_as_policy(kind=_EXPERT)]
    if ":" not in named:
        raise UsageError(f"--policy {named!r} is neither 'solver', the env's expert, nor an import path, module:name")
    return [_as_policy(kind="python", path=named)]


def _as_policy(**values: str) -> str:
    return f"policy={json.dumps(values)}"


class _LiveView:
    """Progress of an evaluation: a bar on a terminal, otherwise a line per episode."""

    def __init__(self, plan: EvaluationPlan, output: Output) -> None:
        self.episodes: list[EvaluatedEpisode] = []
        self._plan = plan
        self._output = output
        self._steps = 0
        console = Console(stderr=True, quiet=output.quiet or output.json)
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[text]}"), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_interactive)
        self._task = self._bar.add_task("", total=plan.episodes, text="episodes")

    @contextmanager
    def shown(self) -> Iterator[None]:
        with self._bar:
            yield

    def step(self) -> None:
        self._steps += 1
        self._update()

    def end(self, episode: EvaluatedEpisode) -> None:
        self.episodes.append(episode)
        self._output.record({"event": "episode", **msgspec.to_builtins(episode)})
        if self._bar.disable and not self._output.json:
            self._output.say(f"{len(self.episodes)} of {self._plan.episodes}: {_line(episode)}")
        self._bar.advance(self._task)
        self._update()

    def _update(self) -> None:
        won = sum(bool(episode.success) for episode in self.episodes)
        self._bar.update(self._task, text=f"episodes, {won} successes, {self._steps} turns")


def _line(episode: EvaluatedEpisode) -> str:
    if episode.error:
        return f"{episode.env} {episode.task}: failed: {episode.error[:200]}"
    how = {True: "success", False: "no success", None: "success not reported"}[episode.success]
    return f"{episode.env} {episode.task}: {how}, return {number(episode.reward)}, {episode.steps} steps"


def _introduced(plan: EvaluationPlan, config: EvaluationConfig) -> str:
    chosen = config.env.eval
    gpus = ", ".join(dict.fromkeys(str(env.slot.gpu) for env in plan.envs))
    videos = f"videos in {chosen.video_cfg.video_base_dir}" if chosen.video_cfg.save_video else "no videos"
    envs, processes = len(plan.envs), len(plan.environs)
    text = f"{envs} env{'s' * (envs > 1)} in {processes} process{'es' * (processes > 1)}"
    split = "" if plan.split is None else f"split {plan.split}, "
    return f"{chosen.env_type}: {text} (GPU {gpus}), {split}{videos}"


def _ended(
    plan: EvaluationPlan,
    episodes: list[EvaluatedEpisode],
    config: EvaluationConfig,
    output: Output,
    *,
    has_stopped: bool,
) -> int:
    order = {env.slot.video_id: place for place, env in enumerate(plan.envs)}
    episodes = decided(sorted(episodes, key=lambda episode: (order[episode.env], episode.episode)))
    found = summarize(episodes)
    state = "stopped" if has_stopped else "done"
    tasks = msgspec.to_builtins(by_task(episodes))
    video = config.env.eval.video_cfg
    videos = len(videos_in(Path(video.video_base_dir), video.prefix)) if video.save_video else 0
    made = with_videos(episodes, Path(video.video_base_dir))
    without = [one.video for one, after in zip(episodes, made, strict=True) if one.video != after.video]
    totals = {**msgspec.to_builtins(found), "tasks": tasks}
    ended = {"event": "ended", "state": state, "split": plan.split, "videos": videos, "videos_not_made": without}
    output.record({**ended, **totals})
    if episodes:
        output.show(outcomes(episodes))
    if video.save_video:
        where = f"{videos}, {video.video_base_dir}/{video.prefix}_ENV.mp4"
        output.say(f"Videos: {where if videos else 'none'}")
    if has_stopped:
        output.show(f"stopped after {len(episodes)} of {plan.episodes} episodes")
        return STOPPED
    if found.failed == len(episodes):
        raise RolloutError(f"all {len(episodes)} episodes failed; the first one: {episodes[0].error}")
    if found.failed:
        output.warn(f"{found.failed} of {len(episodes)} episodes failed and are not counted")
    return DONE
