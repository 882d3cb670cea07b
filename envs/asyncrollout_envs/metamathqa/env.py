"""MetaMathQA: answer a mathematical question, and think again after a wrong answer.

The first answer earns 1 if it is right, the second 1/2, the third 1/4, and so on; a wrong one earns nothing. In the
style "ragen" an answer is right if it is the expected one letter by letter, but for case and white space.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from asyncrollout.registry import EnvSpec
from asyncrollout.splits import SPLITS
from asyncrollout.text.replies import LONGEST, Projecting, find_answer, turn_format
from asyncrollout.text.stated import find_stated
from asyncrollout.types import Parsed, TextOptions
from asyncrollout_envs.datafiles import choose_row, load_file, load_split
from asyncrollout_envs.kwargs import Style, check_style, check_whole
from asyncrollout_envs.metamathqa.answers import answer_of, same_answer, same_letters
from asyncrollout_envs.seeding import Split, check_split

SPEC = EnvSpec(
    name="metamathqa",
    factory="asyncrollout_envs.metamathqa:MetaMathQA",
    text="asyncrollout_envs.metamathqa:MetaMathQAText",
    runs="light",
    summary="answer a math question; try again after a wrong answer",
    actions="the answer",
    splits=SPLITS,
)

OWN_PROBLEMS = Path(__file__).parent / "problems.json"
"""Ours, made by `word_problems`, in the form of the public data set."""


class Problem(msgspec.Struct, frozen=True):
    question: str
    answer: str
    kind: str


class ProblemRow(msgspec.Struct):
    """A row as in the public data set; the rows about one original question go to the same split."""

    query: str
    response: str
    type: str | None = None
    original_question: str | None = None

    def read(self) -> tuple[str, Problem] | None:
        answer = answer_of(self.response)
        if not answer or not self.query.strip():
            return None
        return self.original_question or self.query, Problem(self.query, answer, self.type or "")

    def read_as_written(self) -> tuple[str, Problem] | None:
        """As RAGEN reads it: all that follows the first "The answer is:" is the answer."""
        answer = self.response.partition("The answer is: ")[2].strip()
        found = self.read() if answer else None
        return found and (found[0], msgspec.structs.replace(found[1], answer=answer))


class MetaMathQA:
    """The problems of `data_path` (fields `query` and `response`; splits as in `datafiles`), or our own.

    A task is the index of a row in its split. With `max_attempts=None` only the right answer ends an episode. `skipped`
    counts the rows of the file that give no answer.
    """

    def __init__(
        self,
        *,
        split: Split = "train",
        data_path: str | Path | None = None,
        max_attempts: int | None = 5,
        style: Style = "plain",
    ) -> None:
        check_split(SPEC.name, split)
        check_style(SPEC.name, style)
        if max_attempts is not None:
            check_whole(SPEC.name, max_attempts=max_attempts)
        path = OWN_PROBLEMS if data_path is None else data_path
        read = ProblemRow.read_as_written if style == "ragen" else ProblemRow.read
        rows = load_split(SPEC.name, path, split, ProblemRow, read)
        self._splits = load_file(SPEC.name, path, ProblemRow, read).splits
        self.max_attempts = None if max_attempts is None else int(max_attempts)
        self.skipped = rows.skipped
        self.row = 0
        self.attempts = 0
        self.style = style
        self._split = split
        self._problems = rows.items

    def get_split_size(self, split: str = "train") -> int:
        """How many problems a split has; 0 for one that there is not."""
        return len(self._splits.get(split, ()))

    @property
    def problem(self) -> Problem:
        return self._problems[self.row]

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.row = choose_row(SPEC.name, len(self._problems), self._split, seed, (options or {}).get("task"))
        self.attempts = 0
        return self.problem.question, {"type": self.problem.kind}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if not isinstance(action, str):
            raise TypeError(f"{SPEC.name}: an action is an answer as text, not {action!r:.100}")
        if self.style == "ragen":
            right = same_letters(action, self.problem.answer)
        else:
            right = same_answer(action, self.problem.answer, self.problem.question)
        reward = 0.5**self.attempts if right else 0.0
        self.attempts += 1
        info = {"action_is_effective": True, "success": right}
        if self.style == "ragen":
            info["action_is_valid"] = bool(action.strip())
        if right:
            return "Correct!", reward, True, False, info
        return "Incorrect. Please think again.", reward, False, self.attempts == self.max_attempts, info


class MetaMathQAText(Projecting[MetaMathQA]):
    """The question in words; an action is an answer, and all that a reply answers is one action.

    Any answer is valid. An invalid reply, one without any, is projected to the empty answer, which is wrong.
    """

    @classmethod
    def project(cls, reply: str, options: TextOptions) -> Parsed:
        found = find_answer(reply, strict=options.strict)
        if found.reason:
            return Parsed((), valid=False, reason=found.reason)
        if options.strict:
            return Parsed((found.text,))
        text = found.text[-LONGEST:]
        return Parsed((find_stated(text, tagged=found.tagged) or text.rpartition("\n")[2].strip(),))

    def parse(self, reply: str) -> Parsed:
        """In the style "ragen", whatever stands in tags is the answer, word for word."""
        if self._env.style == "ragen":
            answer = find_answer(reply, strict=self._options.strict)
            if answer.tagged:
                return Parsed((answer.text,))
        return super().parse(reply)

    def describe(self, obs: str) -> str:
        if self._env.style == "ragen":
            return obs
        return obs if obs == self._env.problem.question else f"{obs}\n{self._env.problem.question}"

    def system_prompt(self) -> str:
        limit = self._env.max_attempts
        tries = "as often as needed" if limit is None else "once" if limit == 1 else f"{limit} times"
        return (
            "You answer mathematical questions. Give the final answer alone: a number, a fraction such as 3/4, or a "
            f"word. You may answer {tries}: the right answer earns 1 at the first attempt, 1/2 at the second, 1/4 at "
            "the third, and so on. A wrong one earns nothing.\n"
            "Example: for the question What is half of 9? the answer is 4.5, or 9/2.\n"
            + turn_format(self._options, "4.5", most=1)
        )

    def anchor(self) -> tuple[int, int]:
        return (self._env.row, self._env.attempts)

    def solve(self) -> str:
        answer = self._env.problem.answer
        return f"<think>The answer is {answer}.</think><answer>{answer}</answer>"

    @staticmethod
    def tell(action: str) -> str:
        return action
