"""verl-agent's interfaces: in `main_ppo.py`, change the import lines. The modules, in reading order:

factory        `make_envs`: groups for training, single environments for validation
settings       verl-agent's configuration, as far as it is read
managers       replies to actions, observations to prompts with a history
prompts        ... what models read
projections    ... and how what they write is read
envs           Sokoban and WebShop with verl-agent's actions, rewards and infos, in a worker

Containers, `TrajectoryCollector` and `DataProto` are those of `asyncrollout.dropin.ragen`.
Names load when they are first used: a worker needs one small module of these.
"""

from asyncrollout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
