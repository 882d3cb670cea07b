"""An env with tasks: which there are, how one is chosen, how long an episode is; the same in every process."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import UsageError
from asyncrollout.validation import did_you_mean
from asyncrollout_envs.kwargs import check_whole
from asyncrollout_envs.seeding import fresh_seed

Floats = NDArray[np.float64]

_GOALS = 1337  # the seed of all goals: task k is the same one everywhere, however many there are

_KEYWORDS = ("num_train_tasks", "num_eval_tasks", "n_tasks", "max_episode_steps", "episodes_per_task", "oracle")


class Tasked(ABC):
    """Tasks are numbers from 0; those for training come first. Without a number of tasks, each reset draws a new one.

    A reset without a task draws one of those for training. `options["task"]` says which, else.
    """

    name: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ()
    """The keywords that only this env takes."""

    def __init__(
        self,
        *,
        num_train_tasks: int | None = None,
        num_eval_tasks: int | None = None,
        n_tasks: int | None = None,
        max_episode_steps: int,
        **unknown: Any,
    ) -> None:
        for key in unknown:
            raise UsageError(
                f"{self.name}: it takes no keyword {key!r}{did_you_mean(key, (*_KEYWORDS, *self.options))}"
            )
        check_whole(self.name, max_episode_steps=max_episode_steps)
        for key, value in (("num_train_tasks", num_train_tasks), ("n_tasks", n_tasks)):
            if value is not None:
                check_whole(self.name, **{key: value})
        check_whole(self.name, least=0, num_eval_tasks=num_eval_tasks or 0)
        if num_train_tasks is not None:
            total = num_train_tasks + (num_eval_tasks or 0)
            if n_tasks not in (None, total):
                given = f"num_train_tasks={num_train_tasks} and num_eval_tasks={num_eval_tasks}"
                raise UsageError(f"{self.name}: n_tasks={n_tasks}, but {given}: give one or the other")
            n_tasks = total
        elif num_eval_tasks and n_tasks is None:
            raise UsageError(f"{self.name}: num_eval_tasks={num_eval_tasks} needs num_train_tasks, too")
        self.horizon = self._max_episode_steps = max_episode_steps
        self.n_tasks = n_tasks
        self.goals: Floats | None = None
        if n_tasks is not None:
            chance = np.random.default_rng(_GOALS)
            self.goals = np.stack([self.draw_goal(chance) for _ in range(n_tasks)])
        self._for_training = (n_tasks or 0) if num_train_tasks is None else num_train_tasks
        self._goal = np.zeros(0)
        self._steps = 0
        self._begin_task(0, None)

    @property
    def unwrapped(self) -> "Tasked":
        return self

    def get_all_task_idx(self) -> range:
        return range(self.n_tasks or 0)

    def get_current_task(self) -> Floats:
        return self._goal.copy()

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        seed = fresh_seed() if seed is None else seed
        self._begin_task(seed, (options or {}).get("task"))
        return self.restart(seed)

    def restart(self, seed: int) -> tuple[Floats, dict[str, Any]]:
        self._steps = 0
        return self.begin(seed), {}

    def step(self, action: Any) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        state, reward, terminated, info = self.advance(action)
        self._steps += 1
        return state, reward, terminated, not terminated and self._steps >= self.horizon, info

    @abstractmethod
    def draw_goal(self, chance: np.random.Generator) -> Floats:
        """What a task asks for, in numbers."""

    @abstractmethod
    def begin(self, seed: int) -> Floats:
        """The first state of an episode."""

    @abstractmethod
    def advance(self, action: Any) -> tuple[Floats, float, bool, dict[str, Any]]:
        """The state after an action, its reward, and whether the episode is over before its time."""

    def _begin_task(self, seed: int, task: Any) -> None:
        chance = np.random.default_rng((seed, _GOALS))  # not the generator of states: goals must not depend on them
        if self.goals is None:
            if task is not None:
                wanted = "give num_train_tasks and num_eval_tasks"
                raise UsageError(f"{self.name}: task={task!r:.100}, but tasks are drawn from the seed here: {wanted}")
            self._goal = self.draw_goal(chance)
            return
        if task is None:
            task = int(chance.integers(self._for_training))
        check_whole(self.name, least=0, most=len(self.goals) - 1, task=task)
        self._goal = self.goals[task]
