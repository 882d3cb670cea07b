"""Data of the video env: annotations of both schemas, configs, paths that lead nowhere else, and generated clips."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from asyncrollout import EnvError, EnvPool, TextOptions, UsageError
from asyncrollout_envs.video import VideoEnv, VideoText, make_videos
from asyncrollout_envs.video.__main__ import main
from asyncrollout_envs.video.questions import Row
from asyncrollout_envs.video.scenes import invent_clip, moments, questions

QUESTION = {
    "path": "./videos/clip-0000.mp4",
    "problem": "What is seen?",
    "problem_type": "multiple choice",
    "options": ["A. a dog", "B. a cat"],
    "solution": "<answer>B</answer>",
    "relevant_sample_frames": [3, 4, 5],
}
MOMENT = {
    "qid": 9769,
    "query": "some military patriots takes us through their safety procedures and measures.",
    "duration": 12,
    "vid": "clip-0001",
    "relevant_clip_ids": [1, 2],
    "saliency_scores": [[4, 1, 1], [4, 1, 1]],
    "relevant_windows": [[2, 6]],
}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set; tests put their own annotations elsewhere."""
    return make_videos(tmp_path_factory.mktemp("made") / "set", clips=2).parent


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write rows into a file: JSON, or JSONL by its name."""

    def write(*rows: Any, name: str = "rows.json") -> Path:
        text = json.dumps(rows) if name.endswith(".json") else "\n".join(map(json.dumps, rows))
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def reset(env: VideoEnv, task: int = 0) -> str:
    """An episode's first text."""
    shown, _ = env.reset(options={"task": task})
    return VideoText(env, TextOptions()).describe(shown).text


def played(made: Path, write: Write, **changes: Any) -> VideoEnv:
    return VideoEnv(data_path={"train": write({**QUESTION, **changes})}, data_root=made)


def test_rows_of_both_schemas(made: Path, write: Write) -> None:
    env = VideoEnv(
        data_path={"train": write(QUESTION), "test": write(MOMENT, name="rows.jsonl")}, data_root=str(made), max_turns=2
    )
    assert [env.get_split_size(split) for split in ("train", "val", "test")] == [1, 0, 1]
    assert "A. a dog\nB. a cat" in reset(env)
    assert env.relevant == (3, 4, 5)
    env.reset(options={"task": {"split": "test"}})
    assert env.relevant == tuple(range(8, 24))
    assert env.step("<answer>2-6</answer>")[1] == pytest.approx(1.1)
    with pytest.raises(UsageError, match=r"split='val' has no questions \(there are: train 1, val 0, test 1\)"):
        env.reset(options={"task": {"split": "val"}})


def test_one_file_is_divided_by_video(made: Path, write: Write) -> None:
    rows = [{**QUESTION, "path": f"{number // 2}.mp4", "problem": f"{number}?"} for number in range(20)]
    env = VideoEnv(data_path=write(*rows), data_root=made)
    assert [env.get_split_size(split) for split in ("train", "val", "test")] == [16, 2, 2]


def test_withheld_windows_and_solutions_earn_nothing(made: Path, write: Write) -> None:
    hidden = {key: value for key, value in MOMENT.items() if not key.startswith(("relevant", "saliency"))}
    open_end = {key: value for key, value in QUESTION.items() if key not in ("solution", "relevant_sample_frames")}
    env = VideoEnv(data_path={"test": write(hidden, open_end)}, data_root=made, split="test")
    for task in (0, 1):
        reset(env, task)
        text = VideoText(env, TextOptions())
        for _ in range(2):
            parsed = text.parse(text.solve())
            assert parsed.valid
            _, reward, terminated, _, info = env.step(parsed.actions[0])
            assert reward == pytest.approx(0.1 if terminated else 0)
        assert terminated
        assert not info["success"]


def test_options_get_letters_and_solutions_are_read(made: Path, write: Write) -> None:
    env = played(made, write, options=["a dog", "a cat"], solution="a cat")
    assert "A. a dog\nB. a cat" in reset(env)
    for said in ("B", "(b)", "B.", "B. a cat", "A CAT"):
        reset(env)
        assert env.step(f"<answer>{said}</answer>")[4]["success"], said
    env = played(made, write, problem_type="numerical", solution=1234.5)
    reset(env)
    assert env.step("<answer>1,234.50</answer>")[4]["success"]
    env = played(made, write, problem_type="OCR", solution="STOP <image>", problem="<image> What is written?")
    assert reset(env).count("<image>") == 16


