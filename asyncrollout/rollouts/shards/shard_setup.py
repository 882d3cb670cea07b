"""What a shard is made of: what the user gave to `Rollouts`, as far as it travels; errors say what cannot."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from asyncrollout.errors import UsageError
from asyncrollout.policies.control import learning_parts
from asyncrollout.pool.wire.codec import UnsendableError, to_pickle
from asyncrollout.pool.wire.definitions import SentDefinitions
from asyncrollout.protocols import Agent, policies_of
from asyncrollout.rollouts.episode.group import Failures
from asyncrollout.rollouts.episode.scoring import Score
from asyncrollout.rollouts.sampling.task_source import Share
from asyncrollout.trajectories import Limits
from asyncrollout.types import PauseMode


@dataclass(frozen=True, kw_only=True)
class ShardSetup:
    """All that a shard is made of.

    With `records`, trajectories are encoded for the journal by the shard. `version` is that of the weights, which
    servers were not started with if they are new. `paused` is how an update that is under way holds calls back.
    """

    agent: Agent
    envs: Mapping[str, Share]
    env_kwargs: Mapping[str, Any]
    size: int
    seed: int
    limits: Limits
    failures: Failures
    score: Score | None
    workers: int | None
    backend: Literal["process", "inline"]
    records: bool
    version: int = 0
    has_new_weights: bool = False
    paused: PauseMode | None = None


def check_policies(agent: Any) -> None:
    """New weights must reach what shards ask: a model in this very process cannot be asked from another one."""
    for policy in policies_of(agent):
        for part in learning_parts(policy):
            if hasattr(part, "pause") and not getattr(part, "asks_server", False):
                raise UsageError(
                    f"each shard would play with a copy of {type(part).__name__}, which new weights never reach: "
                    "serve the model over HTTP and use OpenAIPolicy, or, if it does not learn, write frozen(policy). A "
                    "policy of your own whose weights are in a server says so with `asks_server = True`"
                )


def pickled_setup(setup: ShardSetup, sent: SentDefinitions) -> bytes:
    """The setup for one shard; classes and functions of the main script travel by value."""
    try:
        return to_pickle(setup, sent)
    except UnsendableError as error:
        raise UsageError(f"{_culprit(setup)} cannot be sent to a shard: {error.__cause__ or error}") from error


def _culprit(setup: ShardSetup) -> str:
    parts: dict[str, Any] = {"agent=": setup.agent, "score=": setup.score, "env_kwargs=": setup.env_kwargs}
    parts |= {f"env {tag!r}": share for tag, share in setup.envs.items()}
    policies: dict[str, Any] = {f"policy {type(policy).__name__}": policy for policy in policies_of(setup.agent)}
    for name, part in (policies | parts).items():
        try:
            to_pickle(part, SentDefinitions())
        except UnsendableError:
            return name
    return "what these Rollouts were given"
