"""asyncrollout: thousands of agent episodes as coroutines, for reinforcement learning and evaluation.

Names load when they are first used, so that a worker process does not pay for what it does not need.
"""

from asyncrollout.lazy import attach

__version__ = "0.1.0.dev0"

__getattr__, __dir__, __all__ = attach(__name__)
