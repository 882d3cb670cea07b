"""What `Rollouts` is given, made ready: envs with their shares, and policies that can be opened and paused."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from asyncrollout.agents.chat import ChatAgent
from asyncrollout.errors import UsageError
from asyncrollout.policies.compose import nested
from asyncrollout.policies.gate import Composed, Gated
from asyncrollout.pool.hosted import is_async
from asyncrollout.protocols import Agent, Policy
from asyncrollout.registry import EnvSpec, find_env
from asyncrollout.sampler.draws import Share
from asyncrollout.types import PauseMode
from asyncrollout.video.files import VIDEOS
from asyncrollout.video.recorder import VideoRecorder


class Pausable(Protocol):
    """A policy that can be held back for new weights."""

    @property
    def version(self) -> int: ...

    async def pause(self, mode: PauseMode) -> None: ...

    async def resume(self, version: int | None) -> None: ...


Find = Callable[[EnvSpec | str], EnvSpec]


def read_envs(env: Any, env_kwargs: Mapping[str, Any] | None, find: Find = find_env) -> list[Share]:
    """One env, or several with tags and shares; each with the `EnvSpec` that `find` gives."""
    if isinstance(env, str | EnvSpec):
        env = [Share(env, env_kwargs=dict(env_kwargs or {}))]
    elif env_kwargs:
        raise UsageError("env_kwargs is for one env: with several, each entry of env=[...] has its own")
    if not isinstance(env, Sequence) or not env:
        raise UsageError(f"env={env!r:.100} is neither the name of an env nor a list of them")
    shares = [_read_share(entry, place, find) for place, entry in enumerate(env)]
    tags = [share.tag for share in shares]
    if len({*tags}) < len(tags):
        raise UsageError(f"env: the tags {tags} are not all different: give each entry its own tag=")
    return shares


def _read_share(entry: Any, place: int, find: Find) -> Share:
    try:
        share = entry if isinstance(entry, Share) else msgspec.convert(entry, Share)
    except msgspec.ValidationError as error:
        raise UsageError(f"env[{place}]: {error}") from error
    spec = find(share.env)
    return msgspec.structs.replace(share, env=spec, tag=share.tag or spec.name)


def runs_on_loop(shares: Sequence[Share]) -> bool:
    """Whether no env needs a worker process."""
    return all(share.env.runs == "light" or is_async(share.env) for share in shares)


def read_agent(policy: Policy | None, agent: Agent | None) -> tuple[Agent, Pausable | None]:
    """The agent to play with, and its policy as one that can be paused; None if the agent shows no policy."""
    if (policy is None) == (agent is None):
        raise UsageError("Rollouts takes either policy= or agent=")
    if agent is None:
        assert policy is not None
        agent = ChatAgent(policy)
    if not hasattr(agent, "open"):
        hint = ": give it as policy=" if hasattr(agent, "generate") else ""
        raise UsageError(f"agent={agent!r:.100} is no agent: it has no open(){hint}")
    own = getattr(agent, "policy", None)
    if own is None:
        return agent, None
    if hasattr(own, "pause"):
        return agent, own
    if not hasattr(agent, "__dataclass_fields__"):
        return agent, None
    parts = [part for part in nested(own) if hasattr(part, "pause")]
    gated = Composed(own, parts) if parts else Gated(own)
    return with_policy(agent, lambda _: gated), gated


def read_recorder(record: Any, run_dir: Path | None) -> VideoRecorder | None:
    """What films; one without a directory of its own has that of the run."""
    if record is None or record is False:
        return None
    recorder = VideoRecorder() if record is True else record
    if not isinstance(recorder, VideoRecorder):
        raise UsageError(f"record={record!r:.100} is neither True nor a VideoRecorder(...)")
    if recorder.directory is None:
        if run_dir is None:
            raise UsageError("record: where do the videos go? Give a run_dir, or record=VideoRecorder(directory)")
        recorder.directory = (run_dir / VIDEOS).absolute()
    return recorder


def with_policy(agent: Any, change: Callable[[Policy], Policy]) -> Any:
    """The agent with something around its policy, if it is an agent of which we can tell where that is."""
    policy = getattr(agent, "policy", None)
    if policy is None or not hasattr(agent, "__dataclass_fields__"):
        return agent
    return dataclasses.replace(agent, policy=change(policy))
