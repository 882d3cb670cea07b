"""Evaluations: envs on ranked processes, each with its video, and a table of what came of it."""

import inspect
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

import anyio
import anyio.to_thread
import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from asyncrollout.agents.numeric import MarkovAgent
from asyncrollout.cli.app import DONE, STOPPED, Output, Told
from asyncrollout.cli.building import chat_agent, check_imports, imported, open_policy
from asyncrollout.cli.envs import allowed_env
from asyncrollout.cli.outcomes import by_task, outcomes
from asyncrollout.cli.stopping import stoppable
from asyncrollout.cli.summary import number
from asyncrollout.config import schema
from asyncrollout.config.evaluation import EvaluationConfig, Python, read_evaluation
from asyncrollout.errors import RolloutError, UsageError
from asyncrollout.evaluation.plan import Plan, make_plan
from asyncrollout.evaluation.playing import Manner, play, videos_in
from asyncrollout.evaluation.results import Episode, summarize
from asyncrollout.policies.embedded import ScriptedPolicy
from asyncrollout.protocols import Agent
from asyncrollout.ranks import visible_devices
from asyncrollout.registry import EnvSpec
from asyncrollout.types import Generation, Request

_DEVICES = "CUDA_VISIBLE_DEVICES"


async def eval(  # noqa: A001 (the command's name)
    config: Annotated[Path, Parameter(help="A YAML file; see examples/configs/behavior_eval.yaml.")],
    *overrides: Annotated[str, Parameter(help="Values that replace those of the file: env.eval.total_num_envs=8")],
    base_url: Annotated[str | None, Parameter(help="An OpenAI-compatible server; its key is $OPENAI_API_KEY.")] = None,
    model: Annotated[str | None, Parameter(help="The name of the server's model.")] = None,
    policy: Annotated[str | None, Parameter(help="A policy of yours, as module:name; needs --allow-import.")] = None,
    allow_import: Annotated[bool, Parameter(help="Let the configuration import code: a policy, an env class.")] = False,
    output: Told,
) -> int:
    """Evaluate a policy."""
    chosen = _with_policy(read_evaluation(config, overrides), base_url, model, policy)
    check_imports(chosen, allow_import=allow_import)
    spec = allowed_env(chosen.env.eval.env_type, allow_import=allow_import)
    plan = make_plan(chosen, spec, visible=os.environ.get(_DEVICES))
    watch = _Watch(plan, output)
    async with stoppable() as stop:
        with stop.scope() as playing:
            async with _opened_agent(chosen, spec) as (agent, text):
                is_expert = isinstance(chosen.policy, schema.Solver)
                manner = Manner(agent, text, is_expert, watch.step, watch.end)
                output.say(_introduced(plan, chosen))
                with watch.shown():
                    await play(plan, chosen.env.eval, manner)
    return _ended(plan, watch.episodes, chosen, output, has_stopped=playing.cancelled_caught)


def _with_policy(
    config: EvaluationConfig, base_url: str | None, model: str | None, path: str | None
) -> EvaluationConfig:
    """With the policy that the command line names instead of the file's."""
    if (base_url is None) != (model is None):
        raise UsageError("--base-url and --model go together: the address of a server, and one of its models")
    if path is not None and base_url is not None:
        raise UsageError("--policy names a policy of yours, and --base-url a server: choose one")
    if base_url is not None and model is not None:
        return msgspec.structs.replace(config, policy=schema.OpenAI(base_url=base_url, model=model))
    if path is None:
        return config
    if ":" not in path:
        raise UsageError(f"--policy {path!r} is no import path: write module:name")
    return msgspec.structs.replace(config, policy=Python(path))


@asynccontextmanager
async def _opened_agent(config: EvaluationConfig, spec: EnvSpec) -> AsyncIterator[tuple[Agent, bool]]:
    """What plays, and whether it plays in words."""
    if isinstance(config.policy, Python):
        own = _own_policy(config, config.policy)
        if hasattr(own, "open"):
            yield own, spec.text is not None
        elif not hasattr(own, "generate"):
            yield MarkovAgent(ScriptedPolicy(_Acting(own))), False
        elif spec.text is None:
            yield MarkovAgent(own), False
        else:
            yield chat_agent(own, config.agent), True
        return
    if isinstance(config.policy, schema.Solver) and spec.text is None:
        raise UsageError(f"policy: {spec.name} has no expert to play it: give a policy")
    async with open_policy(config.policy) as policy:
        yield chat_agent(policy, config.agent), True


