"""The report: its arithmetic against the obvious way, what it reads, and that its data cannot get out of the page."""

import base64
import itertools
import json
import math
import os
import statistics as plain_statistics
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import asyncrollout as ar
from asyncrollout import EnvError, Group, JournalError, Turn, UsageError, Verdict
from asyncrollout.cli.app import main
from asyncrollout.journal.events import (
    AnyEvent,
    Began,
    Cancelled,
    Delivered,
    Dispatched,
    Drawn,
    Dropped,
    Evaluating,
    Replied,
    Updated,
)
from asyncrollout.journal.recorded_run import read_run
from asyncrollout.journal.writer import JOURNAL, TRAJECTORIES, Lock
from asyncrollout.report.blocks import Blocks, embedded
from asyncrollout.report.formatting import as_number, as_text, pictures_in
from asyncrollout.report.page import write_report
from asyncrollout.report.statistics import (
    Span,
    at_once,
    distribution,
    edges,
    estimates_over,
    every_nth,
    lanes,
    percentiles,
    shares,
)
from asyncrollout.serialization import to_plain
from asyncrollout.stats import Estimate, mean, student_t
from tests.recorded_runs import BEGAN, events_of, group_of_rewards, played, write_run

numbers = st.floats(-1e6, 1e6)
times = st.floats(0, 100)


def data_of(path: Path, name: str) -> Any:
    """A block of a page, read as a browser reads it: up to the first end of a script."""
    page = path.read_text()
    return json.loads(page.partition(f'<script type="application/json" id="{name}">')[2].partition("</script")[0])


def part_of(summary: dict[str, Any], title: str) -> dict[str, Any]:
    (found,) = [part for section in summary["sections"] for part in section["parts"] if part["title"] == title]
    return dict(found)


def series_of(summary: dict[str, Any], title: str) -> dict[str, list[list[float]]]:
    return {one["name"]: one["points"] for one in part_of(summary, title)["series"]}


@given(st.lists(numbers, min_size=2))
def test_estimate_is_mean_and_standard_error(values: list[float]) -> None:
    assume(max(values) - min(values) > 1e-6 * max(map(abs, values)))
    found = mean(values)
    assert found.mean == pytest.approx(plain_statistics.fmean(values), rel=1e-6, abs=1e-6)
    error = plain_statistics.stdev(values) / math.sqrt(len(values))
    assert found.mean is not None
    assert found.high is not None
    half = found.high - found.mean
    assert half == pytest.approx(student_t(len(values) - 1) * error, rel=1e-6, abs=1e-6)


def test_estimate_of_little_says_little() -> None:
    assert mean([]) == Estimate()
    assert mean([3.0]) == mean([3.0, 3.0]) == Estimate(3.0)
    assert percentiles([]) == {"count": 0}
    assert distribution([]) == []


