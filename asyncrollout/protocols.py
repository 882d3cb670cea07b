"""The plug points: what environments, text interfaces, policies and agents must offer. All are duck-typed."""

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from asyncrollout.errors import UsageError
from asyncrollout.trajectories import Move
from asyncrollout.types import Generation, Observation, Outcome, Parsed, Request


@runtime_checkable
class Env(Protocol):
    """Gymnasium's interface. `render()` and `close()` are optional; `reset` and `step` may be coroutines.

    An env whose attribute `plays_by_chance` is true is also given `options["member"]`: members of a group start alike
    from one seed, but each must draw its luck from a generator of its own.
    """

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Any:
        """Start an episode: `(observation, info)`. The task, if any, is `options["task"]`."""

    def step(self, action: Any) -> Any:
        """`(observation, reward, terminated, truncated, info)`."""


@runtime_checkable
class Snapshots(Protocol):
    """Optional for an env: an episode's whole state as bytes, random generators included. May be coroutines."""

    def snapshot(self) -> bytes: ...

    def restore(self, state: bytes) -> None: ...


def has_snapshots(thing: Any) -> bool:
    """Whether its class offers them: an object that passes on what it lacks to another one leaves out itself."""
    return all(callable(getattr(type(thing), name, None)) for name in ("snapshot", "restore"))


class EnvRecording(Protocol):
    """Records an env that is opened with it; see `asyncrollout.video`."""

    @property
    def camera(self) -> tuple[str, Any]:
        """The import path of what makes a `Camera` as `factory(env, options, tell)`, where the env lives; its options.

        All that travels there must pickle. `tell` puts an action into words.
        """

    def opened(self, end_video: Callable[[tuple[str, Any]], Awaitable[Any]]) -> None:
        """The env has its handle; `end_video(camera)` ends its recording, wherever it lives, and returns the footage.

        None if it cannot be asked. From then on the env is made with the given camera, which records nothing.
        """

    def ended(self, footage: list[Any] | None) -> None:
        """The env is closed; this is what its camera has, or None if it could not be asked."""


class Camera(Protocol):
    """Records an env from its own process. It never raises: an episode must not fail because of its video."""

    @property
    def is_recording(self) -> bool:
        """Whether it wants another picture."""

    @property
    def is_behind(self) -> bool:
        """Whether it should `catch_up` before the next call."""

    def catch_up(self) -> None:
        """Wait, for some seconds at most."""

    def begin(self, episode: int, turns_before: int = 0) -> None:
        """An episode was reset; or, after so many turns, restored. Its first picture follows."""

    def shoot(self, picture: Any, action: Any = None, reward: float = 0.0) -> None:
        """What the env shows after its reset, or after an action."""

    def fail(self, trouble: str, *, for_good: bool = False) -> None:
        """Rendering failed, with the reason; `for_good` if such an env can never be rendered."""

    def end_turn(self) -> None:
        """The reset, or a turn, is over."""

    def end(self) -> list[Any]:
        """No more episodes follow; what it has, as plain values. Files are closed later."""

    def wait(self, seconds: float) -> None:
        """Until the files are closed."""


class Playable(Protocol):
    """What is played: an `EnvHandle`, or anything like it."""

    name: str

    @property
    def worked(self) -> float | None:
        """Seconds that the env itself was at work in its last step, if that is known; the rest was waiting for it."""

    async def reset(self, *, seed: int, task: Any, member: int) -> Outcome: ...

    async def step(self, action: Any) -> Outcome: ...


class Policy(Protocol):
    """What answers a request."""

    async def generate(self, request: Request) -> Generation:
        """The reply; a failure is a `ProviderError`, and cancellation passes."""


async def ask_policy(policy: Policy, request: Request) -> Generation:
    """The reply of a policy that anybody may have written; one that does not keep to the protocol is a `UsageError`."""
    reply: Any = policy.generate(request)
    name = f"{type(policy).__name__}.generate()"
    if not inspect.isawaitable(reply):
        raise UsageError(f"{name} is not a coroutine function: write `async def generate(self, request)`")
    generation = await reply
    if not isinstance(generation, Generation):
        hint = ": write `return Generation(text)`" if isinstance(generation, str) else ""
        raise UsageError(f"{name} must return a Generation, not {generation!r:.100}{hint}")
    return generation


class Player(Protocol):
    """An agent's part in one episode."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation so far, if there is one."""

    async def act(self, outcome: Outcome, *, tokens_left: int | None) -> Move:
        """The next move, from what a reset or a step gave; if cancelled, it may be asked for again."""


class Agent(Protocol):
    """What plays episodes; one agent plays any number of them at a time."""

    def open(self, session: str, seed: int) -> Player:
        """Begin an episode. The session's name is unique; the seed is for sampling, and not the env's."""


class PolicyAgent(Agent, Protocol):
    """An agent that shows its policies, so that replies are recorded, and weights can be updated. Optional.

    A dataclass with a field `policy` needs neither method. An agent whose attribute `asks_once` is true asks each of
    its policies at most once in a turn: if it then asks something else than what is recorded, its env has diverged.
    """

    def policies(self) -> Sequence[Policy]:
        """All policies that it asks."""

    def with_policies(self, policies: Sequence[Policy]) -> Agent:
        """An agent that is the same, but asks these in place of its own, in the same order."""


def policies_of(agent: Any) -> list[Policy]:
    """The policies that an agent asks, as far as it shows them."""
    if not _shows_policies(agent):
        policy: Any = getattr(agent, "policy", None)
        return [policy] if hasattr(policy, "generate") else []
    for policy in (policies := [*agent.policies()]):
        if not hasattr(policy, "generate"):
            raise UsageError(f"{type(agent).__name__}.policies(): {policy!r:.100} has no generate()")
    return policies


def replace_policies(agent: Any, policies: Sequence[Policy]) -> Any:
    """The agent with others in place of `policies_of(agent)`; None if it does not say how that is done."""
    if not _shows_policies(agent):
        is_object = dataclasses.is_dataclass(agent) and not isinstance(agent, type)
        has_field = is_object and any(one.name == "policy" and one.init for one in dataclasses.fields(agent))
        return dataclasses.replace(agent, policy=policies[0]) if has_field and policies else None
    replaced = agent.with_policies([*policies])
    name = f"{type(agent).__name__}.with_policies()"
    if not hasattr(replaced, "open"):
        raise UsageError(f"{name} must return an agent, not {replaced!r:.100}")
    if [*map(id, policies_of(replaced))] != [*map(id, policies)]:
        raise UsageError(f"{name} must return an agent whose policies() are those that it was given, in this order")
    return replaced


def _shows_policies(agent: Any) -> bool:
    return all(callable(getattr(agent, name, None)) for name in ("policies", "with_policies"))


class TextInterface(Protocol):
    """What makes an env playable by a language model. Made as `factory(env, options)`, beside the env.

    More is optional: `anchor() -> Hashable`, a key of the state; `solve() -> str`, an expert's next reply;
    `tell(action) -> str`, an action in words; a static `project(reply, options) -> Parsed` with a `default_action`, for
    use without an env (`create_projection_function`); `snapshot() -> bytes` and `restore(bytes)`, if it remembers what
    the env does not: without them, an interface that changed since it was made has its episode replayed.
    """

    def parse(self, reply: str) -> Parsed:
        """The actions that a reply asks for. Never raises."""

    def describe(self, observation: Any) -> str | Observation:
        """The state in words, with pictures where the env has some."""

    def system_prompt(self) -> str:
        """The rules, shown once per episode."""