@pytest.mark.parametrize(
    ("options", "solution", "right", "wrong"),
    [
        (["A", "B", "C"], "B", ["B", "b.", "(B)", "B. B"], ["A", "C"]),
        (["B", "A"], "A", ["A", "A. B"], ["B", "B. A"]),  # a letter is the letter of an option
        (["C", "C++", "Java"], "C++", ["B", "C++", "c++", "B. C++"], ["C", "A", "C. Java"]),
        (["5", "-5", "0.5"], "-5", ["B", "-5"], ["5", "0.5"]),
        (["&", "*", "and"], "&", ["A", "&", "A. &"], ["*", "and", "B"]),
        (["US", "us", "we"], "us", ["B", "us"], ["US", "we"]),
        (["A. a dog", "B. a cat"], "<answer>B. a cat</answer>", ["B", "a cat."], ["a dog"]),
        (["a dog", "a cat"], "B", ["Option B", "option (b).", "choice B", "The answer is option B."], ["Option A"]),
        (["option B", "a cat"], "A", ["A", "option B"], ["B"]),
    ],
)
def test_options_of_any_text_have_one_right_answer(
    made: Path, write: Write, options: list[str], solution: str, right: list[str], wrong: list[str]
) -> None:
    env = played(made, write, options=options, solution=solution)
    for said in [*right, *wrong]:
        reset(env)
        assert env.step(f"<answer>{said}</answer>")[4]["success"] == (said in right), said


@pytest.mark.parametrize("more", [[0], [*range(6)]])
def test_a_frame_that_is_listed_twice_counts_once(more: list[int]) -> None:
    """Else less than all of it would be the best that a look can have."""
    once, twice = (
        Row(path="v.mp4", problem="?", problem_type="OCR", relevant_sample_frames=frames).read()
        for frames in ([*range(6)], [*range(6), *more])
    )
    assert once == twice


def test_options_that_are_the_same_have_no_answer(made: Path, write: Write) -> None:
    with pytest.raises(UsageError, match=r"`solution` 'RED'.*letter of one option"):
        played(made, write, options=["red", "Red"], solution="RED")


@pytest.mark.parametrize(("length", "longest"), [(1, 50), (50, 50), (60, 100), (101, 150), (600, 500)])
def test_an_answer_may_be_as_long_as_the_solution(made: Path, write: Write, length: int, longest: int) -> None:
    solution = ("word " * length)[:length].strip() + "." * (length % 5 == 0)
    env = played(made, write, problem_type="free-form", solution=solution)
    assert f"a few words, {longest} characters at most" in reset(env)
    text = VideoText(env, TextOptions())
    assert not text.parse(f"<answer>{'x' * (longest + 1)}</answer>").valid
    text.parse(text.solve())
    env.step(text.parse(text.solve()).actions[0])
    _, _, _, _, info = env.step(text.parse(text.solve()).actions[0])
    assert info["success"] == (length <= longest)


@pytest.mark.parametrize(
    "changes",
    [
        {"duration": 14.05, "relevant_windows": [[8, 14]]},
        {"duration": 14, "relevant_windows": [[8, 14.05]]},
        {"duration": "unknown", "relevant_windows": [[8, 14.05]]},
    ],
)
def test_a_moment_may_end_where_the_row_says_that_the_video_does(
    made: Path, write: Write, changes: dict[str, Any]
) -> None:
    env = VideoEnv(data_path={"train": write({**MOMENT, **changes})}, data_root=made)
    reset(env)
    assert env.sampling.seconds == 14
    text = VideoText(env, TextOptions())
    for said in ("8-14", "8-14.05", "8-14.004"):
        reset(env)
        assert text.parse(f"<answer>{said}</answer>").valid
        _, reward, _, _, info = env.step(f"<answer>{said}</answer>")
        assert info["success"]
        assert reward == pytest.approx(1.1)
    reset(env)
    assert text.parse("<watch>8-14.05</watch>").valid
    assert env.step("<watch>8-14.05</watch>")[4]["frame_indices"][-1] == env.sampling.last
    assert env.step(text.parse(text.solve()).actions[0])[4]["rewards"]["answer"] == pytest.approx(1)
    for beyond in ("<answer>8-14.1</answer>", "<watch>8-14.1</watch>"):
        assert not text.parse(beyond).valid


