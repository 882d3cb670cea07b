"""WebShop's own files, in their own schema."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asyncrollout import TextOptions, UsageError
from asyncrollout_envs.seeding import Split
from asyncrollout_envs.webshop import WebShop, WebShopText
from asyncrollout_envs.webshop.cache import open_catalogue
from asyncrollout_envs.webshop.catalogue import Goal, Product
from asyncrollout_envs.webshop.original import Original


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ASYNCROLLOUT_CACHE", str(tmp_path / "cache"))


def item(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "asin": f"B0000000{number:02}",
        "name": f"Brand{number} Cotton Shirt Model{number}",
        "query": " Shirts ",
        "category": "fashion",
        "product_category": "Clothing \u203a Men \u203a Shirts",
        "full_description": f"A shirt, the best of number {number}.",
        "small_description": ["Machine wash", "Long sleeve"],
        "pricing": "$19.99",
        "list_price": "",
        "average_rating": 4.2,
        "images": ["https://example.com/a.jpg"],
        "customization_options": {
            "Color": [{"value": "Navy/White", "image": None}, {"value": " Red ", "image": "x"}],
            "Size": [{"value": "Small", "price_string": ""}, {"value": "Large"}],
            "Style": None,
        },
        **fields,
    }


ITEMS = [item(number) for number in range(12)]
ATTRIBUTES = {
    one["asin"]: {
        "attributes": ["machine wash", "cotton"],
        "instruction": "Find me machine wash shirts",
        "instruction_attributes": ["machine wash"],
    }
    for one in ITEMS
}
HUMAN = {
    one["asin"]: [
        {
            "asin": one["asin"],
            "instruction": f"i want cotton shirt number {number}.",
            "instruction_attributes": ["machine wash", "cotton"],
            "instruction_options": ["red", "large"],
            "worker_id": "x",
        },
        {"instruction": "without attributes", "instruction_attributes": [], "instruction_options": []},
    ]
    for number, one in enumerate(ITEMS)
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "data")


def write(
    directory: Path, items: Any = ITEMS, attributes: Any = ATTRIBUTES, human: Any = HUMAN, suffix: str = "_1000"
) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / f"items_shuffle{suffix}.json").write_text(json.dumps(items))
    (directory / f"items_ins_v2{suffix}.json").write_text(json.dumps(attributes))
    (directory / "items_human_ins.json").write_text(json.dumps(human))
    return directory


def products(directory: Path, human_goals: bool = True) -> list[Product]:
    return [product for product, _ in Original(directory, human_goals=human_goals).stock()]


def goals(directory: Path, human_goals: bool = True) -> list[Goal]:
    return [goal for _, goals in Original(directory, human_goals=human_goals).stock() for goal in goals]


@pytest.mark.parametrize("human_goals", [True, False])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_an_expert_plays_on_them(data: Path, human_goals: bool, split: Split) -> None:
    env = WebShop(split=split, data_path=data, human_goals=human_goals)
    text = WebShopText(env, TextOptions())
    for seed in range(5):
        env.reset(seed=seed)
        for _ in range(8):
            (action,) = text.parse(text.solve()).actions
            _, reward, terminated, _, info = env.step(action)
            if terminated:
                break
        assert (reward, info["success"]) == (1.0, True)
    env.close()


def test_a_product_is_read_as_webshop_reads_it(data: Path) -> None:
    first = products(data)[0]
    assert first.query == "shirts"
    assert first.price == 19.99
    assert first.price_tag == "$19.99"
    assert first.options == {"color": ["navy | white", "red"], "size": ["small", "large"]}
    assert first.features == ["Machine wash", "Long sleeve"]
    assert first.attributes == ["machine wash", "cotton"]


@pytest.mark.parametrize(
    ("pricing", "low", "high", "tag"),
    [
        ("$1,234.50", 1234.5, 1234.5, "$1234.5"),
        ("$10.00 - $20.50", 10.0, 20.5, "$10.0 to $20.5"),
        ("$1.00$2.00$9.00", 1.0, 2.0, "$1.0 to $2.0"),
        ("", 100.0, 100.0, "$100.0"),
        (None, 100.0, 100.0, "$100.0"),
        ("ask us", 100.0, 100.0, "$100.0"),
    ],
)
def test_prices_may_be_ranges_or_missing(
    tmp_path: Path, pricing: str | None, low: float, high: float, tag: str
) -> None:
    data = write(tmp_path / "data", [item(0, pricing=pricing)])
    (one,) = products(data)
    assert low <= one.price <= high
    assert one.price_tag == tag
    assert products(data) == [one]  # drawn, but the same each time


def test_odd_products_are_left_out_and_odd_fields_taken(tmp_path: Path) -> None:
    odd = [
        item(0),
        item(0, name="the same asin again"),
        item(1, asin="nan"),
        item(2, asin="B00000000001"),
        item(3, small_description="one text", full_description=None, customization_options=""),
        item(4, small_description=None, customization_options=[], average_rating=float("nan")),
    ]
    data = write(tmp_path / "data", odd)
    kept = products(data)
    assert [one.asin for one in kept] == ["B000000000", "B000000003", "B000000004"]
    assert (kept[1].features, kept[1].description, kept[1].options) == (["one text"], "", {})
    assert kept[2].features == []


def test_the_expert_goes_on_where_nothing_can_be_won(tmp_path: Path) -> None:
    """No word finds the product, one option has no name, and another is not on offer."""
    lost = item(
        0,
        name="?!",
        query="",
        full_description="",
        small_description=[],
        customization_options={
            "Color": [{"value": " "}, {"value": "//"}],
        },
    )
    told = {lost["asin"]: [{**HUMAN[lost["asin"]][0], "instruction_options": ["", "|", "green"]}]}
    env = WebShop(data_path=write(tmp_path / "data", [lost, *ITEMS[1:]], human=told), max_steps=6)
    text = WebShopText(env, TextOptions())
    env.reset(seed=0)
    for way in ([], ["search[shirt]"], ["search[shirt]", "click[b000000001]"]):
        env.reset(seed=0)
        for action in way:
            assert env.step(action)[-1]["action_is_effective"]
        over = False
        while not over:
            parsed = text.parse(text.solve())
            assert parsed.valid
            _, _, terminated, truncated, info = env.step(parsed.actions[0])
            over = terminated or truncated
        assert info["success"] is False
    env.close()


def test_human_goals_are_what_people_wrote(data: Path) -> None:
    found = goals(data)
    assert len(found) == len(ITEMS)  # those without attributes are left out
    first = found[0]
    assert first.attributes == ["machine wash", "cotton"]
    assert first.options == ["red", "large"]
    assert first.price_upper in (30.0, 40.0, 50.0)
    assert first.instruction == (f"i want cotton shirt number 0, and price lower than {first.price_upper:.2f} dollars")


def test_synthetic_goals_ask_for_every_combination_of_options(data: Path) -> None:
    found = goals(data, human_goals=False)
    assert len(found) == len(ITEMS) * 4
    told = [goal.instruction.partition(", and price")[0] for goal in found[:4]]
    assert told == [
        f"Find me machine wash shirts with color: {color}, and size: {size}"
        for color in ("navy | white", "red")
        for size in ("small", "large")
    ]
    assert len({goal.price_upper for goal in found[:4]}) == 1


def test_an_expensive_product_has_no_bound(tmp_path: Path) -> None:
    data = write(tmp_path / "data", [item(0, pricing="$985.00")])
    (goal,) = goals(data)
    assert goal.price_upper == 1_000_000
    assert goal.instruction == "i want cotton shirt number 0"


def test_a_goal_has_the_index_that_it_has_in_webshop(data: Path) -> None:
    expected = [f"i want cotton shirt number {number}" for number in range(len(ITEMS))]
    random.Random(233).shuffle(expected)
    catalogue = open_catalogue(Original(data, human_goals=True))
    told = [catalogue.goal(place).instruction for place in range(catalogue.goals)]
    assert [text.partition(", and price")[0] for text in told] == expected


def test_a_changed_file_makes_a_new_catalogue(data: Path) -> None:
    first = WebShop(data_path=data)
    again = WebShop(data_path=data / "items_shuffle_1000.json")
    assert again.catalogue is first.catalogue
    write(data, [*ITEMS, item(12, name="Something New")])
    changed = WebShop(data_path=data)
    assert [one.title for one in changed.catalogue.search("something new")] == ["Something New"]
    assert first.catalogue.search("something") == ()
    for env in (first, again, changed):
        env.close()


@pytest.mark.parametrize(
    ("file", "human_goals"),
    [
        ("items_shuffle_1000.json", True),
        ("items_ins_v2_1000.json", True),
        ("items_human_ins.json", True),
        ("items_ins_v2_1000.json", False),
    ],
)
def test_a_missing_file_is_named(data: Path, file: str, human_goals: bool) -> None:
    (data / file).unlink()
    expected = str(data / file).replace("items_shuffle_1000", "items_shuffle")
    with pytest.raises(UsageError) as told:
        WebShop(data_path=data, human_goals=human_goals)
    assert f"webshop: there is no file {expected!r}" in str(told.value)


def test_human_goals_are_not_needed_for_synthetic_ones(data: Path) -> None:
    (data / "items_human_ins.json").unlink()
    WebShop(data_path=data, human_goals=False).close()


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^webshop: data_path='.*nowhere' should hold WebShop's products"):
        WebShop(data_path=tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"^webshop: there is no file '.*items_shuffle_7\.json'"):
        WebShop(data_path=tmp_path / "items_shuffle_7.json")


def test_one_of_several_product_files_must_be_chosen(data: Path) -> None:
    write(data, suffix="")
    with pytest.raises(UsageError, match=r"items_shuffle\.json and items_shuffle_1000\.json"):
        WebShop(data_path=data)
    WebShop(data_path=data / "items_shuffle.json").close()


def test_text_that_is_no_json_is_told_with_its_line(data: Path) -> None:
    (data / "items_ins_v2_1000.json").write_text('{"B000000000":\n {"attributes": [}}')
    with pytest.raises(UsageError, match=r"items_ins_v2_1000\.json' is not JSON: .*line 2"):
        WebShop(data_path=data)


def test_a_wrong_field_is_told_with_its_product(tmp_path: Path) -> None:
    data = write(tmp_path / "data", [item(0), item(1, name=5)])
    with pytest.raises(UsageError, match=r"items_shuffle_1000\.json': product 1: .*\$\.name"):
        WebShop(data_path=data)
    (data / "items_shuffle_1000.json").write_text("{}")
    with pytest.raises(UsageError, match=r"items_shuffle_1000\.json': Expected `array`"):
        WebShop(data_path=data)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_split_without_goals_is_an_error(tmp_path: Path) -> None:
    data = write(tmp_path / "data", ITEMS[:5])
    with pytest.raises(UsageError, match=r"data_path='.*/data' has 5 goals in all, and none for split='test'"):
        WebShop(split="test", data_path=data)


def build(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "asyncrollout_envs.webshop", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("human_goals", [True, False])
def test_a_catalogue_is_built_ahead_of_time(data: Path, tmp_path: Path, human_goals: bool) -> None:
    wanted = "--human-goals" if human_goals else "--no-human-goals"
    run = build(data, wanted)
    (file,) = (tmp_path / "cache").iterdir()
    assert (run.returncode, run.stdout.strip()) == (0, str(file))
    assert "12 products" in run.stderr
    built = file.stat()
    WebShop(data_path=data, human_goals=human_goals).close()
    assert [one.stat().st_ino for one in (tmp_path / "cache").iterdir()] == [built.st_ino]
    again = build(data, wanted)
    assert (again.returncode, again.stdout, again.stderr) == (0, run.stdout, "")


def test_a_catalogue_that_cannot_be_built_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    run = build(tmp_path / "nowhere")
    assert run.returncode == 1
    assert run.stderr.startswith("webshop: data_path=")
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("ASYNCROLLOUT_CACHE", str(tmp_path / "file"))
    run = build(data)
    assert (run.returncode, run.stdout) == (1, "")
    assert "products" not in run.stderr
    assert str(tmp_path / "file") in run.stderr
