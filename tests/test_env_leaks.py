"""`check_env` finds envs that leak, hang or forget, on any choice of backends, and lets their good twins pass."""

from typing import Any

import pytest

from asyncrollout import EnvCheckError, EnvSpec
from asyncrollout.testing import MethodCall, check_env
from asyncrollout.testing.cases import Backend
from tests.envs import leaky as leaky_envs

LEAKY = "tests.envs.leaky"
CHOICES: list[tuple[Backend, ...]] = [("inline",), ("process",), ("inline", "process")]
BESIDE = "envs in one process leave each other alone"
AFTER_END = "an ended episode leaves nothing to the next one"
ARGUMENTS = "an env leaves its keyword arguments alone"
CLOSES = "close() ends, raises nothing, and can be called twice"
FORKS = "a fork continues like the original"
RESTORES = "restore() brings back the state of snapshot()"
USED = "a used env gives the same episode from the same seed"
FRESH = "a fresh env gives the same episode from the same seed, on every backend"
BONUS = [1, MethodCall("set_bonus", [5.0], keep=False), 2, 3, 4]
REPLAYED_BONUS = [1, MethodCall("set_bonus", [5.0]), 2, 3, 4]


def leaky(name: str, **kwargs: Any) -> EnvSpec:
    text = kwargs.pop("text", None)
    runs = "io" if name.startswith("Async") else "cpu"
    interface = None if text is None else f"{LEAKY}:{text}"
    return EnvSpec(name="leaky", factory=f"{LEAKY}:{name}", kwargs=kwargs, text=interface, runs=runs)  # type: ignore[arg-type]


def named(given: Any) -> str:
    return f"{str(given.factory).partition(':')[2]} {given.text or given.kwargs}" if isinstance(given, EnvSpec) else ""


async def broken_points(spec: EnvSpec, backends: tuple[Backend, ...], actions: Any) -> dict[str, str]:
    try:
        await check_env(spec, backends=backends, seeds=(0, 1), actions=actions)
    except EnvCheckError as error:
        parts = str(error).split("\n- ")[1:]
        return {part.split(".\n")[0]: part for part in parts}
    return {}


@pytest.mark.parametrize("backends", CHOICES, ids="+".join)
@pytest.mark.parametrize(
    ("spec", "actions", "points"),
    [
        (leaky("InModule"), [1, 2, 3, 4], {BESIDE: "after step"}),
        (leaky("InClass"), [1, 2, 3, 4], {BESIDE: "after step"}),
        (leaky("ClearsOthers"), [1, 2, 3, 4], {BESIDE: "after step"}),
        (leaky("PastItsEnd"), [1] * 20, {AFTER_END: "its reward was"}),
        (leaky("TakesBonuses", bonuses=[3, 2, 1]), [1, 2], {ARGUMENTS: "'bonuses' was [3, 2, 1], and is [3]"}),
        (leaky("Closes", how="raises"), [1, 2], {CLOSES: "OSError: "}),
        (leaky("Closes", how="raises the second time"), [1, 2], {CLOSES: "OSError: "}),
        (leaky("Closes", how="exits"), [1, 2], {CLOSES: "SystemExit: "}),
        (leaky("AsyncCloses", how="raises"), [1, 2], {CLOSES: "OSError: "}),
        (leaky("ShowsPlaces", places=True), [1, 2], {FRESH: "or in what a pickle keeps"}),
        (leaky("KeepsOrder"), [1, 2, 3, 4], {USED: "equal by ==, but not in type, in the order of a dict"}),
        (leaky("Bonus", forgets=True), BONUS, {FORKS: "its reward was", RESTORES: "its reward was"}),
        (leaky("ForgetsItsStart"), [1, 2, 3, 4], {FORKS: "the fork at step 0", RESTORES: "at step 0, seed 0"}),
        (leaky("AsyncSnapshots", forgets=True), [1, 2, 3], {FORKS: "after step", RESTORES: "after step"}),
        (leaky("Counter", text="SharedMenuText"), None, {BESIDE: "after step"}),
    ],
    ids=named,
)
async def test_what_leaks_is_found_on_any_choice_of_backends(
    spec: EnvSpec, actions: Any, points: dict[str, str], backends: tuple[Backend, ...]
) -> None:
    found = await broken_points(spec, backends, actions)
    for point, seen in points.items():
        assert seen in found[point]