def test_a_moment_after_the_end_of_its_file_is_told(made: Path, write: Write) -> None:
    row = {**MOMENT, "duration": 30, "relevant_windows": [[20, 24]]}
    env = VideoEnv(data_path={"train": write(row)}, data_root=made)
    with pytest.raises(
        EnvError, match=r"`relevant_windows` of 'some military.*begin after the end of the video, at 14 s"
    ):
        reset(env)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"problem_type": "multiple-choise"},
            r"row 1: `problem_type` .*did you mean 'multiple choice'",
        ),
        ({"options": ["A. only"]}, "row 1: `options`"),
        ({"solution": "C"}, "row 1: `solution` 'C'.*letter"),
        ({"problem_type": "numerical", "solution": "many"}, "row 1: `solution` 'many'.*number"),
        ({"path": None}, "row 1: it has neither `path` nor `vid`"),
        ({"problem": None}, "row 1: it has neither `problem` nor `query`"),
        ({"path": 3}, r"row 1: Expected `str \| null`, got `int` - at `\$.path`"),
        ({"relevant_windows": [[4, 2]]}, r"row 1: `relevant_windows`: \[4, 2\]"),
    ],
)
def test_wrong_rows_are_told_with_their_place(made: Path, write: Write, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        played(made, write, **changes)


async def test_a_bad_video_fails_its_episode_alone(made: Path, write: Write, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "videos").mkdir(parents=True)
    clip = (made / "videos/clip-0000.mp4").read_bytes()
    contents = {"good": clip, "empty": b"", "noise": os.urandom(5_000), "text": b"hello"}
    for name, content in contents.items():
        (root / f"videos/{name}.mp4").write_bytes(content)
    (root / "videos/folder.mp4").mkdir()
    told = {
        "empty": "is empty",
        "noise": "cannot be read",
        "text": "cannot be read",
        "missing": "there is no video",
        "folder": "not a regular file",
    }
    path = write(*({**QUESTION, "path": f"videos/{name}.mp4"} for name in ("good", *told)))
    async with EnvPool(workers=1) as pool, pool.open("video", data_path={"train": str(path)}, data_root=root) as env:
        for task, message in enumerate(told.values(), start=1):
            with pytest.raises(EnvError, match=message):
                await env.reset(seed=0, task=task)
        await env.reset(seed=0, task=0)
        assert (await env.step("<answer>B</answer>")).info["success"]


def test_frames_of_other_annotations_than_the_samples_are_told(made: Path, write: Write) -> None:
    env = VideoEnv(data_path={"train": write(QUESTION)}, data_root=made, max_video_frames=4)
    with pytest.raises(EnvError, match=r"relevant_sample_frames.*has 4.*max_video_frames"):
        reset(env)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("../made.mp4", "has no '..'"),
        ("videos/../../x.mp4", "has no '..'"),
        ("/etc/passwd", "relative to the data directory"),
        ("videos/\0.mp4", "NUL"),
        ("x" * 300, "1 to 255 characters"),
        ("link.mp4", "leads out of the data directory"),
        ("links/clip.mp4", "leads out of the data directory"),
        ("loop.mp4", "there is no video|cannot be followed"),
        ("http://127.0.0.1/x.mp4", "there is no video"),
        ("", "1 to 255 characters"),
    ],
)
def test_no_row_leads_out_of_the_data_directory(write: Write, tmp_path: Path, path: str, told: str) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (outside / "clip.mp4").write_bytes(b"x")
    (root / "link.mp4").symlink_to(outside / "clip.mp4")
    (root / "links").symlink_to(outside)
    (root / "loop.mp4").symlink_to(root / "loop.mp4")
    env = VideoEnv(data_path={"train": write({**QUESTION, "path": path})}, data_root=root)
    with pytest.raises(EnvError, match=told):
        reset(env)
    env = VideoEnv(data_path={"train": write({**MOMENT, "vid": f"../{path}"})}, data_root=root)
    with pytest.raises(EnvError, match=r"refused|characters"):
        reset(env)


