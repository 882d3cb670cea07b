"""verl-agent's interfaces: in `main_ppo.py`, change the import lines.

Names load when they are first used: a worker needs one small module of these.
"""

from asyncrollout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
