"""Countdown: reach a target with all of the given numbers, each used once, by + - * / and parentheses.

One step per episode. The score is 0 if the numbers used are not the given ones, or the expression is unreadable; 0.1
if they are but the value is wrong, also for a division by zero; 1 if the value is exactly the target. In the style
"ragen", `lenient` says what counts: a text with the right numbers in it is worth 0.1, whatever else it is.
"""

from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from asyncrollout.errors import UsageError
from asyncrollout.registry import EnvSpec
from asyncrollout.splits import SPLITS
from asyncrollout.text.replies import LONGEST, Projecting, find_answer, turn_format
from asyncrollout.text.stated import find_stated
from asyncrollout.types import Parsed, TextOptions
from asyncrollout_envs.countdown import lenient
from asyncrollout_envs.countdown.arithmetic import MOST_DIGITS, MOST_NUMBERS, Expression, evaluate
from asyncrollout_envs.countdown.puzzles import MOST_SEARCHED, Puzzle, draw_puzzle, solve_puzzle
from asyncrollout_envs.datafiles import choose_row, load_file, load_split
from asyncrollout_envs.kwargs import Style, check_style, check_whole
from asyncrollout_envs.seeding import Split, check_split, generator, split_by_content

SPEC = EnvSpec(
    name="countdown",
    factory="asyncrollout_envs.countdown:Countdown",
    text="asyncrollout_envs.countdown:CountdownText",
    runs="light",
    summary="reach the target using every number",
    actions="an expression",
    splits=SPLITS,
)

_FEWEST = 2
_SMALLEST_LIMIT, _LARGEST_LIMIT = 10, 10_000
_DRAWS = 5_000
_TOO_LARGE = 10**MOST_DIGITS
_MOST_SUMS = 100_000


class PuzzleRow(msgspec.Struct):
    """A puzzle in a file or a task."""

    target: int
    nums: list[int] | None = None
    numbers: list[int] | None = None

    def read(self) -> tuple[tuple[int, ...], Puzzle]:
        nums = self.nums if self.nums is not None else self.numbers
        if nums is None:
            raise ValueError("field 'nums' is missing")
        if abs(self.target) >= _TOO_LARGE:
            raise ValueError(f"field 'target' must have at most {MOST_DIGITS} digits")
        if not 1 <= len(nums) <= MOST_NUMBERS or not all(0 <= number < _TOO_LARGE for number in nums):
            raise ValueError(
                f"field 'nums' must be 1 to {MOST_NUMBERS} integers of at most {MOST_DIGITS} digits, none negative"
            )
        puzzle = Puzzle(self.target, tuple(nums))
        return puzzle.identity, puzzle

    def read_sum(self) -> tuple[tuple[int, ...], Puzzle] | None:
        """As RAGEN reads it: only what can be solved by adding and subtracting all numbers is of use."""
        identity, puzzle = self.read()
        sums = {0}
        for number in puzzle.nums:
            sums = {one + signed for one in sums for signed in (number, -number)}
            if len(sums) > _MOST_SUMS:
                return None
        return (identity, puzzle) if puzzle.target in sums else None


