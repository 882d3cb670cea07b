"""What happens in a generated clip, drawn from a seed, and what can be asked about it with certainty."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrollout_envs.video.drawing import BACKGROUNDS, COLOURS, DIRECTIONS, SHAPES, draw_frame

FPS = 4
CLIP_SECONDS = 2  # of QVHighlights' units, which its saliency scores are for

_LENGTHS = ((4, 4, 4), (4, 2, 4, 4), (4, 4, 6), (2, 4, 4, 4), (4, 4, 4, 4), (6, 4, 2, 4))  # seconds of each scene
# A turn shows 8 frames; of 4 seconds they are at most 3 apart. So each flash, and each pause between two, is in one.
_FLASH, _PAUSE = 3, 4  # frames
_LONGEST_COUNTED = 4  # seconds
_MOST_FLASHES = 3
_WORDS = (
    "HARBOR",
    "GARDEN",
    "MARKET",
    "BRIDGE",
    "CASTLE",
    "DESERT",
    "FOREST",
    "ISLAND",
    "MEADOW",
    "TUNNEL",
    "VALLEY",
    "WINDOW",
    "PALACE",
    "OFFICE",
    "SCHOOL",
    "STREET",
)

Row = dict[str, Any]


class Scene(msgspec.Struct, frozen=True):
    """A part of a clip, from `first` up to but not including `end`, in frames; so are the starts of its flashes."""

    first: int
    end: int
    background: str
    shape: str
    colour: str
    direction: str
    caption: str
    flashes: tuple[int, ...] = ()

    @property
    def window(self) -> list[float]:
        """In seconds."""
        return [self.first / FPS, self.end / FPS]

    @property
    def thing(self) -> str:
        return f"{_article(self.colour)} {self.colour} {self.shape}"

    def draw(self, frame: int) -> NDArray[np.uint8]:
        return draw_frame(
            background=self.background,
            shape=self.shape,
            colour=self.colour,
            direction=self.direction,
            progress=(frame - self.first) / (self.end - self.first - 1),
            caption=self.caption,
            flashing=any(start <= frame < start + _FLASH for start in self.flashes),
        )


class Clip(msgspec.Struct, frozen=True):
    """A clip as it was thought up; its video shows exactly this."""

    name: str
    scenes: tuple[Scene, ...]

    @property
    def frames(self) -> int:
        return self.scenes[-1].end

    @property
    def seconds(self) -> float:
        return self.frames / FPS

    def draw(self) -> Iterator[NDArray[np.uint8]]:
        for scene in self.scenes:
            yield from (scene.draw(frame) for frame in range(scene.first, scene.end))


def invent_clip(number: int, seed: int) -> Clip:
    """Clip `number` of the set that the seed gives."""
    rng = np.random.default_rng((seed, number))
    lengths = _LENGTHS[rng.integers(len(_LENGTHS))]
    count = len(lengths)
    colours, words = rng.permutation([*COLOURS])[:count], rng.permutation(_WORDS)[:count]
    scenes, first = [], 0
    for place, seconds in enumerate(lengths):
        end = first + seconds * FPS
        scenes.append(
            Scene(
                first,
                end,
                background=BACKGROUNDS[rng.integers(len(BACKGROUNDS))],
                shape=SHAPES[rng.integers(len(SHAPES))],
                colour=str(colours[place]),
                direction=[*DIRECTIONS][rng.integers(len(DIRECTIONS))],
                caption=str(words[place]),
                flashes=_flashes(rng, first, end) if seconds <= _LONGEST_COUNTED else (),
            )
        )
        first = end
    return Clip(f"clip-{number:04}", tuple(scenes))


def questions(clip: Clip, seed: int) -> list[Row]:
    """Rows of the schema with `path`, `problem`, `problem_type`, `options`, `solution` and `relevant_sample_frames`."""
    rng = np.random.default_rng((seed, int(clip.name[-4:]), 1))
    asked, other = (clip.scenes[at] for at in rng.permutation(len(clip.scenes))[:2])
    counted = [scene for scene in clip.scenes if scene.window[1] - scene.window[0] <= _LONGEST_COUNTED]
    flashing = counted[rng.integers(len(counted))]
    reads = "While the caption reads"
    colour = _choice(rng, f"{reads} {asked.caption}, what colour is the shape?", [*COLOURS], asked.colour)
    way = _choice(rng, f"{reads} {other.caption}, which way does the shape move?", [*DIRECTIONS], other.direction)
    flashes = f"{reads} {flashing.caption}, how many times does the border flash white? Answer with a number."
    word = f"What does the caption read while {asked.thing} is shown? Answer with one word."
    scenes = "How many scenes does the clip have? The caption changes from each to the next. Answer with a number."
    return [
        _row(clip, [asked], colour),
        _row(clip, [other], way),
        _row(clip, [flashing], _open("numerical", flashes, str(len(flashing.flashes)))),
        _row(clip, [asked], _open("free-form", word, asked.caption)),
        _row(clip, clip.scenes, _open("numerical", scenes, str(len(clip.scenes)))),
    ]


def moments(clip: Clip, first_qid: int) -> list[Row]:
    """Rows of QVHighlights' schema: a query, and the windows of time that it is true of."""
    told = [(f"{scene.thing.capitalize()} moves {scene.direction}.", [scene.window]) for scene in clip.scenes[:2]]
    flashes = [[at / FPS, (at + _FLASH) / FPS] for scene in clip.scenes for at in scene.flashes]
    if flashes:
        told.append(("The border flashes white.", flashes))
    return [_moment(clip, first_qid + place, query, windows) for place, (query, windows) in enumerate(told)]