@pytest.mark.parametrize(
    ("spec", "actions"),
    [
        (leaky("PastItsEnd", leaks=False), [1] * 20),
        (leaky("TakesBonuses", bonuses=[3, 2, 1], copies=True), [1, 2]),
        (leaky("Closes"), [1, 2]),
        (leaky("AsyncCloses"), [1, 2]),
        (leaky("ShowsPlaces", places=False), [1, 2]),
        (leaky("ShowsItself"), [1, 2]),
        (leaky("KeepsOrder", anew=True), [1, 2, 3, 4]),
        (leaky("Bonus", forgets=False), BONUS),
        (leaky("Bonus", forgets=True), REPLAYED_BONUS),  # without keep=, the pool takes no snapshot after a call
        (leaky("AsyncSnapshots", forgets=False), [1, 2, 3]),
        (leaky("Counter", text="MenuText"), None),
        *[(leaky("Renders", shape=shape), [1, 2]) for shape in ((4, 6), (4, 6, 1), (4, 6, 3), (4, 6, 4), (3, 40, 60))],
        *[(leaky("Renders", shape=(4, 6, 3), kind=kind), [1, 2]) for kind in ("float32", "bool", "uint16")],
    ],
    ids=named,
)
async def test_what_does_not_leak_passes(spec: EnvSpec, actions: Any) -> None:
    assert await broken_points(spec, ("inline", "process"), actions) == {}


@pytest.mark.parametrize("shape", [(5, 6, 2), (6,), (0, 6, 3), (2, 4, 6, 3)], ids=str)
async def test_what_no_video_can_show_is_found(shape: tuple[int, ...]) -> None:
    found = await broken_points(leaky("Renders", shape=shape), ("inline",), [1, 2])
    assert list(found) == ["render() gives a picture that a video can show, or text"]
    assert "render() gives no picture" in found["render() gives a picture that a video can show, or text"]


@pytest.mark.parametrize("backends", CHOICES, ids="+".join)
@pytest.mark.parametrize(
    "spec",
    [leaky("Closes", how="hangs"), leaky("Closes", how="hangs the second time"), leaky("AsyncCloses", how="hangs")],
    ids=named,
)
async def test_a_close_that_hangs_is_found_and_nothing_else_tried(
    spec: EnvSpec, backends: tuple[Backend, ...], monkeypatch: pytest.MonkeyPatch, short_grace: None
) -> None:
    monkeypatch.setattr("asyncrollout.testing.closing._PATIENCE", 0.2)
    monkeypatch.setattr("asyncrollout.pool.handle.CLOSE_GRACE", 0.2)
    try:
        found = await broken_points(spec, backends, [1, 2])
    finally:
        leaky_envs.HANGING.set()
        leaky_envs.HANGING.clear()
    assert list(found) == [CLOSES]
    assert "it did not end within 0.2 seconds" in found[CLOSES]


@pytest.mark.parametrize("backends", CHOICES, ids="+".join)
async def test_an_env_that_cannot_be_made_is_not_blamed_for_its_close(backends: tuple[Backend, ...]) -> None:
    found = await broken_points(EnvSpec(name="refuses", factory="tests.envs.tiny:Refuses"), backends, [1])
    assert [point.partition(" ")[0] for point in found] == ["reset()"]


async def test_observations_that_change_in_place_are_noted() -> None:
    report = await check_env("tests.envs.tiny:BigArray", actions=[0, 0], size=4, seeds=(0, 1))
    (note,) = report.notes
    assert note.startswith("the observation of seed 0, reset was array([0, 0, 0, 0]")
    assert note.endswith("after later steps: fine in a pool, which copies it")


async def test_keyword_arguments_of_the_caller_are_left_alone() -> None:
    bonuses = [3, 2, 1]
    with pytest.raises(EnvCheckError):
        await check_env(f"{LEAKY}:TakesBonuses", bonuses=bonuses, actions=[1, 2], backends=("process",))
    assert bonuses == [3, 2, 1]
