"""The parts of an agent's policies that learn: where they are held back, and how their weights change together."""

import dataclasses
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import msgspec

from asyncrollout.concurrency import task_group
from asyncrollout.errors import UsageError
from asyncrollout.policies.gate import GatedPolicy, StampingPolicy, Weights, check_rises, weights_of
from asyncrollout.policies.wrappers import Frozen, composed_of, nested
from asyncrollout.protocols import Agent, Player, policies_of, replace_policies
from asyncrollout.trajectories import Move
from asyncrollout.types import Outcome, PauseMode

_UPDATES: ContextVar["list[object]"] = ContextVar("updates")  # that this code runs within


class PolicyControl:
    """The parts of an agent's policies that learn, as one: they are held back together, and have the same version.

    A part is a policy with `pause`, `resume` and a `version`: its own, or those of a `GatedPolicy` around it. If there
    is a journal, an agent asks Journaled(Gated(policy)): a recorded reply does not wait for the gate. Without parts,
    there is nothing to hold back, and the version stays 0.
    """

    def __init__(self, policies: Sequence[Any] = ()) -> None:
        self._policies = policies
        found = {id(part): part for policy in policies for part in learning_parts(policy)}
        self._parts = parts = [*found.values()]
        self._weights = {id(weights): weights for weights in map(_weights, parts)}
        self._update: object = None
        for part in parts:
            if isinstance(part, GatedPolicy) and not part.updates:
                part.version = self.version  # it knows no other

    @property
    def version(self) -> int:
        return max((int(part.version) for part in self._parts), default=0)

    @property
    def can_update(self) -> bool:
        """Whether there is something to hold back, and to give new weights."""
        return bool(self._parts)

    @asynccontextmanager
    async def one_at_a_time(self) -> AsyncIterator[None]:
        """Whoever changes the weights of one of the parts, in these `Rollouts` or others, does it alone."""
        with ExitStack() as turns:
            for _, weights in sorted(self._weights.items()):  # in one order, so that nobody waits for each other
                try:
                    weights.changing.acquire_nowait()  # without a pause in which others would begin calls
                except anyio.WouldBlock:
                    await weights.changing.acquire()
                turns.callback(weights.changing.release)
            update = self._update = object()
            around = _UPDATES.get([])
            _UPDATES.set([*around, update])
            try:
                yield
            finally:
                self._update = None
                _UPDATES.set(around)

    def check(self, version: int) -> None:
        check_rises(version, self.version)

    async def pause(self, mode: PauseMode) -> None:
        """Hold all parts back; if one fails, `resume` lets the others go."""
        for weights in self._weights.values():
            weights.held.begin()
        *others, last = self._parts
        async with task_group() as pausing:
            for part in others:
                pausing.start_soon(part.pause, mode)
            await last.pause(mode)

    async def resume(self, version: int | None) -> None:
        """Let calls through again, with this version of the weights; all parts, even if one fails."""
        failed: list[Exception] = []

        async def resume_one(part: Any) -> None:
            try:
                await part.resume(version)
            except Exception as error:  # noqa: BLE001 (raised below)
                failed.append(error)

        for policy in self._policies:
            for part in _learning_side(policy):
                if hasattr(part, "forget"):
                    part.forget()
        try:
            async with task_group() as resuming:
                for part in self._parts:
                    resuming.start_soon(resume_one, part)
        finally:
            for weights in self._weights.values():
                weights.held.end()
        if failed:
            raise failed[0]

    async def start_at(self, version: int) -> None:
        """Weights that others load, as when a run is resumed; a part that is not ours is resumed as after an update."""
        for part in self._parts:
            if hasattr(part, "start_at"):
                await part.start_at(version)
                continue
            try:
                part.version = version
            except AttributeError:
                await part.resume(version)

    def last_held(self) -> float:
        """Until when a part was held back, on the monotonic clock: now while it is.

        Not for code within an update of its own: what that waits for will not come, and must count as a stall.
        """
        if self._update is not None and self._update in _UPDATES.get([]):
            return -math.inf
        held: list[float] = [part.last_held() for part in self._parts if hasattr(part, "last_held")]
        return max(held + [weights.held.last() for weights in self._weights.values()], default=-math.inf)


class GatedAgent:
    """An agent that does not show how it asks its policy: each move is held back and stamped as a whole."""

    def __init__(self, agent: Any, gated: GatedPolicy) -> None:
        self._agent = agent
        self._gated = gated

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_agent", "_gated"):
            raise AttributeError(name)
        return getattr(self._agent, name)

    def open(self, session: str, seed: int) -> Player:
        return _GatedPlayer(self._agent.open(session, seed), self._gated)


