"""Who plays, as a configuration says: policies, agents, and code of the user's own."""

import importlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from asyncrollout.agents.chat import ChatAgent
from asyncrollout.config import schema
from asyncrollout.errors import UsageError
from asyncrollout.policies.embedded import ScriptedPolicy, SolverPolicy
from asyncrollout.policies.local import local_llm
from asyncrollout.policies.openai import OpenAIPolicy
from asyncrollout.protocols import Policy


def chat_agent(policy: Policy, chosen: schema.Chat) -> ChatAgent:
    return ChatAgent(policy, **{name: getattr(chosen, name) for name in chosen.__struct_fields__})


@asynccontextmanager
async def open_policy(chosen: schema.Policy) -> AsyncIterator[Policy]:
    """The policy that a configuration names."""
    match chosen:
        case schema.Solver(error_rate=error_rate, latency=latency, seed=seed):
            pair = (latency[0], latency[1]) if isinstance(latency, list) else latency
            yield SolverPolicy(error_rate, pair, seed=seed)
        case schema.Scripted(replies=replies):
            yield ScriptedPolicy(replies)
        case schema.Local():
            async with local_llm(**msgspec.structs.asdict(chosen)) as policy:
                yield policy
        case schema.OpenAI():
            options = msgspec.structs.asdict(chosen)
            async with OpenAIPolicy(kind=options.pop("server"), **options) as policy:
                yield policy


def imported(path: str, key: str) -> Any:
    """What an import path names, from this directory, too; the configuration has it at `key`."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{key}: {path!r} cannot be imported: {error}") from error