class Countdown:
    """Puzzles made from seeds, or the rows of `data_path` (fields `target` and `nums`; splits as in `datafiles`).

    `num_numbers` is a count or a pair (fewest, most); it and both limits are for made puzzles only. A task is
    `{"target": 24, "nums": [4, 6, 1]}`, or the index of a row in its split. `max_instances` is how many of a file's
    rows count, from its first on. In the style "ragen" those that no sum or difference of all numbers solves are left
    out.
    """

    def __init__(
        self,
        *,
        num_numbers: int | tuple[int, int] = (3, 4),
        max_number: int = 99,
        max_target: int = 100,
        split: Split = "train",
        data_path: str | Path | None = None,
        max_instances: int | None = None,
        style: Style = "plain",
    ) -> None:
        check_split(SPEC.name, split)
        check_style(SPEC.name, style)
        if max_instances is not None:
            check_whole(SPEC.name, max_instances=max_instances)
        self._counts = _checked_counts(num_numbers)
        check_whole(SPEC.name, least=_SMALLEST_LIMIT, max_number=max_number, max_target=max_target)
        if max(max_number, max_target) > _LARGEST_LIMIT:
            raise UsageError(
                f"{SPEC.name}: max_number={max_number} and max_target={max_target} must not be above {_LARGEST_LIMIT}"
            )
        self._limits = int(max_number), int(max_target)
        self._split = split
        self.style = style
        self._rows: tuple[Puzzle, ...] = ()
        self._splits: Mapping[str, tuple[Puzzle, ...]] = {}
        if data_path is not None:
            read = PuzzleRow.read_sum if style == "ragen" else PuzzleRow.read
            self._rows = load_split(SPEC.name, data_path, split, PuzzleRow, read, most=max_instances).items
            self._splits = load_file(SPEC.name, data_path, PuzzleRow, read, most=max_instances).splits
        self.puzzle = Puzzle(0, ())
        self.answered = False

    def get_split_size(self, split: str = "train") -> int:
        """How many rows of `data_path` a split has; 0 for made puzzles, of which there is no number."""
        return len(self._splits.get(split, ()))

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.puzzle = self._puzzle(seed, (options or {}).get("task"))
        self.answered = False
        return _shown(self.puzzle), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if not isinstance(action, str):
            raise TypeError(f"{SPEC.name}: an action is an expression as text, not {action!r:.100}")
        self.answered = True
        if self.style == "ragen":
            reward = lenient_score(action, self.puzzle)
            info = {"action_is_effective": reward > 0, "success": reward == 1.0}
            return f"Your answer is worth {reward:g} points.", reward, True, False, info
        found = evaluate(action)
        reward = score(found, self.puzzle)
        info = {"action_is_effective": True, "success": reward == 1.0}
        return f"{_shown(self.puzzle)}\n{_told(found, self.puzzle)}", reward, True, False, info

    def _puzzle(self, seed: int | None, task: Any) -> Puzzle:
        if isinstance(task, Mapping):
            try:
                return msgspec.convert(_without_numpy(task), PuzzleRow).read()[1]
            except (ValueError, msgspec.ValidationError) as error:
                raise UsageError(f"{SPEC.name}: task={task!r:.300}: {error}") from error
        if self._rows:
            return self._rows[choose_row(SPEC.name, len(self._rows), self._split, seed, task)]
        if task is not None:
            raise UsageError(
                f"{SPEC.name}: task={task!r:.300} must be a dict with 'target' and 'nums' (with data_path, or an index)"
            )
        return self._drawn(seed)

    def _drawn(self, seed: int | None) -> Puzzle:
        """Seeds of different splits may lead to the same puzzle, so a digest says which split a puzzle is for."""
        rng = generator(seed, self._split)
        count = int(rng.integers(self._counts[0], self._counts[1] + 1))
        for _ in range(_DRAWS):
            puzzle = draw_puzzle(rng, count, *self._limits)
            if puzzle and split_by_content(puzzle.identity) == self._split:
                return puzzle
        max_number, max_target = self._limits
        raise UsageError(
            f"{SPEC.name}: max_target={max_target} is hardly ever reached with num_numbers={count} and "
            f"max_number={max_number}: lower it, or raise one of these"
        )


def score(expression: Expression, puzzle: Puzzle) -> float:
    """1, 0.1 or 0, as the module says."""
    if not expression.uses(puzzle.nums):
        return 0.0
    return 1.0 if expression.value == puzzle.target else 0.1


def lenient_score(text: str, puzzle: Puzzle) -> float:
    """1, 0.1 or 0, as RAGEN has it."""
    if not lenient.uses_exactly(text, puzzle.nums):
        return 0.0
    return 1.0 if lenient.equals(text, puzzle.target) else 0.1