def _moment(clip: Clip, qid: int, query: str, windows: Sequence[Sequence[float]]) -> Row:
    units = range(int(clip.seconds) // CLIP_SECONDS)
    ids = [unit for unit in units if any(a < (unit + 1) * CLIP_SECONDS and b > unit * CLIP_SECONDS for a, b in windows)]
    return {
        "qid": qid,
        "query": query,
        "duration": clip.seconds,
        "vid": clip.name,
        "relevant_clip_ids": ids,
        "saliency_scores": [[4, 4, 4] for _ in ids],
        "relevant_windows": [[*window] for window in windows],
    }


def _row(clip: Clip, scenes: Sequence[Scene], asked: Row) -> Row:
    return {
        "path": f"videos/{clip.name}.mp4",
        **asked,
        "relevant_windows": [scene.window for scene in scenes],
        "relevant_sample_frames": [frame for scene in scenes for frame in range(scene.first, scene.end)],
    }


def _open(kind: str, problem: str, solution: str) -> Row:
    return {
        "problem": problem,
        "problem_type": kind,
        "options": [],
        "solution": f"<answer>{solution}</answer>",
    }


def _choice(rng: np.random.Generator, problem: str, values: Sequence[str], right: str) -> Row:
    wrong = [value for value in values if value != right]
    offered = rng.permutation([right, *rng.permutation(wrong)[:3]])
    letter = "ABCD"[[*offered].index(right)]
    options = [f"{letter}. {value}" for letter, value in zip("ABCD", offered, strict=True)]
    return {**_open("multiple choice", problem, letter), "options": options}


def _flashes(rng: np.random.Generator, first: int, end: int) -> tuple[int, ...]:
    """The first frames of up to three flashes; there is a pause between two, and the scene's ends are left out."""
    room = end - first - 2
    most = min(_MOST_FLASHES, (room + _PAUSE) // (_FLASH + _PAUSE))
    count = int(rng.integers(most + 1))
    slack = room - count * _FLASH - max(0, count - 1) * _PAUSE
    shifts = np.sort(rng.integers(slack + 1, size=count))
    return tuple(first + 1 + place * (_FLASH + _PAUSE) + int(shift) for place, shift in enumerate(shifts))


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"
