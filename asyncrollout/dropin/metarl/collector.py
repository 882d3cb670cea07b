"""Rollouts collected in one of several ways, each of which gives the same rollouts."""

from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from asyncrollout.agents.numeric import RandomAgent
from asyncrollout.dropin import portal
from asyncrollout.dropin.metarl.acting import (
    AGENT_ARCHS,
    batched_agent,
    device_of,
    direct_agent,
    is_torch_module,
    one_torch_thread,
)
from asyncrollout.dropin.metarl.agent_rollout import Work
from asyncrollout.dropin.metarl.chance import kept_generators
from asyncrollout.dropin.metarl.collecting import (
    CollectedRollout,
    RolloutStart,
    play_alone,
    play_asked,
    play_shares,
)
from asyncrollout.dropin.metarl.parallel import ParallelEnvManager
from asyncrollout.dropin.metarl.remote_agent import load_in_workers, play_in_worker, ship_agent
from asyncrollout.dropin.metarl.serving import MetaEnv
from asyncrollout.dropin.metarl.ways import Took, Way, WayShare
from asyncrollout.dropin.metarl.worker_rollout import ASKED_FOR, AgentRef
from asyncrollout.errors import ProviderError, UsageError
from asyncrollout.logs import get_logger
from asyncrollout.pool.handle import EnvHandle
from asyncrollout.protocols import Agent

log = get_logger(__name__)


@dataclass(frozen=True)
class Collection:
    """How the rollouts of a call were played: the way of most of them, the seconds, and why not in workers (if so)."""

    way: Way
    steps: int
    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class ActingAgent:
    """A learner's agent and how it acts; without an `arch`, at random."""

    agent: Any
    arch: AGENT_ARCHS | None
    action_space: Any

    @property
    def discrete(self) -> bool:
        return type(self.action_space).__name__ == "Discrete"

    @property
    def make(self) -> Callable[[], Agent]:
        if self.arch is None:
            return partial(RandomAgent, self.action_space)
        return partial(direct_agent, self.agent, self.arch, discrete=self.discrete)

    @property
    def kind(self) -> Hashable:
        """Agents of one kind are taken to be equally fast."""
        return None if self.arch is None else (type(self.agent), self.arch)


def collect_alone(acting: ActingAgent, envs: Sequence[Any], plays: list[RolloutStart]) -> list[CollectedRollout]:
    """One rollout after the other, here; of several envs each plays its share, as in workers."""
    played = [MetaEnv(env).played for env in envs]
    return _run(acting, partial(play_alone, acting.make(), played, plays))


def collect_here(
    acting: ActingAgent, envs: Sequence[EnvHandle], plays: list[RolloutStart], *, in_batches: bool = False
) -> list[CollectedRollout]:
    """In envs of the workers, with the agent here; in batches, it is asked for all envs that wait."""

    async def play() -> list[CollectedRollout]:
        if acting.arch is None or not in_batches:
            return await play_shares(envs, plays, partial(play_asked, acting.make()))
        async with batched_agent(acting.agent, acting.arch, discrete=acting.discrete) as agent:
            return await play_shares(envs, plays, partial(play_asked, agent))

    return _run(acting, play)


def collect_in_workers(
    agent: AgentRef, envs: Sequence[EnvHandle], plays: list[RolloutStart], step_timeout: float
) -> list[CollectedRollout]:
    """By the envs' workers, with copies of the agent."""
    return portal.run(play_shares, envs, plays, partial(play_in_worker, agent, step_timeout))


def _run(acting: ActingAgent, play: Any) -> list[CollectedRollout]:
    async def kept() -> list[CollectedRollout]:
        with kept_generators(), one_torch_thread(acting.agent):  # in the thread that acts
            rollouts: list[CollectedRollout] = await play()
            return rollouts

    return portal.run(kept)


class PoolCollector:
    """Collects from a pool, in the way that measurements of this pool favour."""

    def __init__(self, acting: ActingAgent, manager: ParallelEnvManager, clock: Callable[[], float]) -> None:
        self._acting = acting
        self._manager = manager
        self._clock = clock
        self._memory = manager.ways

    def collect(self, plays: list[RolloutStart]) -> tuple[list[CollectedRollout], Collection]:
        """The rollouts, and how most of them were played. An agent that cannot act in workers acts here."""
        kind = self._acting.kind
        chooser = self._memory.chooser(kind, len(plays), self._manager.num_envs)
        if kind not in self._memory.refusals and (reason := _needs_this_process(self._acting)):
            self._refuse(reason)
        rollouts: list[CollectedRollout] = []
        total = 0.0
        for share in chooser.choose(self._ways(), len(plays)):
            way, played, seconds = self._play(share, plays[len(rollouts) :][: share.rollouts], len(rollouts))
            work = reduce(Work.plus, (one.work for one in played))
            steps = sum(len(one.rewards) for one in played)
            needed = seconds - work.checked / min(share.rollouts, self._manager.num_envs)  # checked once
            took = Took(steps, needed, work.worked, work.acted, work.computed)
            chooser.record(WayShare(way, share.rollouts), took)
            rollouts += played
            total += seconds
        steps = sum(len(one.rewards) for one in rollouts)
        return rollouts, Collection(way, steps, total, self._memory.refusals.get(kind, ""))

    def _ways(self) -> list[Way]:
        return [way for way in Way if way is not Way.WORKERS or self._acting.kind not in self._memory.refusals]

    def _play(
        self, share: WayShare, plays: list[RolloutStart], first: int
    ) -> tuple[Way, list[CollectedRollout], float]:
        """The way in the end, the rollouts from number `first` on, and the seconds."""
        try:
            return share.way, *self._timed(share.way, plays, first)
        except (UsageError, ProviderError) as error:
            if share.way is not Way.WORKERS:
                raise
            rollouts, seconds = self._timed(Way.HERE, plays, first)  # which raises what fails here, too
            self._refuse(str(error).removeprefix(ASKED_FOR))
            return Way.HERE, rollouts, seconds

    def _timed(self, way: Way, plays: list[RolloutStart], first: int) -> tuple[list[CollectedRollout], float]:
        manager, number = self._manager, self._manager.num_envs
        ranks = [(first + place) % number for place in range(min(len(plays), number))]  # env i plays i, i + n, ...
        local = [manager.local_env(rank) for rank in ranks] if way is Way.SEQUENTIAL else []  # made once
        handles = [manager.envs[rank].handle for rank in ranks]
        with ExitStack() as stack:
            began = self._clock()
            if way is Way.WORKERS:
                is_new = self._acting.kind not in self._memory.proven
                agent = stack.enter_context(ship_agent(self._acting.make, is_checked=is_new))
                if is_new:
                    portal.run(load_in_workers, agent, [each.handle for each in manager.envs])
                    began = self._clock()  # packages are imported once
                rollouts = collect_in_workers(agent, handles, plays, manager.step_timeout)
                self._memory.proven.add(self._acting.kind)
            elif way is Way.HERE:
                rollouts = collect_here(self._acting, handles, plays)
            else:
                rollouts = collect_alone(self._acting, local, plays)
            return rollouts, self._clock() - began

    def _refuse(self, reason: str) -> None:
        self._memory.refusals[self._acting.kind] = reason
        log.warning("agent_acts_here", agent=type(self._acting.agent).__name__, reason=reason)


def _needs_this_process(acting: ActingAgent) -> str:
    """Why an agent is not sent to workers unless asked for, if there is a reason."""
    if acting.arch is None or not is_torch_module(acting.agent):
        return ""
    device = device_of(acting.agent)
    return f"it is on {device}" if device is not None and device.type != "cpu" else ""
