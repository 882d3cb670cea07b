"""An env under test: how to open it, which actions to play, and the episodes that were recorded."""

import copy
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from asyncrollout.errors import EnvError, UsageError
from asyncrollout.pool.handle import EnvHandle
from asyncrollout.pool.pool import EnvPool
from asyncrollout.registry import EnvSpec
from asyncrollout.testing.compare import difference
from asyncrollout.types import Outcome

Actions = Iterable[Any] | Callable[[Any, np.random.Generator], Any]
"""A sequence that each episode plays from its start, or a function of the observation and a seeded generator."""

Backend = Literal["inline", "process", "ray"]

ChooseAction = Callable[[int, Outcome, np.random.Generator], Any]
"""The action for a turn; raises StopIteration when there is none."""

_NONSENSE = "I do not know what to do."
_NONSENSE_EVERY = 5


@dataclass(frozen=True)
class MethodCall:
    """Among the actions of `check_env`: a call of another method of the env, as `EnvHandle.call` makes it."""

    method: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    keep: bool | None = None


@dataclass(frozen=True)
class CheckedEpisode:
    """The actions of one episode and what came of them; `error` if it broke off."""

    seed: int
    actions: Sequence[Any]
    outcomes: Sequence[Outcome]
    error: EnvError | None = None

    @property
    def half(self) -> int:
        return len(self.actions) // 2

    @property
    def ended(self) -> bool:
        return self.error is None and self.outcomes[-1].done

    @property
    def places(self) -> list[int]:
        """Where to interrupt it: at its start, and in its middle, be the next reply a good or a bad one."""
        return sorted({place for place in (0, self.half, self.half + 1) if place <= len(self.actions)})


@dataclass
class Case:
    """What the points are checked on, and a count of what was played."""

    spec: EnvSpec
    kwargs: Mapping[str, Any]
    pools: dict[Backend, EnvPool]
    task: Any = None
    episodes: list[CheckedEpisode] = field(default_factory=list)
    played: int = 0
    steps: int = 0
    places: set[str] = field(default_factory=set)
    hangs: bool = False  # nothing else can be checked

    @property
    def has_text(self) -> bool:
        wanted = self.kwargs.get("text")
        return self.spec.text is not None if wanted is None else bool(wanted)

    @property
    def has_workers(self) -> bool:
        return any(place.startswith("worker") for place in self.places)

    def one_process(self, backend: Backend) -> dict[str, Any]:
        """Options that keep envs in one process: between episodes, an env may move."""
        return {"worker": 0} if backend != "inline" and self.has_workers and "worker" not in self.kwargs else {}

    @asynccontextmanager
    async def open(self, backend: Backend, **options: Any) -> AsyncIterator[EnvHandle]:
        spec = self.spec.with_kwargs(**own_copy(dict(self.spec.kwargs)))
        async with self.pools[backend].open(spec, **{**own_copy(dict(self.kwargs)), **options}) as env:
            rank = env.worker
            self.places.add("the event loop" if rank == -1 else f"worker {rank}")
            yield env

    async def play(self, env: EnvHandle, seed: int, actions: Iterable[Any]) -> list[Outcome]:
        """An episode from its reset; it stops with its last action, or where the env ends it."""
        self.played += 1
        return await self.resume_at(env, actions, [await env.reset(seed=seed, task=self.task)])

    async def resume_at(self, env: EnvHandle, actions: Iterable[Any], so_far: Sequence[Outcome]) -> list[Outcome]:
        outcomes = list(so_far)
        for action in actions:
            if outcomes[-1].done:
                break
            if isinstance(action, MethodCall):
                await env.call(action.method, *action.args, keep=action.keep, **action.kwargs)
                continue
            outcomes.append(await env.step(action))
            self.steps += 1
        return outcomes

    async def replays(self, env: EnvHandle, episode: CheckedEpisode) -> list[str]:
        """Play an episode again; what differs, if anything."""
        seen = await self.play(env, episode.seed, episode.actions)
        return against(episode, seen)

    async def record(
        self, backend: Backend, seed: int, choose: ChooseAction, max_steps: int, **options: Any
    ) -> CheckedEpisode:
        """Play an episode with actions chosen on the way, and keep it."""
        actions: list[Any] = []
        outcomes: list[Outcome] = []
        generator = np.random.default_rng(seed)
        async with self.open(backend, **options) as env:
            try:
                outcomes = await self.play(env, seed, ())
                while len(actions) < max_steps and not outcomes[-1].done:
                    action = copy.deepcopy(choose(len(actions), outcomes[-1], generator))  # it may be one array, reused
                    outcomes = await self.resume_at(env, [action], outcomes)
                    actions.append(action)
            except StopIteration:
                pass
            except EnvError as error:
                if not outcomes:
                    raise
                return CheckedEpisode(seed, actions, outcomes, error)
        return CheckedEpisode(seed, actions, outcomes)


def own_copy(value: Any) -> Any:
    """A copy, so that no env sees what another one did with its arguments."""
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 (of what cannot be copied, nor sent to a worker)
        return value


def against(episode: CheckedEpisode, seen: Sequence[Outcome]) -> list[str]:
    parted = difference(episode.outcomes, seen)
    return [f"seed {episode.seed}: {parted}"] if parted else []


async def find_actions(case: Case, backend: Backend, given: Actions | None) -> tuple[ChooseAction, dict[str, Any]]:
    """How to choose actions, and the options to open the env with for that."""
    if callable(given):
        return lambda _, outcome, generator: given(outcome.observation, generator), {}
    if given is not None:
        actions = itertools.chain(given)
        known: list[Any] = []
        return lambda turn, *_: _nth(known, actions, turn), {}
    if await _has_solver(case, backend):
        return _expert, {"expert": True}
    async with case.open(backend) as env:
        await env.reset(seed=0, task=case.task)
        space = None
        with suppress(UsageError):  # it has none
            space = await env.call("action_space", keep=False)
    if space is None:
        raise UsageError(
            f"env {case.spec.name!r} has neither a solve() nor an action_space to take actions from: give "
            "check_env(..., actions=[...]), or a function of the observation and a numpy Generator"
        )
    space.seed(0)
    return lambda *_: space.sample(), {}


async def _has_solver(case: Case, backend: Backend) -> bool:
    try:
        async with case.open(backend, expert=True) as env:
            await env.reset(seed=0, task=case.task)
    except UsageError:  # what the pool says to expert=True for an env without one
        return False
    return True


def _expert(turn: int, outcome: Outcome, _: np.random.Generator) -> Any:
    return _NONSENSE if turn % _NONSENSE_EVERY == 1 else outcome.info["expert"]


def _nth(known: list[Any], more: Any, place: int) -> Any:
    while len(known) <= place:
        known.append(next(more))
    return known[place]
