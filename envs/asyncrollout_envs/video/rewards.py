"""What is earned, as pure functions: overlap of frames and of windows, right answers, similarity."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from asyncrollout_envs.video.actions import read_windows
from asyncrollout_envs.video.questions import Question, Window, same_text

IOU_EPSILON = 0.001
MOMENT_FOUND = 0.5
"""The overlap from which on a moment counts as found, as in QVHighlights' R1@0.5."""

# A number with its sign, thousands and decimals, or a word with what belongs to it, as in C++ or F#. A dash inside of a
# word, or between two numbers, is not a sign.
_WORD = re.compile(
    r"(?:(?<![^\W_])-)?(?:[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?|(?<![^\W_])\.[0-9]+)(?![^\W_])[+#]*|[^\W_]+[+#]*"
)
_DASHES = str.maketrans(dict.fromkeys("\N{MINUS SIGN}\N{EN DASH}", "-"))
_ARTICLES = frozenset(("a", "an", "the"))


class Score(msgspec.Struct, frozen=True):
    """What an answer is worth, before the turns that it took count, and whether it is right."""

    points: float = 0.0
    right: bool = False


def frame_iou(seen: Iterable[int], relevant: Iterable[int]) -> float:
    """Overlap of two sets of frames; two empty ones are the same."""
    first, second = {*seen}, {*relevant}
    return len(first & second) / len(first | second) if first | second else 1.0


def window_iou(said: Sequence[Window], relevant: Sequence[Window]) -> float:
    """Overlap of two sets of windows in time; what several windows of one set cover counts once."""
    both = _covered([*said, *relevant])
    return (_covered(said) + _covered(relevant) - both) / both if both else 1.0


def gain(before: float, after: float, epsilon: float) -> int:
    """1 if a figure rose by more than `epsilon`, -1 if it fell by more, else 0."""
    return (after > before + epsilon) - (after < before - epsilon)


def look_share(best_before: float, overlap: float, at_first: float, reachable: float) -> float:
    """What part of the way from the first overlap to the best that a look can have a new best one is.

    So all looks of an episode earn as much as one that is perfect: neither looking away and back, nor coming nearer in
    small steps, earns more.
    """
    way = reachable - at_first
    gained = min(overlap, reachable) - best_before
    return gained / way if gained > IOU_EPSILON and way > 0 else 0.0


def score_answer(question: Question, answer: str, seconds: float = float("inf")) -> Score:
    """What an answer, as `read_answer` gives it, is worth; nothing, where the solution is not known.

    What a moment's answer says about the time after the file's end does not count.
    """
    if question.kind == "moment":
        if not question.windows:
            return Score()
        said = read_windows(answer, float("inf"))
        overlap = window_iou([(min(start, seconds), min(end, seconds)) for start, end in said], question.windows)
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


def _covered(windows: Sequence[Window]) -> float:
    total, reached = 0.0, 0.0
    for start, end in sorted(windows):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _word_overlap(answer: str, solution: str) -> float:
    """F1 of the words, without case, punctuation and articles; texts without a word must be the same."""
    said, meant = _words(answer), _words(solution)
    if not meant:
        return float(same_text(answer, solution))
    common = (said & meant).total()
    return 2 * common / (said.total() + meant.total()) if common else 0.0


def _words(text: str) -> Counter[str]:
    """An article is one if a word follows: the A in "vitamin A" is none."""
    words = [word.replace(",", "") for word in _WORD.findall(text.casefold().translate(_DASHES))]
    return Counter(word for place, word in enumerate(words, 1) if word not in _ARTICLES or place == len(words))
