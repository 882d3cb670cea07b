"""RLinf's interfaces for evaluations: in a trainer, change the import line. The modules, in the order of an evaluation:

interfaces     what is imported: `evaluate`, and writers for videos of your own loop
config         an evaluation in a file, a dict or Hydra's config, checked and with its references resolved
config_keys    ... RLinf's keys: what becomes of each, and which are refused
plan           each env's process, seeds, tasks and video, decided before anything starts
player         who plays: the env's expert, a server's model, or your own code
run            the episodes: each env at its own pace, in its process, with its video
results        what became of every episode, and the totals

Placement, which the plan needs and which can be used alone:

ranks          texts such as `0-3:0-7`, and which env runs on which process
placement      `cluster.component_placement`: the processes of each component
model_parallel ... of training with model parallelism
strategies     on which node and GPUs each process runs

Names load when they are first used.
"""

from asyncrollout.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
