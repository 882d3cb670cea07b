"""The video environment: watch parts of a video, and answer a question about it, or tell when something happens."""

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from asyncrollout.errors import EnvError, UsageError
from asyncrollout_envs.kwargs import check_one_of, check_whole
from asyncrollout_envs.seeding import Split, check_split, fresh_seed
from asyncrollout_envs.video.actions import Action, ActionError, check_range, read_action, split_text
from asyncrollout_envs.video.cache import FrameCache
from asyncrollout_envs.video.embedders import Embedder, choose_embedder, similarity
from asyncrollout_envs.video.frames import Clips, Sampling, evenly
from asyncrollout_envs.video.paths import video_file
from asyncrollout_envs.video.questions import Question, read_answer
from asyncrollout_envs.video.rewards import IOU_EPSILON, frame_iou, gain, look_share, score_answer
from asyncrollout_envs.video.settings import ENV, SPLITS, PathLike, set_up

PROMPT_FORMATS = ("free_think", "free_think_v2", "no_think")
_EMBEDDING_TIMEOUT = 20.0  # seconds
_SHEET_COLUMNS = 4

Shown = dict[str, Any]
"""An observation: `frames` (count, height, width, 3), their `indices` and `seconds`, and a `notice`."""


class VideoEnv:
    """An action is the text `<watch>a-b</watch>`, `<retrieve>a,b</retrieve>` or `<answer>..</answer>`.

    The data are named by `video_data_config_path`, a YAML file as Video-MTR has it, or by `data_path` (a JSON or JSONL
    file, or one for each split) with the videos in `data_root`; without either, generated clips are played. `rules` are
    the fields of `Rules`. `seed` is for resets without one. `embedder` is what similarity is measured with.

    `options["task"]` is the place of a question in the split, or `{"split": ..., "index": ...}`, with either left out.
    """

    def __init__(
        self,
        *,
        split: Split = "train",
        dataset_name: str = "generated",
        video_data_config_path: PathLike | None = None,
        data_path: PathLike | Mapping[str, PathLike] | None = None,
        data_root: PathLike | None = None,
        prompt_format: Literal["free_think", "free_think_v2", "no_think"] = "free_think",
        seed: int | None = None,
        embedder: str | Embedder = "colours",
        **rules: Any,
    ) -> None:
        check_split(ENV, split)
        check_one_of(ENV, "prompt_format", prompt_format, PROMPT_FORMATS)
        if not isinstance(dataset_name, str):
            raise UsageError(f"{ENV}: dataset_name={dataset_name!r:.200} is not a text")
        if seed is not None:
            check_whole(ENV, least=0, seed=seed)
        self._data, self.rules = set_up(video_data_config_path, data_path, data_root, rules)
        self._embedder = choose_embedder(embedder, _EMBEDDING_TIMEOUT)
        self._clips = Clips(FrameCache(self.rules.cache_bytes), self.rules.frame_size, self.rules.decode_timeout)
        self._step_reward = self.rules.step_frame_reward
        self._dataset = dataset_name
        self._default = split
        self._seed = seed
        self.prompt_format = prompt_format
        self._question: Question | None = None
        self._begin(split, 0)

    def _begin(self, split: str, index: int) -> None:
        self.split, self.index = split, index
        self.turn = 0
        self.over = False
        self._total = 0.0
        self._ious: list[float] = []
        self._similarity: float | None = None

    @property
    def question(self) -> Question:
        if self._question is None:
            raise UsageError(f"{ENV}: reset() comes first")
        return self._question

    @property
    def decodes(self) -> int:
        """How often ffmpeg had to be asked, as the cache had not all that was needed."""
        return self._clips.decodes

    @property
    def turns_left(self) -> int:
        return self.rules.max_turns - self.turn

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Shown, dict[str, Any]]:
        self._question = None  # what fails leaves no episode behind
        self._begin(*self._choose(seed, (options or {}).get("task")))
        question = self._data.splits[self.split][self.index]
        self._path = video_file(self._data.root, question.files)
        self.video = Path(self._path).stem
        self.sampling = Sampling.of(self._clips.info(self._path), self.rules.max_video_frames)
        self.relevant = self.sampling.relevant(question)
        self._show(evenly(0, self.sampling.last, self.rules.init_sample_num))
        self._question = question.cut(self.sampling.seconds)
        self._measure()
        info = {
            "dataset": self._dataset,
            "split": self.split,
            "index": self.index,
            "qid": question.name,
            "video": self.video,
            "problem_type": question.kind,
            "seconds": self.sampling.seconds,
            "sampled_frames": len(self.sampling.numbers),
        }
        return self._shown(), info

    def step(self, action: str) -> tuple[Shown, float, bool, bool, dict[str, Any]]:
        question = self.question
        if not isinstance(action, str):
            raise UsageError(f"{ENV}: an action is a text such as '<watch>0-5</watch>', not {action!r:.100}")
        if self.over:
            raise UsageError(f"{ENV}: the episode is over; reset() comes first")
        info: dict[str, Any] = {"success": False, "action_is_effective": False}
        earned: dict[str, float] = {}
        notice = ""
        self.turn += 1
        try:
            done = self.read(*split_text(action))
        except ActionError as error:
            notice = f"That cannot be done: {error}"
            info["error_kind"] = str(error).partition(":")[0]
        else:
            if done.kind == "answer" or self.rules.format_reward_per == "turn":  # else idle looks would pay
                earned["format"] = self.rules.format_reward
            info.update(action_is_effective=True, action_type=done.kind, action_content=done.content)
            if done.kind == "answer":
                earned |= self._answered(question, done.content, info)
                self.over = True
                notice = "You have given your answer. The episode is over."
            else:
                earned |= self._watched(done)
        terminated = self.over
        truncated = not terminated and self.turns_left <= 0
        self.over |= truncated
        reward = sum(earned.values(), 0.0)
        self._total += reward
        info |= {"turn": self.turn, "rewards": earned, "frame_indices": [*self.indices]}
        if self._ious:
            info["iou"] = self._ious[-1]
        return self._shown(notice), reward, terminated, truncated, info

    def read(self, kind: str, content: str) -> Action:
        """What a tag asks for, checked against this video and question; `ActionError` if it cannot be done."""
        question = self.question
        if not kind:
            raise ActionError("format_error: an action stands in <watch>, <retrieve> or <answer>")
        action = read_action(kind, content)
        if action.kind == "answer":
            return Action("answer", read_answer(question, action.content, self.sampling.seconds))
        check_range(
            action, max(self.sampling.seconds, question.seconds) if action.kind == "watch" else self.sampling.last
        )
        return action

    def compute_reward(self) -> float:
        """The sum of the steps' rewards since the reset."""
        return self._total

    def get_split_size(self, split: str = "train") -> int:
        """How many questions a split has; 0 for one that there is not."""
        return len(self._data.splits.get(split, ()))

    def init_embedder(self, service_url: str | Embedder = "http://localhost:5000") -> dict[str, Any]:
        """Have steps rewarded by similarity, measured with this embedder, if it works; the status tells.

        It is the address of a service, a function, the import path of one, or "colours".
        """
        try:
            embedder = choose_embedder(service_url, _EMBEDDING_TIMEOUT)
            similarity(embedder, "a red square", [np.full((8, 8, 3), 128, np.uint8)])
        except Exception as error:  # noqa: BLE001 (it may be anybody's function)
            return {"ok": False, "error": str(error) or type(error).__name__}
        self._embedder = embedder
        self._step_reward = "similarity"
        self._similarity = None
        return {"ok": True, "error": ""}

    def state_key(self) -> tuple[Hashable, ...]:
        best = max(self._ious, default=0.0) if self._step_reward == "iou" else 0.0
        return (self.split, self.index, self.turn, self.over, best, *self.indices)

    def render(self) -> NDArray[np.uint8]:
        """The frames that are shown, on a sheet whose size does not change in an episode."""
        _, height, width, _ = self.frames.shape
        most = max(self.rules.init_sample_num, self.rules.max_turn_frames)
        sheet = np.zeros((-(-most // _SHEET_COLUMNS) * height, _SHEET_COLUMNS * width, 3), np.uint8)
        for place, frame in enumerate(self.frames):
            row, column = divmod(place, _SHEET_COLUMNS)
            sheet[row * height : (row + 1) * height, column * width : (column + 1) * width] = frame
        return sheet

    def close(self) -> None:
        self._question = None

    def _choose(self, seed: int | None, task: Any) -> tuple[str, int]:
        split, index = self._default, task
        if isinstance(task, Mapping):
            if unknown := [key for key in task if key not in ("split", "index")]:
                raise UsageError(f"{ENV}: task={task!r:.200} has {unknown[0]!r}; its keys are 'split' and 'index'")
            split, index = task.get("split", split), task.get("index")
            check_split(ENV, split)
        count = self.get_split_size(split)
        if not count:
            sizes = ", ".join(f"{name} {self.get_split_size(name)}" for name in SPLITS)
            raise UsageError(f"{ENV}: split={split!r} has no questions (there are: {sizes})")
        if index is None:
            chosen = seed if seed is not None else self._seed if self._seed is not None else fresh_seed()
            return split, int(chosen) % count
        check_whole(ENV, least=0, most=count - 1, task=index)
        return split, int(index)

    def _show(self, indices: list[int]) -> None:
        self.indices = indices
        self.frames = self._clips.pictures(self._path, self.sampling, indices)

    def _shown(self, notice: str = "") -> Shown:
        return {
            "frames": self.frames,
            "indices": [*self.indices],
            "seconds": [self.sampling.time(index) for index in self.indices],
            "notice": notice,
        }

    def _measure(self) -> None:
        """How much of what is shown is relevant."""
        if self.relevant is not None:
            self._ious.append(frame_iou(self.indices, self.relevant))

    def _watched(self, action: Action) -> dict[str, float]:
        """Show a range of frames; what that earns."""
        before = self._measured_similarity()
        if action.kind == "watch":
            first, last = self.sampling.between(action.start, action.end)
        else:
            first, last = int(action.start), int(action.end)
        self._show(evenly(first, last, self.rules.max_turn_frames))
        self._measure()
        self._similarity = None
        if self._step_reward in ("iou", "last_iou") and self.relevant is not None:
            return {"frames": self.rules.frame_reward * self._overlap_gain(self.relevant)}
        if before is not None:
            after = self._measured_similarity() or 0.0
            return {"frames": self.rules.frame_reward * gain(before, after, self.rules.similarity_epsilon)}
        return {}

    def _overlap_gain(self, relevant: Sequence[int]) -> float:
        """How much better the last look was than those before, from 0 to 1."""
        *before, iou = self._ious
        if self._step_reward == "last_iou":
            return max(0, gain(before[-1], iou, IOU_EPSILON))
        reachable = min(1.0, self.rules.max_turn_frames / len(relevant)) if relevant else 0.0
        return look_share(max(before), iou, before[0], reachable)

    def _measured_similarity(self) -> float | None:
        """Of what is shown to what is asked; None if nobody wants to know."""
        if self._step_reward == "similarity" and self._similarity is None:
            try:
                self._similarity = similarity(self._embedder, self.question.problem, [*self.frames])
            except EnvError:
                raise
            except Exception as error:
                raise EnvError(f"the embedder failed: {type(error).__name__}: {error}") from error
        return self._similarity

    def _answered(self, question: Question, answer: str, info: dict[str, Any]) -> dict[str, float]:
        """What an answer earns; a multiple choice earns less with every turn."""
        score = score_answer(question, answer, self.sampling.seconds)
        info["success"] = score.right
        points = score.points
        if question.kind == "multiple choice" and score.right:
            points -= self.rules.turn_cost * (self.turn - 1)
        earned = {"answer": self.rules.answer_reward * points}
        if self.rules.final_frame_reward and score.right and self._ious:
            earned["final_frames"] = self.rules.frame_reward * gain(self._ious[0], self._ious[-1], IOU_EPSILON)
        return earned