def _own_policy(config: EvaluationConfig, chosen: Python) -> Any:
    """What a path names; if it is a class, or there are options for it, what it makes."""
    if "rollout" in config.cluster.components:  # before its code loads what looks for GPUs
        gpus = [gpu for worker in config.cluster.workers("rollout") for gpu in worker.gpus]
        os.environ[_DEVICES] = visible_devices(sorted({*gpus}), os.environ.get(_DEVICES))
    own = imported(chosen.path, "policy.path")
    if inspect.isclass(own) or chosen.kwargs:
        own = own(**chosen.kwargs)
    if not (callable(own) or hasattr(own, "open") or hasattr(own, "generate")):
        raise UsageError(f"policy.path: {chosen.path!r} is of type {type(own).__name__}: neither policy nor agent")
    return own


class _Acting:
    """A function of an observation as one of a request. One that is no coroutine is called in a thread, by one episode
    at a time, so that the envs go on meanwhile.
    """

    def __init__(self, act: Any) -> None:
        self._act = act
        self._is_async = inspect.iscoroutinefunction(act) or inspect.iscoroutinefunction(getattr(act, "__call__", None))  # noqa: B004
        self._one = anyio.CapacityLimiter(1)

    async def __call__(self, request: Request) -> Generation:
        if self._is_async:
            action = await self._act(request.data)
        else:
            action = await anyio.to_thread.run_sync(self._act, request.data, limiter=self._one, abandon_on_cancel=True)
        return Generation("", action=action)


class _Watch:
    """How an evaluation goes: a bar on a terminal, elsewhere a line for each episode."""

    def __init__(self, plan: Plan, output: Output) -> None:
        self.episodes: list[Episode] = []
        self._plan = plan
        self._output = output
        self._steps = 0
        console = Console(stderr=True, quiet=output.quiet or output.json)
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}"), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_interactive)
        self._task = self._bar.add_task("", total=plan.episodes, told="episodes")

    @contextmanager
    def shown(self) -> Iterator[None]:
        with self._bar:
            yield

    def step(self) -> None:
        self._steps += 1
        self._tell()

    def end(self, episode: Episode) -> None:
        self.episodes.append(episode)
        self._output.record({"event": "episode", **msgspec.to_builtins(episode)})
        if self._bar.disable and not self._output.json:
            self._output.say(f"{len(self.episodes)} of {self._plan.episodes}: {_line(episode)}")
        self._bar.advance(self._task)
        self._tell()

    def _tell(self) -> None:
        won = sum(bool(episode.success) for episode in self.episodes)
        self._bar.update(self._task, told=f"episodes, {won} successes, {self._steps} turns")


def _line(episode: Episode) -> str:
    if episode.error:
        return f"{episode.env} {episode.task}: failed: {episode.error[:200]}"
    how = "success" if episode.success else "no success"
    return f"{episode.env} {episode.task}: {how}, return {number(episode.reward)}, {episode.steps} steps"


def _introduced(plan: Plan, config: EvaluationConfig) -> str:
    chosen = config.env.eval
    gpus = ", ".join(dict.fromkeys(str(part.seat.gpu) for part in plan.parts))
    films = f"videos in {chosen.video_cfg.video_base_dir}" if chosen.video_cfg.save_video else "no videos"
    envs, processes = len(plan.parts), len(plan.environs)
    told = f"{envs} env{'s' * (envs > 1)} in {processes} process{'es' * (processes > 1)}"
    return f"{chosen.env_type}: {told} (GPU {gpus}), {films}"


def _ended(plan: Plan, episodes: list[Episode], config: EvaluationConfig, output: Output, *, has_stopped: bool) -> int:
    order = {part.seat.video_id: place for place, part in enumerate(plan.parts)}
    episodes = sorted(episodes, key=lambda episode: (order[episode.env], episode.episode))
    found = summarize(episodes)
    state = "stopped" if has_stopped else "done"
    tasks = msgspec.to_builtins(by_task(episodes))
    video = config.env.eval.video_cfg
    videos = len(videos_in(Path(video.video_base_dir), video.prefix)) if video.save_video else 0
    output.record({"event": "ended", "state": state, **msgspec.to_builtins(found), "tasks": tasks, "videos": videos})
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
        output.warn(f"{found.failed} of {len(episodes)} episodes failed, and count in no figure")
    return DONE
