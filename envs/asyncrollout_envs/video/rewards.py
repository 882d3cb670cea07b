"""What is earned, as pure functions: overlap of frames and of windows, right answers, similarity."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from asyncrollout_envs.video.actions import read_windows
from asyncrollout_envs.video.questions import Question, Windows

IOU_EPSILON = 0.001
MOMENT_FOUND = 0.5
"""The overlap from which on a moment counts as found, as in QVHighlights' R1@0.5."""

_WORD = re.compile(r"[^\W_]+")
_ARTICLES = frozenset(("a", "an", "the"))


class Score(msgspec.Struct, frozen=True):
    """What an answer is worth, before the turns that it took count, and whether it is right."""

    points: float = 0.0
    right: bool = False


def frame_iou(seen: Iterable[int], relevant: Iterable[int]) -> float:
    """Overlap of two sets of frames; two empty ones are the same."""
    first, second = {*seen}, {*relevant}
    return len(first & second) / len(first | second) if first | second else 1.0


def window_iou(said: Windows, relevant: Windows) -> float:
    """Overlap of two sets of windows in time; what several windows of one set cover counts once."""
    both = _covered([*said, *relevant])
    return (_covered(said) + _covered(relevant) - both) / both if both else 1.0


def gain(before: float, after: float, epsilon: float) -> int:
    """1 if a figure rose by more than `epsilon`, -1 if it fell by more, else 0."""
    return (after > before + epsilon) - (after < before - epsilon)


def score_answer(question: Question, answer: str) -> Score:
    """What an answer, as `read_answer` gives it, is worth; nothing, where the solution is not known."""
    if question.kind == "moment":
        if not question.windows:
            return Score()
        overlap = window_iou(read_windows(answer, float("inf")), question.windows)
        return Score(overlap, overlap >= MOMENT_FOUND)
    if question.solution is None:
        return Score()
    if question.kind == "free-form":
        points = _word_overlap(answer, question.solution)
        return Score(points, points == 1)
    if question.kind == "numerical":
        right = round(float(answer), 2) == round(float(question.solution), 2)
    else:
        right = answer == question.solution
    return Score(float(right), right)


def _covered(windows: Sequence[tuple[float, float]]) -> float:
    total, reached = 0.0, 0.0
    for start, end in sorted(windows):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _word_overlap(answer: str, solution: str) -> float:
    """F1 of the words, without case, punctuation and articles."""
    said, meant = _words(answer), _words(solution)
    common = (said & meant).total()
    return 2 * common / (said.total() + meant.total()) if common else 0.0


def _words(text: str) -> Counter[str]:
    return Counter(word for word in _WORD.findall(text.casefold()) if word not in _ARTICLES)