class _GatedPlayer:
    def __init__(self, player: Player, gated: GatedPolicy) -> None:
        self._player = player
        self._gated = gated

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self._player.messages

    async def act(self, outcome: Outcome, *, tokens_left: int | None) -> Any:
        move, version = await self._gated.call(lambda: self._act(outcome, tokens_left))
        if not isinstance(move, Move):  # whoever asked says so
            return move
        return msgspec.structs.replace(move, generation=msgspec.structs.replace(move.generation, version=version))

    async def _act(self, outcome: Outcome, tokens_left: int | None) -> Any:
        return await self._player.act(outcome, tokens_left=tokens_left)


def hold_back(agent: Any) -> tuple[Agent, PolicyControl]:
    """The agent with gates where the calls of its policies really start, and the control of the parts behind them."""
    own = policies_of(agent)
    _check_frozen(own)
    gated = [_behind_gates(policy) for policy in own]
    if None in gated:
        return agent, PolicyControl()
    noting = [_noting(policy) for policy in gated]
    if all(new is old for new, old in zip(noting, own, strict=True)):
        return agent, PolicyControl(gated)
    if (rebuilt := replace_policies(agent, noting)) is not None:
        return rebuilt, PolicyControl(gated)
    if all(new is old for new, old in zip(gated, own, strict=True)):
        return agent, PolicyControl(gated)
    if _is_plain(own[0]):  # its attribute `policy`, in whose place we cannot put another
        gate = GatedPolicy(own[0])
        return GatedAgent(agent, gate), PolicyControl([gate])
    return agent, PolicyControl()


def _behind_gates(policy: Any) -> Any:
    """The policy with each leaf that learns behind a gate of its own; None if a leaf is out of reach."""
    if isinstance(policy, Frozen) or hasattr(policy, "pause"):
        return policy
    inside = composed_of(policy)
    if not inside:
        return GatedPolicy(policy)
    gated = [_behind_gates(part) for part in inside]
    if all(new is old for new, old in zip(gated, inside, strict=True)):
        return policy
    if None not in gated and (rebuilt := _rebuilt(policy, gated)) is not None:
        return rebuilt
    return GatedPolicy(policy) if _is_plain(policy) else None


def _noting(policy: Any) -> Any:
    """The policy with the stamps of each part that has its own `pause` noted, as far as such parts are in reach."""
    if isinstance(policy, Frozen | GatedPolicy):
        return policy
    if hasattr(policy, "pause"):
        return StampingPolicy(policy)
    inside = composed_of(policy)
    noting = [_noting(part) for part in inside]
    if all(new is old for new, old in zip(noting, inside, strict=True)):
        return policy
    return _rebuilt(policy, noting) or policy


def _rebuilt(policy: Any, gated: list[Any]) -> Any:
    """A dataclass with other policies inside; None of what is none."""
    if not dataclasses.is_dataclass(policy) or isinstance(policy, type):
        return None
    fields = {field.name for field in dataclasses.fields(policy) if field.init}
    changes: dict[str, Any] = {}
    if hasattr(getattr(policy, "inner", None), "generate"):
        changes["inner"] = gated.pop(0)
    if gated:
        several: Any = getattr(policy, "policies", ())
        rest = iter(gated)
        changes["policies"] = type(several)(next(rest) if hasattr(one, "generate") else one for one in several)
    return dataclasses.replace(policy, **changes) if changes.keys() <= fields else None


def _is_plain(policy: Any) -> bool:
    """Whether no part has a way of its own with updates, so that one gate around the whole is right for all."""
    return not any(isinstance(part, Frozen) or hasattr(part, "pause") for part in nested(policy))


def learning_parts(policy: Any) -> Iterator[Any]:
    """The parts that updates of weights reach: each with its own `pause`, or the gate around it."""
    if isinstance(policy, Frozen):
        return
    if hasattr(policy, "pause"):
        yield policy
        return
    for part in composed_of(policy):
        yield from learning_parts(part)


def _learning_side(policy: Any) -> Iterator[Any]:
    """As `nested`, without what is frozen."""
    if not isinstance(policy, Frozen):
        yield policy
        for part in composed_of(policy):
            yield from _learning_side(part)


def _check_frozen(policies: Sequence[Any]) -> None:
    """What learns in one place does not stand still in another."""
    parts = [part for policy in policies for part in nested(policy)]
    still = {id(part) for one in parts if isinstance(one, Frozen) for part in nested(one.inner)}
    for policy in policies:
        for part in _learning_side(policy):
            if id(part) in still:
                raise UsageError(f"the policy {part!r:.100} is used both as a frozen part and as one that learns")


def _weights(part: Any) -> Weights:
    return part.weights if isinstance(part, GatedPolicy) else weights_of(part)