def config(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "data.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_a_config_names_files_and_rules(made: Path, write: Write, tmp_path: Path) -> None:
    write(QUESTION, name="train.json")
    write(MOMENT, MOMENT, name="test.jsonl")
    content = {
        "dataset": {"data_root": str(made), "train_anno_path": "train.json", "test_anno_path": ["test.jsonl"]},
        "video_env": {
            "max_video_frames": 32,
            "fps": 1,
            "init_sample_num": 4,
            "max_turns": 5,
            "max_turn_frames": 2,
            "rewards": {"frame_reward": 0.25, "add_step_frame_reward": False, "add_final_frame_reward": True},
        },
        "video_reader_env": {"use_cache": False, "image_type": "tensor"},
    }
    path = config(tmp_path, content)
    env = VideoEnv(dataset_name="qvhighlight", video_data_config_path=str(path), prompt_format="free_think", seed=42)
    assert [env.get_split_size(split) for split in ("train", "test")] == [1, 2]
    rules = env.rules
    assert (rules.max_turns, rules.frame_reward, rules.step_frame_reward) == (5, 0.25, "none")
    assert (rules.final_frame_reward, rules.cache_bytes) == (True, 0)
    assert reset(env).count("<image>") == 4
    assert len(env.step("<watch>0-10</watch>")[0]["indices"]) == 2
    assert VideoEnv(video_data_config_path=path, max_turns=1).rules.max_turns == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"data_set": {}}, "'data_set', which is not known: did you mean 'dataset'"),
        ({"dataset": {"train_ano_path": "x"}}, "dataset.train_ano_path.*did you mean 'train_anno_path'"),
        ({"dataset": {"data_root": "."}}, "names no annotations"),
        ({"dataset": {"data_root": "nowhere", "train_anno_path": "x.json"}}, "nowhere.*no such file"),
        ({"dataset": {"train_anno_path": "x.json"}}, "dataset.train_anno_path='x.json': there is no such file"),
        ({"dataset": {"train_anno_path": "/etc/passwd"}}, "dataset.train_anno_path='/etc/passwd' is refused"),
        ({"dataset": {"train_anno_path": "../rows.json"}}, "is refused"),
        ({"dataset": {"train_anno_path": "x\0"}}, "not a path that can be read"),
        ({"dataset": [1]}, "`dataset` of .* must be a mapping"),
        ({"dataset": {"train_anno_path": "rows.json"}, "video_env": {"max_turn": 1}}, "did you mean 'max_turns'"),
        ({"dataset": {"train_anno_path": "rows.json"}, "video_env": {"max_turns": "three"}}, "max_turns"),
        ("secret: [", r"data.yaml' is not YAML, line 1$"),
        ("!!python/object/apply:os.system [touch owned]", "is not YAML"),
        ("- just a list", "must be a mapping"),
    ],
)
def test_wrong_configs_are_told(write: Write, tmp_path: Path, content: Any, told: str) -> None:
    write(QUESTION)
    (tmp_path / "below").mkdir()
    write(QUESTION, name="below/rows.json")
    path = config(tmp_path / "below", content)
    with pytest.raises(UsageError, match=told):
        VideoEnv(video_data_config_path=path)
    assert not Path("owned").exists()


def test_a_missing_config_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"video_data_config_path='path/to/config.yaml': there is no such file"):
        VideoEnv(dataset_name="qvhighlight", video_data_config_path="path/to/config.yaml")
    with pytest.raises(UsageError, match="not a regular file"):
        VideoEnv(video_data_config_path=tmp_path)


def test_options_that_do_not_go_together(write: Write, tmp_path: Path) -> None:
    path = write(QUESTION)
    with pytest.raises(UsageError, match="not both"):
        VideoEnv(video_data_config_path=path, data_path=path)
    with pytest.raises(UsageError, match=r"data_root=.* is of use with data_path only"):
        VideoEnv(data_root=tmp_path)
    with pytest.raises(UsageError, match=r"data_root=.* is not a directory"):
        VideoEnv(data_path=path, data_root=path)
    with pytest.raises(UsageError, match="split='dev'"):
        VideoEnv(data_path={"dev": path})
    with pytest.raises(UsageError, match="names no file"):
        VideoEnv(data_path={})
    with pytest.raises(UsageError, match="data_path=3"):
        VideoEnv(data_path=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="video_data_config_path='3' is not a path"):
        VideoEnv(video_data_config_path=3)  # type: ignore[arg-type]


