"""What `Rollouts` is given, made ready: envs with their shares, and policies that can be opened and paused."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncrollout.agents.chat import ChatAgent
from asyncrollout.errors import UsageError
from asyncrollout.policies.control import PolicyControl, hold_back
from asyncrollout.pool.worker.env_runner import is_async
from asyncrollout.protocols import Agent, Policy
from asyncrollout.registry import EnvRef, EnvSpec, find_env
from asyncrollout.rollouts.sampling.task_source import Share
from asyncrollout.validation import did_you_mean
from asyncrollout.video.files import VIDEOS
from asyncrollout.video.recorder import VideoRecorder

_MEANT = {"weight": "share", "fraction": "share", "name": "env", "kwargs": "env_kwargs", "config": "env_kwargs"}

Find = Callable[[EnvRef], EnvSpec]


def read_envs(env: Any, env_kwargs: Mapping[str, Any] | None, find: Find = find_env) -> list[Share]:
    """One env, or several with tags and shares; each with the `EnvSpec` that `find` gives."""
    if isinstance(env, str | EnvSpec) or callable(env):
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
    unknown = [key for key in entry if key not in Share.__struct_fields__] if isinstance(entry, Mapping) else []
    for key in unknown:
        meant = _MEANT.get(key)
        hint = f": did you mean {meant!r}?" if meant else did_you_mean(str(key), Share.__struct_fields__)
        raise UsageError(f"env[{place}] takes no {key!r}{hint}")
    try:
        share = entry if isinstance(entry, Share) else msgspec.convert(entry, Share)
    except msgspec.ValidationError as error:
        raise UsageError(f"env[{place}]: {error}") from error
    spec = find(share.env)
    return msgspec.structs.replace(share, env=spec, tag=share.tag or spec.name)


def runs_on_loop(shares: Sequence[Share]) -> bool:
    """Whether no env needs a worker process."""
    return all(share.env.runs == "light" or is_async(share.env) for share in shares)


def read_agent(policy: Policy | None, agent: Agent | None) -> tuple[Agent, PolicyControl | None]:
    """The agent to play with, and the parts of its policy that learn; None if it shows none that can be held back."""
    if (policy is None) == (agent is None):
        raise UsageError("Rollouts takes either policy= or agent=")
    if agent is None:
        assert policy is not None
        agent = ChatAgent(policy)
    if not hasattr(agent, "open"):
        hint = ": give it as policy=" if hasattr(agent, "generate") else ""
        raise UsageError(f"agent={agent!r:.100} is not an agent: it has no open(){hint}")
    if not hasattr(getattr(agent, "policy", None), "generate"):
        return agent, None
    rebuild = (lambda gated: with_policy(agent, lambda _: gated)) if _has_field(agent) else None
    return hold_back(agent, rebuild)


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
    if getattr(agent, "policy", None) is None or not _has_field(agent):
        return agent
    return dataclasses.replace(agent, policy=change(agent.policy))


def _has_field(agent: Any) -> bool:
    """Whether it can be made anew with another policy."""
    is_object = dataclasses.is_dataclass(agent) and not isinstance(agent, type)
    return is_object and any(field.name == "policy" and field.init for field in dataclasses.fields(agent))