def test_percentiles_of_a_hundred_numbers() -> None:
    found = percentiles([float(value) for value in range(101)])
    assert found == {"count": 101, "mean": 50.0, "p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "max": 100.0}
    assert distribution([float(value) for value in range(101)], most=4) == [
        (0, 0),
        (25, 0.25),
        (50, 0.5),
        (75, 0.75),
        (100, 1),
    ]


@given(st.lists(numbers, min_size=1))
def test_histogram_has_each_value_once(values: list[float]) -> None:
    at = edges(values)
    assert len(at) <= 41
    assert sum(shares(values, at)) == pytest.approx(1)


@given(st.lists(st.integers(0, 3000), min_size=1))
def test_histogram_of_whole_numbers_has_bars_of_whole_width(values: list[int]) -> None:
    at = edges(values, whole=True)
    (width,) = {round(high - low, 6) for low, high in itertools.pairwise(at)}
    assert width == int(width)
    assert len(at) <= 41
    counted = [sum(low < value < high for value in values) / len(values) for low, high in itertools.pairwise(at)]
    assert shares(values, at) == pytest.approx(counted)


@given(st.lists(st.tuples(times, numbers), min_size=1), st.integers(1, 30))
def test_means_over_time_are_those_of_each_bin(points: list[tuple[float, float]], bins: int) -> None:
    found = estimates_over(points, 100.0, bins, mean)
    by_bin: dict[int, list[float]] = {}
    for at, value in points:
        by_bin.setdefault(min(int(at * bins / 100.0), bins - 1), []).append(value)
    expected = [((place + 0.5) * 100.0 / bins, plain_statistics.fmean(by_bin[place])) for place in sorted(by_bin)]
    assert [point[:2] for point in found] == [pytest.approx(point, abs=1e-6) for point in expected]


@given(st.lists(st.tuples(times, st.floats(0.01, 50))))
def test_lanes_are_as_few_as_can_be_and_never_overlap(stretches: list[tuple[float, float]]) -> None:
    spans = [Span(start, start + long, []) for start, long in sorted(stretches)]
    found = lanes(spans)
    for lane in set(found):
        of_lane = [span for span, place in zip(spans, found, strict=True) if place == lane]
        assert all(one.end <= after.start for one, after in itertools.pairwise(of_lane))
    most = max((sum(one.start <= span.start < one.end for one in spans) for span in spans), default=0)
    assert max(found, default=-1) + 1 == most


@given(st.lists(st.tuples(times, times)), st.integers(1, 20))
def test_at_once_is_the_overlap_with_each_bin(pairs: list[tuple[float, float]], bins: int) -> None:
    stretches = [(min(pair), max(pair)) for pair in pairs]
    found = at_once([start for start, _ in stretches], [end for _, end in stretches], 100.0, bins)
    width = 100.0 / bins
    for place, value in enumerate(found):
        low, high = place * width, (place + 1) * width
        overlaps = sum(max(min(end, high) - max(start, low), 0) for start, end in stretches)
        assert value == pytest.approx(overlaps / width, abs=1e-6)


@given(st.integers(0, 1000), st.integers(1, 50))
def test_every_nth_is_even(count: int, most: int) -> None:
    found = every_nth(count, most)
    assert len(found) == min(count, most)
    assert len({high - low for low, high in itertools.pairwise(found)}) <= 2
    assert all(0 <= place < count for place in found)


jsons = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text()
    | st.sampled_from(["</script>", "<!--", "]]>", "&"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(jsons)
def test_embedded_data_says_the_same_and_cannot_end_its_element(value: Any) -> None:
    text = embedded(value)
    assert json.loads(text) == value
    assert not set(text) & set("<>&\u2028\u2029")


@given(st.dictionaries(st.text(), jsons))
def test_blocks_come_back_as_they_were(records: dict[str, Any]) -> None:
    written: dict[int, str] = {}
    blocks = Blocks(written.__setitem__)
    for uid, shown in records.items():
        blocks.add(uid, {"value": shown})
    blocks.flush()
    found = [json.loads(zlib.decompress(base64.b64decode(content))) for content in written.values()]
    assert found == ([{uid: {"value": shown} for uid, shown in records.items()}] if records else [])


def test_blocks_clip_what_is_long_and_leave_out_what_is_no_picture() -> None:
    written: dict[int, str] = {}
    blocks = Blocks(written.__setitem__)
    blocks.add(
        "a",
        {
            "reply": "x" * 1_000_000,
            "pictures": ["data:image/png;base64,AAAA", "http://127.0.0.1/x.png", "data:image/svg+xml,<svg>"],
        },
    )
    blocks.flush()
    shown = json.loads(zlib.decompress(base64.b64decode(written[0])))["a"]
    assert len(shown["reply"]) < 201_000
    assert "800,000 characters omitted" in shown["reply"]
    assert shown["pictures"] == ["data:image/png;base64,AAAA", None, None]
    assert blocks.clipped == 3


@pytest.mark.parametrize(("value", "text"), [
    ("as it is", "as it is"), (None, ""), ((1, [2.5, None]), "[1,[2.5,null]]"), ({1: "x"}, '{"(1)":"x"}'),
    (b"\x00\xff", "b'\\x00\\xff'"), (np.float32(0.5), "0.5"), (math.inf, "inf"), ({"x": math.nan}, '{"x":"nan"}'),
    (2**70, "0x400000000000000000"), (np.arange(3), "[0,1,2]"), (np.array([math.nan]), '["NaN"]'),
    (np.zeros((20, 20)), "[array of float64, 20 x 20]"), ("\ud800", "?"), ({"$": 1}, '{"$":1}'),
    (np.zeros((2, 2, 3), dtype=np.uint8), '"[image]"'), (frozenset({1}), "[1]"), (np.str_("x"), "x"),
    (np.str_("\ud800"), "?"), (np.array(["\ud800"]), '["?"]'),
])  # fmt: skip
def test_values_are_shown_without_their_kinds(value: Any, text: str) -> None:
    assert as_text(to_plain(value)) == text


KINDS = ("tuple", "dict", "str", "int", "float", "bytes", "scalar", "array", "Observation", "Remembered", "EnvError")
odd = jsons | st.builds(
    lambda kind, part, more: {"$": kind, **dict.fromkeys(("items", "base64", "value", "shape", "args"), part), **more},
    st.sampled_from(KINDS), jsons, st.dictionaries(st.sampled_from(["dtype", "items", "text", "observation"]), jsons),
)  # fmt: skip
FIELDS = ("uid", "group", "env", "seed", "turns", "reward", "error", "task", "messages", "final", "metrics", "seconds")
TURN_FIELDS = ("observation", "reply", "action", "reward", "valid", "info", "token_ids", "first_message", "tool_calls",
               "finish_reason", "usage", "version", "policy_seconds", "env_work_seconds")  # fmt: skip


@given(st.dictionaries(st.sampled_from(FIELDS), odd, max_size=2), st.dictionaries(st.sampled_from(TURN_FIELDS), odd))
def test_whatever_is_on_file_is_shown_or_told(
    tmp_path_factory: pytest.TempPathFactory, own: dict[str, Any], of_turn: dict[str, Any]
) -> None:
    directory = write_run(tmp_path_factory.getbasetemp() / "odd", [group_of_rewards("g0", [1.0, 2.0])])
    first, second = map(json.loads, (directory / TRAJECTORIES).read_text().splitlines())
    first["turns"][0] |= of_turn
    (directory / TRAJECTORIES).write_text(f"{json.dumps(first | own)}\n{json.dumps(second)}\n")
    with suppress(UsageError):
        write_report(directory)


def test_a_long_configuration_is_shown_in_part_and_read_as_a_whole(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", [group_of_rewards("g0", [0.0, 1.0])])
    tasks = "".join(f"- task {number}\n" for number in range(8_000))
    (directory / "config.resolved.yaml").write_text(f"env: maze\ntasks:\n{tasks}batches: 1\n")
    summary = data_of(write_report(directory).path, "summary")
    assert summary["state"] == "Complete: all 1 batches were delivered."
    assert len(summary["config"]) < 51_000
    assert summary["config"].endswith("more characters are in config.resolved.yaml ...]\n")


def test_numbers_too_large_for_arithmetic_and_values_too_deep_are_no_trouble(tmp_path: Path) -> None:
    groups = [group_of_rewards(f"g{number}", [1e308, -1e308, float(number)]) for number in range(4)]
    directory = write_run(tmp_path / "run", groups)
    records = (directory / TRAJECTORIES).read_text().replace('"seed":7', f'"seed":{"[" * 500}{"]" * 500}')
    (directory / TRAJECTORIES).write_text(records.replace('"version":0', f'"version":{"9" * 400}'))
    (directory / "config.resolved.yaml").write_text("batches: 2024-99-99")
    (reward,) = [
        tile for tile in data_of(write_report(directory).path, "summary")["tiles"] if tile["label"] == "Reward"
    ]
    assert reward["value"] == 1.5
    assert main(["compare", str(directory), str(directory), "--to", str(tmp_path / "compare.html")]) == 0


def test_reward_that_became_infinite_can_be_read_again(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", [group_of_rewards("g0", [math.inf, 1.0])])
    assert read_run(directory).finished.keys() == {"g0.0", "g0.1"}


def test_members_that_ended_first_do_not_stand_for_their_group(tmp_path: Path) -> None:
    groups = [group_of_rewards("g0", [1.0, 3.0]), group_of_rewards("g1", [9.0], keep=None)]
    summary = data_of(write_report(write_run(tmp_path / "run", groups)).path, "summary")
    assert summary["tiles"][0]["value"] == 2.0
    assert summary["tiles"][4]["value"] == 3


def test_pictures_and_numbers_are_found_in_values() -> None:
    picture = np.zeros((2, 2, 3), dtype=np.uint8)
    (url,) = pictures_in(to_plain({"a": [picture, "text", np.arange(3)]}))
    assert url.startswith("data:image/png;base64,")
    assert as_number(to_plain(np.float32(0.5))) == 0.5
    assert math.isnan(as_number("x"))
    assert as_number(to_plain(math.inf)) == math.inf


def test_every_group_has_one_fate(tmp_path: Path) -> None:
    groups = [
        group_of_rewards("g0", [0.0, 1.0]), group_of_rewards("g1", [1.0, 1.0], keep=False),
        group_of_rewards("g2", [0.0, 1.0]), group_of_rewards("g3", [1.0], keep=None),
        group_of_rewards("g4", [0.0, 1.0]),
        group_of_rewards("g5", [1.0], keep=None), group_of_rewards("eval0-g0", [1.0], keep=None),
    ]  # fmt: skip
    events = [event for event in events_of(groups) if not isinstance(event, Delivered)]
    more: list[AnyEvent] = [
        Delivered(at=BEGAN + 20, batch=0, groups=["g0"], dropped=["g1"]), Dropped(at=BEGAN + 21, groups=["g4"]),
        Cancelled(at=BEGAN + 21, group="g5"), Evaluating(at=BEGAN + 22, name="eval0", what=0),
    ]  # fmt: skip
    directory = write_run(tmp_path / "run", groups, [*events, *more])
    history = read_run(directory)
    assert [str(history.fate(group.id)) for group in groups] == [
        "delivered", "dropped: constant_reward", "waiting", "incomplete", "stale", "cancelled", "evaluation",
    ]  # fmt: skip
    summary = data_of(write_report(directory).path, "summary")
    rows = part_of(summary, "Kept and dropped")["rows"]
    assert sum(row[1] for row in rows) == len(groups) - 1  # the evaluation has a table of its own
    assert sum(row[4] or 0 for row in rows) == 10 * sum(len(group.trajectories) for group in groups[:-1])
    assert sum(row[5] for row in rows) == pytest.approx(1)


def test_group_that_was_given_up_begins_anew(tmp_path: Path) -> None:
    groups = [group_of_rewards("g0", [1.0, 1.0], keep=False), group_of_rewards("g1", [0.0, 1.0])]
    *events, _ = events_of(groups)
    given_up: list[AnyEvent] = [*events, Cancelled(at=BEGAN + 9, group="g0"), Cancelled(at=BEGAN + 9, group="g1")]
    again: list[AnyEvent] = [*given_up, Dispatched(at=BEGAN + 10, uid="g1.0")]
    for printed, fates in ((given_up, ["cancelled", "cancelled"]), (again, ["cancelled", "incomplete"])):
        history = read_run(write_run(tmp_path / "run", groups, printed))
        assert [str(history.fate(group.id)) for group in groups] == fates


def test_batches_that_are_delivered_again_count_once_and_pauses_do_not(tmp_path: Path) -> None:
    groups = [group_of_rewards("g0", [0.0, 1.0]), group_of_rewards("g1", [0.0, 1.0])]
    first, *rest = [event for event in events_of(groups) if not isinstance(event, Delivered)]
    events = [
        first, *rest, Delivered(at=BEGAN + 4, batch=0, groups=["g0"]), Delivered(at=BEGAN + 5, batch=1, groups=["g1"]),
        Began(at=BEGAN + 1005, batch=1), Dispatched(at=BEGAN + 1006, uid="g2.0"),
    ]  # fmt: skip
    history = read_run(write_run(tmp_path / "run", groups, events))
    assert [str(history.fate(group)) for group in ("g0", "g1", "g2")] == ["delivered", "waiting", "incomplete"]
    assert history.clock(BEGAN + 5) == 5
    assert history.clock(BEGAN + 1006) == 6


def test_figures_are_those_of_the_groups(tmp_path: Path) -> None:
    broken = played("g3", 1, [], error=EnvError("broken"), stop_reason=ar.StopReason.ENV_ERROR)
    groups = [
        group_of_rewards("g0", [0.0, 1.0]), group_of_rewards("g1", [1.0, 1.0], keep=False),
        group_of_rewards("g2", [0.0, 4.0], tag="lake"),
        Group("g3", [played("g3", 0, [1.0] * 3), broken], "lake", Verdict(keep=True)),
    ]  # fmt: skip
    path = write_report(write_run(tmp_path / "run", groups)).path
    summary = data_of(path, "summary")
    tiles = {tile["label"]: tile["value"] for tile in summary["tiles"]}
    assert tiles["Reward"] == pytest.approx((0.5 + 1.0 + 2.0 + 3.0) / 4)
    assert tiles["Pass rate"] == pytest.approx((0.5 + 1.0 + 0.5 + 1.0) / 4)
    assert tiles["Groups kept"] == 0.75
    assert (tiles["Rollouts"], tiles["Turns"], tiles["Tokens"]) == (8, 9, 90)
    assert tiles["Not delivered"] == pytest.approx(20 / 90)
    by_env = {row[0]: row for row in part_of(summary, "By environment")["rows"]}
    assert by_env["maze"][:3] == ["maze", 2, 4]
    assert (by_env["maze"][3][0], by_env["maze"][4][0]) == (0.75, 0.5)
    assert (by_env["maze"][6][0], by_env["lake"][6][0], by_env["lake"][10]) == (1.0, 1.0, 1)
    rewards = series_of(summary, "Reward by batch")
    assert rewards["all groups"][0][:2] == [0, pytest.approx(6.5 / 4)]
    assert rewards["delivered"][0][:2] == [0, pytest.approx(5.5 / 3)]
    lengths = series_of(summary, "Length of a rollout")
    assert [(left + right) / 2 for left, right, _ in lengths["all played"]] == [0, 1, 2, 3]
    assert [share for *_, share in lengths["all played"]] == pytest.approx([1 / 8, 6 / 8, 0, 1 / 8])
    assert [share for *_, share in lengths["delivered"]] == pytest.approx([1 / 6, 4 / 6, 0, 1 / 6])
    (llm, env, _, rollout) = part_of(summary, "Durations")["rows"]
    assert (llm[1:4], env[1:4], rollout[1]) == ([9, 0.5, 0.5], [9, 0.25, 0.25], 8)
    bars = {bar[0]: bar for bar in part_of(summary, "Timeline")["bars"]}
    assert bars["g3.0"][2:] == [3.0, [[2, 0.25], *[[0, 0.5], [1, 0.25]] * 3]]
    assert [member["uid"] for group in data_of(path, "groups") for member in group["members"]] == list(
        dict.fromkeys(bars)
    )


def test_lag_is_the_distance_to_the_weights_at_delivery(tmp_path: Path) -> None:
    turns = [Turn("x", version=version) for version in (2, 3)]
    group = Group("g0", [played("g0", 0, turns=turns), played("g0", 1, turns=turns[1:])], "maze", Verdict(keep=True))
    *events, delivered = events_of([group])
    directory = write_run(tmp_path / "run", [group], [*events, Updated(at=BEGAN, weights=4), delivered])
    lag = series_of(data_of(write_report(directory).path, "summary"), "Lag by batch")
    assert lag == {"oldest rollout": [[0, 2]], "mean": [[0, 1.5]]}


def test_last_record_of_a_rollout_counts(tmp_path: Path) -> None:
    again = [group_of_rewards("g0", [0.0]), group_of_rewards("g0", [5.0])]
    (group,) = data_of(write_report(write_run(tmp_path / "run", again)).path, "groups")
    assert [member["reward"] for member in group["members"]] == [5.0]


async def test_report_of_a_live_run_shows_what_is_there(tmp_path: Path) -> None:
    policy = ar.ScriptedPolicy(
        lambda _: ar.Generation("<answer>Right</answer>", token_ids=[1, 2, 3], logprobs=[-0.1] * 3, prompt_ids=[1])
    )
    async with ar.Rollouts(
        "frozen_lake", policy=policy, group_size=2, seed=1, run_dir=tmp_path / "run", limits=ar.Limits(turns=3)
    ) as rollouts:
        batch = await rollouts.collect(groups=3)
        written = write_report(tmp_path / "run")
        groups = {group["id"]: group for group in data_of(written.path, "groups")}
        for group in batch.groups:
            members = groups[group.id]["members"]
            assert groups[group.id]["fate"] == "delivered"
            assert [one["reward"] for one in members] == [one.reward for one in group.trajectories]
            assert [one["tokens"] for one in members] == [one.sampled_tokens for one in group.trajectories]


def test_torn_lines_and_a_lock_are_no_trouble(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", [group_of_rewards("g0", [0.0, 1.0])])
    for name in (JOURNAL, TRAJECTORIES):
        with (directory / name).open("ab") as file:
            file.write(b'{"event":"dispatched","ui')
    before = {path: path.read_bytes() for path in directory.iterdir()}
    lock = Lock(directory)
    try:
        assert write_report(directory, tmp_path / "elsewhere.html").rollouts == 2
    finally:
        lock.release()
    assert {path: path.read_bytes() for path in before} == before
    assert not list(tmp_path.glob(".*.partial"))


def test_run_that_has_no_trajectories_yet_has_a_report(tmp_path: Path) -> None:
    drawn = Drawn(at=BEGAN, group="g0", index=0, seed=0, tag="maze")
    directory = write_run(tmp_path / "run", [], [Began(at=BEGAN), drawn, Dispatched(at=BEGAN, uid="g0.0")])
    (directory / TRAJECTORIES).unlink()
    assert "No rollouts have finished yet, 1 are in flight" in data_of(write_report(directory).path, "summary")["state"]


def test_rollout_whose_end_is_just_being_written_is_over(tmp_path: Path) -> None:
    group = group_of_rewards("g0", [1.0], keep=None)
    events: list[AnyEvent] = [
        Began(at=BEGAN),
        Drawn(at=BEGAN, group="g0", index=0, seed=0, tag="maze"),
        Dispatched(at=BEGAN, uid="g0.0"),
    ]
    summary = data_of(write_report(write_run(tmp_path / "run", [group], events)).path, "summary")
    rows = part_of(summary, "Kept and dropped")["rows"]
    assert [row[:3] for row in rows] == [["incomplete", 1, 1]]


def test_turns_of_unfinished_rollouts_are_played_and_not_delivered(tmp_path: Path) -> None:
    uncounted = [Turn("state", "reply")]  # without the number of its tokens
    group = Group("g0", [played("g0", member, turns=uncounted) for member in range(2)], "maze", Verdict(keep=True))
    events: list[AnyEvent] = [
        *events_of([group]),
        Drawn(at=BEGAN, group="g1", index=1, seed=0, tag="maze"),
        Dispatched(at=BEGAN, uid="g1.0"),
        *(Replied(at=BEGAN, uid="g1.0", turn=turn, asked=0, reply=msgspec.Raw(b"{}")) for turn in range(2)),
    ]
    summary = data_of(write_report(write_run(tmp_path / "run", [group], events)).path, "summary")
    shares = {row[0]: row[-1] for row in part_of(summary, "Kept and dropped")["rows"]}
    tiles = {tile["label"]: tile["value"] for tile in summary["tiles"]}
    assert shares == {"delivered": 0.5, "incomplete": 0.0, "unfinished": 0.5}
    assert tiles["Not delivered"] == 1 - shares["delivered"]


def test_what_is_no_run_is_reported_in_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newer = write_run(tmp_path / "newer", [], [Began(at=BEGAN, version=99)])
    junk = write_run(tmp_path / "junk", [group_of_rewards("g0", [1.0])])
    (junk / TRAJECTORIES).write_bytes(b"\xff\xfe junk\n")
    headless = write_run(tmp_path / "headless", [], [Dispatched(at=BEGAN, uid="g0.0")])
    empty = write_run(tmp_path / "empty", [], [])
    (tmp_path / "nothing").mkdir()
    for directory, message in (
        (tmp_path / "missing", "is not a run directory"),
        (tmp_path / "nothing", "holds no run: it has no journal.jsonl"),
        (newer, "journal.jsonl, line 1: a journal of format 'asyncrollout.run', version 99: this asyncrollout reads"),
        (junk, "trajectories.jsonl, line 1: "), (headless, "the first line does not say what run this is"),
        (empty, "is empty: the run has not begun"),
    ):  # fmt: skip
        assert main(["report", str(directory)]) == 2
        printed = capsys.readouterr()
        assert (printed.out, message in printed.err, "Traceback" in printed.err) == ("", True, False), printed.err
        assert not (directory / "report.html").exists()


def test_place_that_cannot_be_written_to_is_reported(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", [group_of_rewards("g0", [1.0])])
    with pytest.raises(JournalError, match=r"cannot write .*nowhere/x\.html: No such file"):
        write_report(directory, tmp_path / "nowhere" / "x.html")
    with pytest.raises(JournalError, match=r"cannot write \.: Is a directory"):
        write_report(directory, Path())


def test_a_report_overwrites_pages_alone(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", [group_of_rewards("g0", [1.0])])
    journal = next(path for path in directory.iterdir() if path.suffix == ".jsonl")
    content = journal.read_bytes()
    with pytest.raises(JournalError, match=r"cannot write .*jsonl: There is a file that is not a page"):
        write_report(directory, journal)
    assert journal.read_bytes() == content
    empty = tmp_path / "empty"
    empty.touch()
    for place in (empty, empty, directory / "report.html"):
        assert write_report(directory, place).path == place


def test_a_report_replaces_neither_a_device_nor_a_link(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", [group_of_rewards("g0", [1.0])])
    device, link = tmp_path / "device", tmp_path / "link"
    os.mkfifo(device)
    link.symlink_to(device)
    for place in (device, link):
        with pytest.raises(JournalError, match=r"cannot write .*: It is not a regular file"):
            write_report(directory, place)
    assert device.is_fifo()
    link.unlink()
    link.symlink_to(tmp_path / "page.html")
    write_report(directory, link)
    assert link.is_symlink()
    assert (tmp_path / "page.html").read_bytes().startswith(b"<!doctype html>")


def test_command_tells_where_the_report_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write_run(tmp_path / "run", [group_of_rewards("g0", [1.0])])
    assert main(["report", str(directory), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {
        "path": str(directory / "report.html"),
        "rollouts": 1,
        "bytes": (directory / "report.html").stat().st_size,
    }


def test_time_of_a_step_is_waiting_for_the_env_and_its_work(tmp_path: Path) -> None:
    turns = [Turn("s", "r", policy_seconds=0.5, env_seconds=0.4, env_work_seconds=work) for work in (0.1, 9.0, None)]
    one = played("g0", 0, turns=turns, seconds=3.0)
    written = write_report(write_run(tmp_path, [Group("g0", [one], "maze")]))
    timeline = part_of(data_of(written.path, "summary"), "Timeline")
    names = [kind["name"] for kind in timeline["legend"]]
    [(_, _, _, parts)] = timeline["bars"]
    found = [(names[kind], round(seconds, 6)) for kind, seconds in parts if seconds > 1e-9]
    llm, waiting, work = ("waiting for the LLM", 0.5), ("waiting for the env", 0.3), ("env working", 0.4)
    assert found == [("reset and other", 0.3), llm, waiting, ("env working", 0.1), llm, work, llm, work]
