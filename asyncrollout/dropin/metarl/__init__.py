"""Meta-RL code written for pomdp-baselines, on our pool: the same names and calls, each of them synchronous.

Names load when they are first used: a worker process needs few of them.
"""

from asyncrollout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
