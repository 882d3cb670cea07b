"""RAGEN's interfaces: in a trainer, change the import line. The modules, in the order of one training step:

proxy          `LLMAgentProxy.rollout`: a model plays all environments of a mode, the trainer gets a batch
settings       RAGEN's configuration as the classes read it
states         `EnvStateManager`: histories of all environments, turn by turn
env_batch      ... reset and stepped together; what fails is data
hosting        ... one of them where it lives: one call of ours is one of its steps, or a turn
envs           ... and the environment itself, with RAGEN's methods; the tables for your own
context        `ContextManager`: histories to prompts, replies to actions, finished histories to a batch
prompts        ... the texts, piece by piece
conversation   ... as messages, all turns or the last ones
replies        ... from `<think>..</think><answer>..</answer>` to actions
tokens         ... as rows of token ids (vision: with pictures)
scores         what histories earned; collapse: columns for collapse detection
data           `DataProto` without torch; tensors: verl's own where the trainer uses it; columns: reading either

The branches with parallel environments, which verl-agent's drop-in shares:

factory        `make_environments`: environments of a configuration, for training and for validation
container      ... lists of observations, rewards, ends and infos in lock step; seeds: which are played
managers       replies to actions, observations to prompts with a history
collector      `TrajectoryCollector`: the loop between model and environments, with dynamic sampling
collected      ... the batch that its episodes become; collector_settings: what it reads of a configuration

Files with RAGEN's keys, for `asyncrollout run`:

config_keys    what becomes of each key; trainer_keys: those that make no difference, and why
config_envs    ... of tags; env_keys: the tags of its own files; env_configs: `env_config` as our keyword arguments
env_data       ... of data sets, which are looked for on this machine

Names load when they are first used: a worker needs one small module of these.
"""

from asyncrollout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
