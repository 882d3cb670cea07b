"""pomdp-baselines' SAC and its train loop, with rollouts that our learner collects in worker processes.

    python metarl_training.py SEED DIRECTORY, in the folder of pomdp-baselines

Prints one JSON line: the returns of the evaluations, and how the last rollouts were collected.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from policies.learner import Learner as Upstream  # type: ignore[import-not-found]
from torchkit.pytorch_utils import set_gpu_mode  # type: ignore[import-not-found]
from utils import logger, system  # type: ignore[import-not-found]

from asyncrollout.dropin import metarl

WORKERS = 2
POLICY = {
    "seq_model": "mlp",
    "algo_name": "sac",
    "dqn_layers": [64, 64],
    "policy_layers": [64, 64],
    "lr": 0.001,
    "gamma": 0.9,
    "tau": 0.005,
    "sac": {"entropy_alpha": 0.2, "automatic_entropy_tuning": True, "alpha_lr": 0.001},
}
ENV = {
    "env_type": "meta",
    "env_name": "PointRobot-v0",
    "max_rollouts_per_task": 1,
    "num_tasks": 30,
    "num_train_tasks": 20,
    "num_eval_tasks": 10,
    "oracle": True,
}
TRAIN = {
    "buffer_size": 1e5,
    "batch_size": 128,
    "num_iters": 12,
    "num_init_rollouts_pool": 10,
    "num_rollouts_per_iter": 6,
    "num_updates_per_iter": 100,
}
EVALUATION = {"log_interval": 1, "save_interval": -1, "log_tensorboard": False}


class Learner(Upstream, metarl.Learner):  # type: ignore[misc]
    """Theirs, but for the rollouts."""

    def init_env(self, **settings: Any) -> None:  # type: ignore[override]
        super().init_env(**settings)
        self.pool = metarl.make_parallel_env(
            settings["env_name"],
            settings["max_rollouts_per_task"],
            WORKERS,
            seed=self.seed,
            n_tasks=settings["num_tasks"],
            oracle=settings["oracle"],
        )
        self.curve: list[float] = []

    def collect_rollouts(self, num_rollouts: int, random_actions: bool = False) -> int:
        return metarl.Learner.collect_rollouts_parallel(self, num_rollouts, random_actions, self.pool)

    def log(self) -> Any:
        self.curve.append(float(super().log()))
        return self.curve[-1]


def main() -> None:
    seed, directory = int(sys.argv[1]), Path(sys.argv[2])
    system.reproduce(seed)
    set_gpu_mode(False, -1)
    torch.set_num_threads(1)
    logger.configure(dir=str(directory), format_strs=["csv"])
    (directory / "save").mkdir()
    learner = Learner(env_args=ENV, train_args=TRAIN, eval_args=EVALUATION, policy_args=POLICY, seed=seed)
    before = float(np.mean(learner.evaluate(learner.eval_tasks)[0].sum(-1)))
    learner.train()
    learner.pool.close()
    assert learner.last_collection is not None
    print(json.dumps({"curve": [before, *learner.curve], "way": learner.last_collection.way}))


if __name__ == "__main__":
    main()
