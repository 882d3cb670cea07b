"""Placement texts, and envs spread over processes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrollout import UsageError
from asyncrollout.dropin.rlinf.placement import place_components
from asyncrollout.dropin.rlinf.ranks import EnvSlot, PlacementError, RankedWorker, parse_ranks, spread, visible_devices


def gpus_of(text: str | int, **kwargs: Any) -> list[tuple[int, ...]]:
    workers = parse_ranks(text, **kwargs)
    assert [worker.rank for worker in workers] == [*range(len(workers))]
    return [worker.gpus for worker in workers]


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        (0, [(0,)]),
        ("0", [(0,)]),
        (3, [(3,)]),
        ("0-3", [(0,), (1,), (2,), (3,)]),
        ("2-3", [(2,), (3,)]),
        ("0-2,5", [(0,), (1,), (2,), (5,)]),
        (" 0 - 1 , 4 ".replace(" - ", "-"), [(0,), (1,), (4,)]),
        ("all", [(0,), (1,), (2,), (3,)]),
        ("0-1:0-3", [(0,), (0,), (1,), (1,)]),
        ("0-3:0-1", [(0, 1), (2, 3)]),
        ("0-3:0", [(0, 1, 2, 3)]),
        ("2:0-2", [(2,), (2,), (2,)]),
        ("all:0-7", [(0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,)]),
        (
            "0-1:0-3,3-5,7-10:7-14",
            [(0,), (0,), (1,), (1,), (3,), (4,), (5,), *((gpu,) for gpu in (7, 7, 8, 8, 9, 9, 10, 10))],
        ),
    ],
)
def test_texts(text: str | int, gpus: list[tuple[int, ...]]) -> None:
    assert gpus_of(text, gpus=4) == gpus


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a part of it is empty"),
        ("0,,2", "a part of it is empty"),
        ("0-", "'0-' is neither"),
        ("-1", "'-1' is neither"),
        (-1, "'-1' is neither"),
        ("a-b", "'a-b' is neither"),
        ("0-1-2", "'0-1-2' is neither"),
        ("0.5", "'0.5' is neither"),
        ("3-1", "a range is ascending: write 1-3"),
        ("0,0", "Resource ranks must be unique, but 0 comes after 0"),
        ("2,1", "Resource ranks must be in ascending order, but 1 comes after 2"),
        ("all,3", "Resource ranks must be unique, but 3 comes after 3"),
        ("0-2:0-1", "2 processes and 3 resources cannot share evenly"),
        ("0-1:1-2", "Process ranks must be in ascending order from 0 without a gap, but 1 comes where 0 should"),
        ("0:0-1,1:3-4", "3 comes where 2 should"),
        ("0:", "a part of it is empty"),
        ("0-999999", "more than 4096"),
        (True, "it must be a string or a number"),
        (1.5, "it must be a string or a number"),
        (None, "it must be a string or a number"),
    ],
)
def test_bad_texts_are_shown_with_the_reason(text: Any, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_ranks(text, gpus=4)
    assert why in str(caught.value)
    assert f"found {text!r}" in str(caught.value)
    assert "(write 0, 0-3," in str(caught.value)


@given(st.text(alphabet="0123456789-,: al", max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    workers: tuple[RankedWorker, ...] = ()
    told = ""
    try:
        workers = parse_ranks(text, gpus=2)
    except UsageError as error:
        told = str(error)
    assert bool(workers) != (repr(text) in told)
    assert [worker.rank for worker in workers] == [*range(len(workers))]
    on = [gpu for worker in workers for gpu in worker.gpus]
    assert on == sorted(on)


parts = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.booleans()), min_size=1, max_size=4)


@given(parts)
def test_what_is_written_is_read(parts: list[tuple[int, int, bool]]) -> None:
    """Each part has some GPUs, and for each GPU some processes, or the other way round."""
    written, expected, gpu, rank = [], [], 0, 0
    for few, each, gpus_are_few in parts:
        gpus, processes = (few, few * each) if gpus_are_few else (few * each, few)
        written.append(f"{gpu}-{gpu + gpus - 1}:{rank}-{rank + processes - 1}")
        for at in range(processes):
            own = [gpu + at // each] if gpus_are_few else [gpu + at * each + more for more in range(each)]
            expected.append(RankedWorker(rank + at, tuple(own)))
        gpu, rank = gpu + gpus + 1, rank + processes
    assert parse_ranks(",".join(written)) == tuple(expected)


def placed(given: dict[str, Any], **cluster: Any) -> dict[str, tuple[RankedWorker, ...]]:
    components = place_components({"component_placement": given, **cluster})
    return {name: component.workers for name, component in components.items()}


def test_components_share_keys() -> None:
    found = placed({"actor,inference": "0-1", "env": 2, "rollout": "3"})
    assert found["actor"] is found["inference"]
    assert found["actor"] == (RankedWorker(0, (0,)), RankedWorker(1, (1,)))
    assert found["env"] == (RankedWorker(0, (2,)),)
    assert found.keys() == {"actor", "inference", "env", "rollout"}


GROUPS: list[Any] = [
    {"label": 4090, "node_ranks": "0-0"},
    {"label": "franka", "node_ranks": "1-2", "hardware": {"type": "Franka", "configs": [{"node_rank": 1}] * 2}},
    {"label": "bare", "node_ranks": "0-1", "ignore_hardware": True},
]


@pytest.mark.parametrize(
    ("given", "ranks", "on_nodes"),
    [
        ({"node_group": "4090", "placement": 0}, [(0,)], False),
        ({"node_group": 4090, "placement": "0:0-1"}, [(0,), (0,)], False),
        ({"node_group": "franka", "placement": "0-1"}, [(0,), (1,)], False),
        ({"node_group": "franka", "placement": "all"}, [(0,), (1,)], False),
        ({"node_group": "node", "placement": "0-2:0-5"}, [(0,), (0,), (1,), (1,), (2,), (2,)], True),
        ({"node_group": "bare", "placement": "all"}, [(0,), (1,)], True),
        ({"node_group": "franka, bare", "placement": "3"}, [(3,)], True),
        ({"node_group": ["franka", "4090"], "placement": "2-9"}, [(gpu,) for gpu in range(2, 10)], False),
        ({"placement": "0-1"}, [(0,), (1,)], False),
    ],
)
def test_node_groups(given: Any, ranks: list[tuple[int, ...]], on_nodes: bool) -> None:
    cluster = {"component_placement": {"env": given}, "num_nodes": 3, "node_groups": GROUPS}
    found = place_components(cluster)["env"]
    assert [worker.gpus for worker in found.workers] == ranks
    assert found.on_nodes is on_nodes


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"env,env": 0}, "'env' is placed twice"),
        ({"env": 0, "rollout, env": 1}, "'env' is placed twice"),
        ({"env,": 0}, "has no name"),
        ({"env": "4-2"}, r"env: found '4-2': a range is ascending"),
        ({"env": {"node_group": "franca", "placement": 0}}, "no node group 'franca': did you mean 'franka'"),
        ({"env": {"node_group": "franka"}}, "'placement' must be specified"),
        ({"env": {"node_groups": "franka", "placement": 0}}, "no key 'node_groups': did you mean 'node_group'"),
        ({"env": {"node_group": "franka", "placement": "0-2"}}, "2 is out of range: there are 2"),
        ({"env": {"node_group": "node", "placement": "0-2:0"}}, "a process cannot run on several nodes"),
        ({"env": {"node_group": "node", "placement": 3}}, "3 is out of range: there are 3"),
    ],
)
def test_bad_components(given: Any, why: str) -> None:
    """An error that code written for RLinf catches as its own, too."""
    for kind in (UsageError, AssertionError, ValueError, PlacementError):
        with pytest.raises(kind, match=why):
            placed(given, num_nodes=3, node_groups=GROUPS)


@given(envs=st.integers(0, 200), workers=st.integers(1, 40))
def test_envs_are_spread_evenly_the_first_have_more(envs: int, workers: int) -> None:
    seats = spread(envs, parse_ranks(f"0-{workers - 1}"))
    assert len(seats) == len({*seats}) == envs
    counts = [sum(seat.rank == rank for seat in seats) for rank in range(workers)]
    assert counts == sorted(counts, reverse=True)
    assert max(counts) - min(counts) <= 1
    for rank, count in enumerate(counts):
        assert [seat.env_idx for seat in seats if seat.rank == rank] == [*range(count)]


def test_the_documents_distribution() -> None:
    assert spread(4, parse_ranks("0-1")) == [EnvSlot(0, 0, 0), EnvSlot(0, 0, 1), EnvSlot(1, 1, 0), EnvSlot(1, 1, 1)]
    assert [seat.video_id for seat in spread(3, parse_ranks("4-5"))] == [
        "rank0_gpu4_env0",
        "rank0_gpu4_env1",
        "rank1_gpu5_env0",
    ]


def test_devices_are_counted_among_the_visible_ones() -> None:
    assert visible_devices((0, 1), None) == "0,1"
    assert [visible_devices((2,), hidden) for hidden in ("", "-1", "-1,2")] == ["", "-1", "-1,2"]
    assert visible_devices((1,), "4, 6") == "6"
    assert visible_devices((0, 1), "GPU-a,GPU-b") == "GPU-a,GPU-b"
    with pytest.raises(UsageError, match="GPU 2 is requested, but CUDA_VISIBLE_DEVICES=4,6 names only 2"):
        visible_devices((2,), "4,6")
    with pytest.raises(UsageError, match="GPU 1 is requested, but CUDA_VISIBLE_DEVICES=4,-1,6 names only 1"):
        visible_devices((1,), "4,-1,6")


def test_all_are_those_that_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 6,7")
    assert gpus_of("all") == [(0,), (1,), (2,)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus_of("all") == [(0,)]