def test_whoever_serves_others_says_where_data_are(
    made: Path, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCROLLOUT_DATA_DIR", str(made))
    VideoEnv(video_data_config_path=made / "data.yaml")
    with pytest.raises(UsageError, match="refused: ASYNCROLLOUT_DATA_DIR allows data in"):
        VideoEnv(data_path=write(QUESTION))
    assert VideoEnv().get_split_size()  # the clips that are made here
    outside = config(tmp_path, {"dataset": {"data_root": str(made)}})
    with pytest.raises(UsageError, match="refused: ASYNCROLLOUT_DATA_DIR"):
        VideoEnv(video_data_config_path=outside)
    link = made / "link.yaml"
    link.symlink_to(outside)
    try:
        with pytest.raises(UsageError, match="refused: ASYNCROLLOUT_DATA_DIR"):
            VideoEnv(video_data_config_path=link)
    finally:
        link.unlink()


def digests(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_clips_depend_on_the_seed_alone(made: Path, tmp_path: Path) -> None:
    again = make_videos(tmp_path / "again", clips=2)
    assert digests(again.parent) == digests(made)
    other = make_videos(tmp_path / "other", clips=2, seed=1)
    assert digests(other.parent)["videos/clip-0000.mp4"] != digests(made)["videos/clip-0000.mp4"]


def test_every_kind_of_question_is_asked_with_its_answer() -> None:
    kinds = set()
    for number in range(30):
        clip = invent_clip(number, 0)
        assert 11 <= clip.seconds <= 16
        by_caption = {scene.caption: scene for scene in clip.scenes}
        for row in questions(clip, 0):
            kinds.add(row["problem_type"])
            answer = row["solution"].removeprefix("<answer>").removesuffix("</answer>")
            asked = [scene for word, scene in by_caption.items() if word in row["problem"]]
            if "colour" in row["problem"]:
                assert f"{answer}. {asked[0].colour}" in row["options"]
            elif "which way" in row["problem"]:
                assert f"{answer}. {asked[0].direction}" in row["options"]
            elif "flash" in row["problem"]:
                assert int(answer) == len(asked[0].flashes)
            elif "scenes" in row["problem"]:
                assert int(answer) == len(clip.scenes)
            else:
                assert f"{by_caption[answer].colour} {by_caption[answer].shape}" in row["problem"]
        for row in moments(clip, 0):
            assert all(0 <= start < end <= row["duration"] for start, end in row["relevant_windows"])
            assert len(row["relevant_clip_ids"]) == len(row["saliency_scores"])
    assert kinds == {"multiple choice", "numerical", "free-form"}


def test_make_videos_replaces_its_own_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "set"
    assert main([str(target), "--clips", "2"]) == 0
    (target / "mine.txt").write_text("keep")
    capsys.readouterr()
    assert main([str(target), "--clips", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"Wrote 1 clips, with questions and moments to find: {target / 'data.yaml'}",
        f"Next: asyncrollout check-env video video_data_config_path={target / 'data.yaml'}",
    ]
    assert [path.name for path in (target / "videos").iterdir()] == ["clip-0000.mp4"]
    assert (target / "mine.txt").read_text() == "keep"
    (target / "generated.json").unlink()
    assert main([str(target)]) == 2
    assert "was not made by make_videos" in capsys.readouterr().err
    (target / "generated.json").write_text(json.dumps({"clips": 1, "seed": 0, "files": ["../precious"]}))
    (tmp_path / "precious").touch()
    assert main([str(target)]) == 2
    assert (tmp_path / "precious").exists()
    assert main([str(tmp_path / "precious")]) == 2
    assert main([str(target), "--clips", "0"]) == 2


def test_the_default_clips_are_made_once_by_processes_that_race(tmp_path: Path) -> None:
    script = "from asyncrollout_envs.video.generate import default_config as c; print(c(), c().stat().st_ino)"
    env = {**os.environ, "ASYNCROLLOUT_CACHE": str(tmp_path)}
    (tmp_path / "video-left.partial").mkdir()  # of a process that was killed
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            env=env,
        )
        for _ in range(2)
    ]
    told = {racer.communicate()[0] for racer in racers}
    assert len(told) == 1
    (kept,) = tmp_path.glob("video-*")
    (kept / "videos/clip-0003.mp4").unlink()  # as by whoever clears caches
    subprocess.run([sys.executable, "-c", script], env=env, check=True, stdout=subprocess.DEVNULL)
    assert (kept / "videos/clip-0003.mp4").exists()


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ASYNCROLLOUT_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="Set ASYNCROLLOUT_CACHE"):
        VideoEnv()
