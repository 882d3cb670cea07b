"""RAGEN's EnvStateManager, tried out: in parallel it gives what it gives sequentially. Exits 0 if all is well."""

import copy
import os
import signal
from typing import Any

from asyncrollout.dropin.ragen import EnvStateManager

TAGS = {
    "SimpleSokoban": "Right",
    "FrozenLake": "Down",
    "Bandit": "phoenix",
    "Countdown": "1 + 2",
    "WebShop": "search[mug]",
}
CONFIG: dict[str, Any] = {
    "es_manager": {
        "train": {
            "env_groups": len(TAGS),
            "group_size": 4,
            "env_configs": {"tags": [*TAGS], "n_groups": [1] * len(TAGS)},
        },
        "max_workers": 2,
        "format_penalty": 0.1,
    }
}


def play(manager: EnvStateManager, *, kill: bool = False) -> list[dict[str, Any]]:
    """Three turns of all environments that are not done; between them, the workers may be killed."""
    waiting = manager.reset(seed=42)
    for turn in range(3):
        if kill and turn == 1:
            for worker in manager.stats().workers:
                if worker.rank >= 0 and worker.pid is not None:
                    os.kill(worker.pid, signal.SIGKILL)
        said = {cache["env_id"]: TAGS[cache["tag"]] for cache in waiting}
        waiting = manager.step(
            [
                {"env_id": env_id, "llm_raw_response": word, "llm_response": word, "actions": [word]}
                for env_id, word in said.items()
            ]
        )
    return copy.deepcopy(manager.get_rollout_states())


def main() -> None:
    manager = EnvStateManager(CONFIG, mode="train")
    parallel = play(manager)
    killed = play(manager, kill=True)
    manager.use_multiprocessing = False
    sequential = play(manager)
    manager.close()
    assert parallel == sequential, "parallel differs from sequential"
    assert killed == sequential, "killed workers made a difference"
    print(f"{len(parallel)} environments, 3 turns: parallel, with killed workers and sequentially the same")
    print(sequential[0]["history"][0]["state"])
    print({key: value for cache in sequential for key, value in cache["metrics"].items() if key.endswith("/success")})


if __name__ == "__main__":
    main()
