"""Meta-RL code written for pomdp-baselines, on our pool: the same names and calls, each of them synchronous.

Names load when they are first used: a worker process needs few of them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncrollout.dropin.metarl.acting import AGENT_ARCHS as AGENT_ARCHS
    from asyncrollout.dropin.metarl.learner import Learner as Learner
    from asyncrollout.dropin.metarl.making import make_env as make_env
    from asyncrollout.dropin.metarl.making import make_parallel_env as make_parallel_env
    from asyncrollout.dropin.metarl.parallel import ParallelEnvManager as ParallelEnvManager
    from asyncrollout.dropin.metarl.settings import read_settings as read_settings
    from asyncrollout.dropin.metarl.storage import SeqReplayBuffer as SeqReplayBuffer
    from asyncrollout.dropin.metarl.storage import SimpleReplayBuffer as SimpleReplayBuffer
    from asyncrollout.dropin.metarl.wrapper import VariBadWrapper as VariBadWrapper

_HOME = {
    "AGENT_ARCHS": "acting",
    "Learner": "learner",
    "ParallelEnvManager": "parallel",
    "SeqReplayBuffer": "storage",
    "SimpleReplayBuffer": "storage",
    "VariBadWrapper": "wrapper",
    "make_env": "making",
    "make_parallel_env": "making",
    "read_settings": "settings",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
