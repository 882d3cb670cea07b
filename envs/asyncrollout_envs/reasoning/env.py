"""Reasoning Gym: a question of one of the package's hundred datasets, scored by the package itself."""

import json
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np

from asyncrollout.errors import UsageError
from asyncrollout.registry import EnvSpec
from asyncrollout.splits import SPLITS
from asyncrollout.text.replies import LONGEST, Projecting, find_answer, turn_format
from asyncrollout.text.stated import find_led, find_stated
from asyncrollout.types import Parsed, TextOptions
from asyncrollout_envs.kwargs import check_whole
from asyncrollout_envs.reasoning.questions import ENV, INSTALL, MOST_ENTRIES, open_questions
from asyncrollout_envs.reasoning.scoring import LONGEST_ANSWER
from asyncrollout_envs.seeding import Split, check_split, generator

SPEC = EnvSpec(
    name=ENV,
    factory="asyncrollout_envs.reasoning:ReasoningGym",
    text="asyncrollout_envs.reasoning:ReasoningGymText",
    runs="cpu",
    summary="answer a question from any reasoning-gym dataset",
    actions="the answer",
    requires={"reasoning_gym": INSTALL},
    splits=SPLITS,
)

_SPLITS: tuple[str, ...] = get_args(Split)
_RIGHT = 1 - 1e-6
_EXAMPLES = ("example_answer", "example_correct_answer", "possible_answer")
"""Where the metadata of datasets without a single right answer hold one."""


class ReasoningGym:
    """Questions of one of the package's datasets; `config` are that dataset's own settings.

    An action is an answer. The right one ends the episode, and so does the last attempt, as the attempts are told
    in the rules. Only the answer that ends it earns something: the package's score, from 0 to 1, halved for each
    attempt before. A task is the number of a question in the dataset with seed 0, whatever the split.
    """

    def __init__(
        self, *, dataset: str = "chain_sum", max_attempts: int = 1, split: Split = "train", **config: Any
    ) -> None:
        check_split(ENV, split)
        check_whole(ENV, max_attempts=max_attempts)
        self.max_attempts = max_attempts
        self.number = 0
        self.attempts = 0
        self.entry: Mapping[str, Any] = {"question": "", "answer": "", "metadata": {}}
        self._dataset = dataset
        self._split = split
        self._questions = open_questions(dataset, config)

    @property
    def question(self) -> str:
        return str(self.entry["question"])

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        task = (options or {}).get("task")
        self.number = self._draw(seed) if task is None else _as_number(task)
        self.entry = self._questions.entry(self.number)
        self.attempts = 0
        return self.question, {"dataset": self._dataset, "number": self.number}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if not isinstance(action, str):
            raise TypeError(f"{ENV}: an action is an answer as text, not {action!r:.100}")
        score = max(self._questions.score(answer, self.entry) for answer in _readings(action))
        right = score >= _RIGHT
        self.attempts += 1
        over = right or self.attempts >= self.max_attempts
        reward = score * 0.5 ** (self.attempts - 1) if over else 0.0
        info = {"action_is_effective": True, "success": right, "score": score}
        told = "Correct!" if right else "Incorrect." if over else "Incorrect. Please think again."
        return told, reward, over, False, info

    def _draw(self, seed: int | None) -> int:
        """Every third number is for the same split, so that no two splits share a question's number."""
        third = MOST_ENTRIES // len(_SPLITS)
        return len(_SPLITS) * int(generator(seed, self._split).integers(third)) + _SPLITS.index(self._split)


class ReasoningGymText(Projecting[ReasoningGym]):
    """The question in words; what a reply answers is one action: in tags all of it, else its last line.

    An invalid reply is projected to the empty answer.
    """

    @classmethod
    def project(cls, reply: str, options: TextOptions) -> Parsed:
        found = find_answer(reply, strict=options.strict)
        if found.reason:
            return Parsed((), valid=False, reason=found.reason)
        if options.strict or found.tagged:
            answer = found.text
        else:
            prose = found.text[-LONGEST:]
            answer = find_led(prose) or prose.rpartition("\n")[2].strip()
        if len(answer) > LONGEST_ANSWER:
            return Parsed((), valid=False, reason=f"the answer is longer than {LONGEST_ANSWER} characters")
        return Parsed((answer,))

    def describe(self, obs: str) -> str:
        return obs if obs == self._env.question else f"{obs}\n{self._env.question}"

    def system_prompt(self) -> str:
        limit = self._env.max_attempts
        tries = (
            "You have one attempt." if limit == 1 else f"You have {limit} attempts; each halves what the next earns."
        )
        return (
            "You answer questions that need careful thought. Give the final answer alone, in exactly the form that the "
            f"question asks for. {tries}\n"
            "Example: for the question What is 2 + 3 - 1? the answer is 4.\n" + turn_format(self._options, "4", most=1)
        )

    def anchor(self) -> tuple[int, int]:
        return (self._env.number, self._env.attempts)

    def solve(self) -> str:
        """The package's own answer; some datasets have none for every question."""
        answer = known_answer(self._env.entry) or "I do not know."
        return f"<think>I have worked it out.</think><answer>{answer}</answer>"

    @staticmethod
    def tell(action: str) -> str:
        return action


def known_answer(entry: Mapping[str, Any]) -> str:
    """An answer to an entry that the package says is right; empty if it says none."""
    metadata = entry["metadata"]
    answers = (entry["answer"], *(metadata.get(key) for key in _EXAMPLES))
    answer = next((answer for answer in answers if answer is not None), "")
    return answer.strip() if isinstance(answer, str) else json.dumps(answer)


def _readings(answer: str) -> set[str]:
    """An answer as it stands, as quotes and full stops may belong to it, and undressed; one of several lines whole."""
    answer = answer.strip()
    return {answer, find_stated(answer, tagged="\n" in answer) or answer}


def _as_number(task: Any) -> int:
    if isinstance(task, bool) or not isinstance(task, int | np.integer) or not 0 <= task < MOST_ENTRIES:
        raise UsageError(f"{ENV}: task={task!r:.100} is not the number of a question, from 0 to {MOST_ENTRIES - 1}")
    return int(task)