def _checked_counts(num_numbers: Any) -> tuple[int, int]:
    counts = num_numbers if isinstance(num_numbers, tuple | list) else (num_numbers, num_numbers)
    if len(counts) != 2 or any(isinstance(count, bool) or not isinstance(count, Integral) for count in counts):
        counts = (0, 0)
    fewest, most = map(int, counts)
    if not _FEWEST <= fewest <= most <= MOST_SEARCHED:
        raise UsageError(
            f"{SPEC.name}: num_numbers={num_numbers!r} is neither a count from {_FEWEST} to {MOST_SEARCHED} nor a pair "
            "of them, the smaller first"
        )
    return fewest, most


def _without_numpy(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.integer):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _without_numpy(inner) for key, inner in value.items()}
    return [_without_numpy(inner) for inner in value] if isinstance(value, list | tuple) else value


def _shown(puzzle: Puzzle) -> str:
    return f"Target: {puzzle.target}, nums: {list(puzzle.nums)}"


def _told(expression: Expression, puzzle: Puzzle) -> str:
    if not expression.numbers:
        return f"Your expression is unreadable: {expression.reason}."
    if not expression.uses(puzzle.nums):
        return f"Your expression uses {list(expression.numbers)}, which are not the given numbers."
    if expression.value is None:
        return "Your expression divides by zero."
    verdict = "the target" if expression.value == puzzle.target else "not the target"
    return f"Your expression gives {expression.value}, {verdict}."


class CountdownText(Projecting[Countdown]):
    """The puzzle in words; an action is an expression.

    A reply without tags counts if what it states is an expression of several numbers and nothing else. An invalid reply
    is projected to the empty expression, which scores 0.
    """

    @classmethod
    def project(cls, reply: str, options: TextOptions) -> Parsed:
        answer = find_answer(reply, strict=options.strict)
        if answer.reason:
            return Parsed((), valid=False, reason=answer.reason)
        found = evaluate(answer.text if answer.tagged else "")
        if not found.numbers and not options.strict:
            found = evaluate(find_stated(answer.text[-LONGEST:], tagged=answer.tagged) or "")
        if not found.numbers:
            return Parsed((), valid=False, reason=f"not an expression: {found.reason}")
        if len(found.numbers) == 1 and not answer.tagged:
            return Parsed((), valid=False, reason="no <answer> tag, and no expression in the text outside <think>")
        return Parsed((found.text,))

    def parse(self, reply: str) -> Parsed:
        """In the style "ragen", whatever stands in tags is an expression."""
        if self._env.style == "ragen":
            answer = find_answer(reply, strict=self._options.strict)
            if answer.tagged:
                return Parsed((answer.text,))
        return super().parse(reply)

    def describe(self, obs: str) -> str:
        return obs

    def system_prompt(self) -> str:
        return (
            "You play Countdown: write an arithmetic expression that equals the target. Use each of the given numbers "
            "exactly once, no other numbers, and only + - * / and parentheses. Fractions on the way are allowed, and "
            "the value must be exact.\n"
            "Scores: 1 if the expression equals the target, 0.1 if it uses the right numbers but has another value, "
            "0 otherwise. You have one try.\n"
            "Example: for Target: 24, nums: [3, 5, 9] the expression 9 * 5 / 3 scores 0.1, as it gives 15, and "
            "(5 * 3) + 9 scores 1.\n" + turn_format(self._options, "(5 * 3) + 9", most=1)
        )

    def anchor(self) -> tuple[Any, ...]:
        return (self._env.puzzle.target, self._env.puzzle.nums, self._env.answered)

    def solve(self) -> str:
        """The right expression; where there is none to be found, one with the right numbers."""
        puzzle = self._env.puzzle
        expression = puzzle.solution or solve_puzzle(puzzle.target, puzzle.nums)
        thought = f"{expression} = {puzzle.target}" if expression else "I see no way to reach the target."
        return f"<think>{thought}</think><answer>{expression or ' + '.join(map(str, puzzle.nums))}</answer>"

    @staticmethod
    def tell(action: str) -> str:
        return action
