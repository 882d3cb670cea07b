"""The report in a real browser: looked through by mouse and keyboard, and full of what would like to be a script."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import msgspec
import numpy as np
import pytest

from asyncrollout import EnvError, Group, Observation, Turn, Verdict, Video
from asyncrollout.journal.events import Began
from asyncrollout.report.page import write_report
from asyncrollout.report.precision import as_estimate, as_shares, as_texts
from asyncrollout.stats import Estimate
from asyncrollout.trajectories import StopReason
from asyncrollout.video import VideoWriter
from tests.chromium import Page, needs_chromium, opened
from tests.recorded_runs import BEGAN, events_of, group_of_rewards, played, write_run
from tests.test_report import data_of

pytestmark = needs_chromium

ATTACKS = [
    "<script>window.pwned = 1</script>",
    "</script><script>window.pwned = 1</script>",
    "<!--<script>window.pwned = 1</script>-->",
    "<img src=x onerror='window.pwned = 1'>",
    "<svg onload=window.pwned=1><a xlink:href='javascript:window.pwned=1'>x</a></svg>",
    "<svg><script>window.pwned=1</script></svg>",
    '"><img src=http://127.0.0.1:9/ onerror=window.pwned=1>',
    "'-window.pwned=1-'",
    "javascript:window.pwned=1",
    "<iframe srcdoc='<script>top.pwned=1</script>'></iframe>",
    "<a href='javascript:window.pwned=1' autofocus onfocus='window.pwned=1'>x</a>",
    "<math><mtext></mtext><style><img src=x onerror=window.pwned=1></style></math>",
    "<details open ontoggle=window.pwned=1>",
    "<link rel=stylesheet href=http://127.0.0.1:9/x.css>",
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>",
    "<base href=http://127.0.0.1:9/>",
    "<object data='data:text/html,<script>top.pwned=1</script>'></object>",
    "${window.pwned=1}{{constructor.constructor('window.pwned=1')()}}",
    "</textarea></title></style></noscript><body onload=window.pwned=1>",
    "\u2028window.pwned=1\u2029//<\\/script>",
    "&lt;script&gt;window.pwned=1&lt;/script&gt;",
    "data:text/html;base64,PHNjcmlwdD50b3AucHduZWQ9MTwvc2NyaXB0Pg==",
    "__proto__",
    "constructor",
]


async def rows(page: Page) -> list[str]:
    return list(
        await page.run("[...document.querySelectorAll('.rows tbody tr')].map((row) => row.cells[0].innerText.trim())")
    )


def wrong(page: Page) -> list[Any]:
    """Exceptions, messages of the console (a broken policy among them), dialogs, and requests for anything else."""
    requests = [request["request"]["url"] for request in page.seen("Network.requestWillBeSent")]
    odd = [url for url in requests if urlparse(url).scheme not in ("data", "blob") and not url.endswith("report.html")]
    methods = ("Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening", "Runtime.consoleAPICalled")
    return odd + [reported for method in methods for reported in page.seen(method)]


def hostile(attack: str, number: int) -> Group:
    error = EnvError.at(attack, notes=attack, env=attack)
    turn = Turn(
        Observation(attack), attack, action=attack, info={attack: attack, "actions": [attack]}, reasoning=attack,
        tool_calls=[{"name": attack}],
    )  # fmt: skip
    refused = Turn(Observation(attack), attack, valid=False, info={"invalid_reason": attack})
    messages = [
        {"role": attack, "content": attack},
        {
            "role": "user",
            "content": [{"type": "text", "text": attack}, {"type": "image_url", "image_url": {"url": attack}}],
        },
        {"role": "assistant", "content": attack},
        {"role": "user", "content": attack},
        {"role": "assistant", "content": attack},
    ]
    name = f"g{number}{attack}"
    one = played(
        name, 0, env=attack, turns=[turn, refused], task={attack: attack}, metrics={attack: 1.0},
        final=Observation(attack), messages=messages, error=error, stop_reason=StopReason.ENV_ERROR,
    )  # fmt: skip
    other = played(name, 1, env=attack, turns=[turn, refused], task=attack, messages=[])
    return Group(name, [one, other], attack, Verdict(keep=False, reason=attack))


async def test_nothing_that_was_recorded_becomes_a_script(tmp_path: Path) -> None:
    groups = [hostile(attack, number) for number, attack in enumerate(ATTACKS)]
    _, *events = events_of(groups)
    given = {"seed": ATTACKS[0], "envs": {ATTACKS[1]: {"env": ATTACKS[2]}}, "limits": ATTACKS[3], "order": ATTACKS[4]}
    directory = write_run(tmp_path / "<img src=x onerror=pwned=1>", groups, [Began(at=BEGAN, given=given), *events])
    (directory / "config.resolved.yaml").write_text("\n".join(ATTACKS))
    (directory / "manifest.json").write_bytes(
        msgspec.json.encode({"command": ATTACKS, "packages": {ATTACKS[1]: ATTACKS[2]}})
    )
    (directory / "videos").mkdir()
    path = write_report(directory).path
    async with opened(path.as_uri()) as page:
        assert await page.run("document.querySelector('h1').textContent") == directory.name
        for number, attack in enumerate(ATTACKS):
            for member in range(2):
                uid = f"g{number}{attack}.{member}"
                await page.run(f"openTrajectory({msgspec.json.encode(uid).decode()})")
                await page.run(
                    "document.querySelectorAll('details').forEach((one) => { one.open = true; });"
                    "document.querySelectorAll('dialog .fold').forEach((one) => one.click())"
                )
                reported = await page.run("[...document.querySelectorAll('dialog pre')].map((one) => one.textContent)")
                assert reported.count(attack) >= 8, (attack, reported)
        await page.run("dialog.close(); groups.slice(0, 50).forEach((group) => toggle(group.id, true))")
        for name in ("env", "fate", "error"):
            await page.run(
                f"for (const one of document.querySelector('select[name={name}]').options)"
                " { one.selected = true; one.parentNode.dispatchEvent(new Event('input')); }"
            )
        assert await page.run("window.pwned") is None
        assert wrong(page) == []
        elements = "script:not([type='application/json']), iframe, object, embed, link, base, img, a[href^='j' i]"
        assert await page.run(f'document.querySelectorAll("{elements}").length') == 1  # the page's own script


async def test_policy_of_the_page_stops_what_would_get_in(tmp_path: Path) -> None:
    path = write_report(write_run(tmp_path / "run", [group_of_rewards("g0", [0.0, 1.0])])).path
    async with opened(path.as_uri()) as page:
        assert wrong(page) == []
        await page.run(
            "const one = document.createElement('script'); one.textContent = 'window.pwned = 1';"
            "const two = document.createElement('div');"
            "two.innerHTML = '<img src=http://127.0.0.1:9/x onerror=\"window.pwned = 1\">';"
            "document.body.append(one, two); fetch('http://127.0.0.1:9/y').catch(() => 0)"
        )
        assert await page.run("window.pwned") is None
        refused = [entry["entry"] for entry in page.seen("Log.entryAdded") if entry["entry"]["source"] == "security"]
        assert len(refused) >= 3, page.events
        assert len(wrong(page)) >= 3


async def test_mouse_finds_a_trajectory_and_filters_find_others(tmp_path: Path) -> None:
    groups = [
        group_of_rewards("g0", [0.0, 1.0]), group_of_rewards("g1", [0.5, 0.5], tag="lake", keep=False),
        Group("g2", [played("g2", 0, [2.0, 3.0]), played("g2", 1, [], error=EnvError("it broke"),
              stop_reason=StopReason.ENV_ERROR)], "maze", Verdict(keep=True)),
    ]  # fmt: skip
    path = write_report(write_run(tmp_path / "run", groups)).path
    async with opened(path.as_uri()) as page:
        assert await rows(page) == ["▸g0", "▸g1", "▸g2"]
        await _click(page, ".rows tbody tr:nth-child(3)")
        assert await rows(page) == ["▸g0", "▸g1", "▾g2", "g2.0", "g2.1"]
        await _click(page, "tr[data-uid='g2.0']")
        await page.wait_for("dialog.open")
        reported = await page.run("dialog.innerText")
        assert ["reply 0" in reported, "reply 1" in reported, "reward 3.000" in reported] == [True, True, True]
        assert await page.run("location.hash") == "#g2.0"
        await _click(page, "[data-step='1']")
        await page.wait_for("dialog.innerText.includes('it broke')")
        await page.run("dialog.close(); toggle('g2', false)")
        for name, value, left in (
            ("env", "lake", ["▸g1"]), ("fate", "dropped: constant_reward", ["▸g1"]),
            ("result", "not passed", ["▸g0", "▸g2"]),
            ("result", "ended: env_error", ["▸g2"]), ("error", "any", ["▸g2"]), ("error", "EnvError", ["▸g2"]),
            ("from", "1.5", ["▸g2"]), ("to", "0.2", ["▸g0", "▸g2"]), ("uid", "g1.", ["▸g1"]), ("uid", "nothing", []),
        ):  # fmt: skip
            field = f"document.querySelector('form [name={name}]')"
            await page.run(f"{field}.value = '{value}'; {field}.dispatchEvent(new Event('input', {{ bubbles: true }}))")
            assert await rows(page) == left, (name, value)
            await _click(page, "form button[type=reset]")
        assert await rows(page) == ["▸g0", "▸g1", "▸g2"]
        assert wrong(page) == []


async def test_keyboard_is_enough(tmp_path: Path) -> None:
    path = write_report(
        write_run(tmp_path / "run", [group_of_rewards("g0", [0.0, 1.0]), group_of_rewards("g1", [0.5])])
    ).path
    async with opened(path.as_uri()) as page:
        focused = "document.activeElement.dataset.uid ?? document.activeElement.dataset.group"
        for _ in range(30):
            await page.press("Tab")
            if await page.run(focused) == "g0":
                break
        assert await page.run(f"[{focused}, getComputedStyle(document.activeElement).outlineStyle]") == ["g0", "solid"]
        await page.press("ArrowRight")
        await page.press("ArrowDown")
        await page.press("ArrowDown")
        assert await page.run(focused) == "g0.1"
        await page.press("Enter")
        await page.wait_for("dialog.open")
        await page.press("ArrowLeft")
        await page.wait_for("document.getElementById('trajectory-name').textContent === 'g0.0'")
        await page.press("Escape")
        await page.wait_for("!dialog.open")
        assert await page.run(focused) == "g0.1"
        await page.press("ArrowLeft")
        assert (await rows(page), await page.run(focused)) == (["▸g0", "▸g1"], "g0")
        assert wrong(page) == []


async def test_odd_contents_are_readable(tmp_path: Path) -> None:
    picture = np.zeros((8, 8, 3), dtype=np.uint8)
    turns = [
        Turn(Observation("look", images=(picture,)), "word " * 200_000),
        Turn(bytes(range(256)), "\u05e9\u05dc\u05d5\u05dd \u202eabc\u202c", info={"half": "\ud800"}),
        Turn(np.zeros((100, 100)), "\x1b[31mred\x07 \x00", reward=-1.0),
    ]
    group = Group("g0", [played("g0", 0, turns=turns)], "maze", Verdict(keep=True))
    directory = write_run(tmp_path / "run", [group])
    (directory / "videos").mkdir()
    (directory / "videos" / "g0.0.mp4").write_bytes(b"not a video")
    async with opened(write_report(directory).path.as_uri() + "#g0.0") as page:
        await page.wait_for("dialog.open")
        reported = await page.run("dialog.innerText")
        assert "Show all" in reported
        assert len(reported) < 20_000
        await page.run("document.querySelector('dialog .fold').click()")
        assert "characters omitted" in await page.run("dialog.textContent")
        for part in ("␛[31mred␇ ␀", "⟨202E⟩abc⟨202C⟩", "[array of float64, 100 x 100]", "(256 bytes)"):
            assert part in reported
        assert await page.wait_for("dialog.querySelector('img').naturalWidth") == 8
        assert await page.run("dialog.querySelector('video').getAttribute('src')") == "videos/g0.0.mp4"
        assert await page.wait_for("dialog.querySelector('video').error?.code") == 4  # it was read, and is not a video
        assert [Path(url).name for url in wrong(page)] == ["g0.0.mp4"]


async def test_each_turn_plays_its_part_of_the_video(tmp_path: Path) -> None:
    recorded = Video("g0.0.mp4", 4.0, [[0, 2], [2, 2], [2, 9]])
    one = played("g0", 0, [0.0, 0.0, 1.0], video=recorded)
    gone = played("g0", 1, [0.0], video=Video("g0.1.mp4", 4.0, [[0, 1]], partial=True))
    directory = write_run(tmp_path / "run", [Group("g0", [one, gone], "maze", Verdict(keep=True))])
    with VideoWriter(directory / "videos" / "g0.0.mp4", fps=4) as writer:
        for frame in range(10):
            writer.write(np.full((48, 64, 3), 20 * frame, dtype=np.uint8))
    (directory / "videos" / "g0.0.more.mp4").write_bytes(b"named alike, but not on record")
    async with opened(write_report(directory).path.as_uri() + "#g0.0") as page:
        await page.wait_for("dialog.open")
        video = "dialog.querySelector('video')"
        assert await page.run("dialog.querySelectorAll('video').length") == 1
        assert await page.run(f"{video}.getAttribute('src')") == "videos/g0.0.mp4"
        await page.wait_for(f"{video}.readyState >= 2 || {video}.error")
        assert await page.run(f"[{video}.error?.code, {video}.videoWidth, {video}.duration]") == [None, 64, 2.5]
        buttons = await page.run("[...dialog.querySelectorAll('[data-frames]')].map((one) => one.textContent)")
        assert buttons == ["▶ frames 0 to 2", "▶ frame 2", "▶ frames 2 to 9"]
        for turn, (first, last) in ((1, (2, 2)), (2, (2, 9)), (0, (0, 2))):
            await _click(page, f"[data-frames='{turn}']")
            await page.wait_for(f"{video}.currentTime >= {first / 4} && !{video}.seeking")
            end = await page.wait_for(f"{video}.paused && {video}.currentTime >= {last / 4} && {video}.currentTime")
            assert last / 4 <= end < (last + 2) / 4
        await page.run("openTrajectory('g0.1')")
        await page.wait_for("document.getElementById('trajectory-name').textContent === 'g0.1'")
        assert await page.run("dialog.querySelectorAll('video, [data-frames]').length") == 0
        assert "incomplete" in await page.run("dialog.innerText")
        assert {Path(url).name for url in wrong(page)} == {"g0.0.mp4"}


async def test_run_without_an_end_to_show_has_a_page(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", [], [Began(at=BEGAN)])
    async with opened(write_report(directory).path.as_uri()) as page:
        assert "No rollouts have finished yet, 0 are in flight" in await page.run("document.body.innerText")
        assert wrong(page) == []


async def test_rewards_of_any_size_are_drawn(tmp_path: Path) -> None:
    for place, rewards in enumerate(([1e17, 1e17 + 16], [1e99, -1e99])):
        groups = [group_of_rewards(f"g{number}", rewards[: number + 1]) for number in range(2)]
        directory = write_run(tmp_path / str(place), groups)
        async with opened(write_report(directory).path.as_uri()) as page:
            await page.wait_for("document.querySelectorAll('svg.plot').length > 5")
            assert wrong(page) == []


async def _click(page: Page, selector: str) -> None:
    """As a mouse does, so that what lies above it would be clicked instead."""
    x, y = await page.run(
        f'(() => {{ const one = document.querySelector("{selector}"); one.scrollIntoView({{ block: "center" }});'
        " const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        await page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


def as_python_shows(value: Any, kind: str) -> str | None:
    """What a cell says; None for durations, which only the page formats."""
    if isinstance(value, list):
        return as_estimate(Estimate(*value), share=kind == "share")
    if value is None:
        return "\u2013"
    if kind == "text":
        return str(value)
    if kind == "count":
        return str(value)
    if kind == "number":
        return as_texts([value])[0]
    return as_shares([value])[0] if kind in ("share", "bar") else None


def plain(text: str) -> str:
    return " ".join(text.replace(",", "").split())


@pytest.mark.parametrize("scale", [1e-5, 1.0, 12_300_000.0])
async def test_the_page_shows_the_numbers_it_was_given(tmp_path: Path, scale: float) -> None:
    draw = np.random.default_rng(0)
    groups = [
        group_of_rewards(f"g{number}", (scale * (1 + draw.random(2) / 100)).tolist(), "lake" if number % 3 else "maze",
                         keep=number % 4 > 0)
        for number in range(40)
    ]  # fmt: skip
    path = write_report(write_run(tmp_path / "run", groups)).path
    summary = data_of(path, "summary")
    parts = [part for section in summary["sections"] for part in section["parts"]]
    async with opened(path.as_uri()) as page:
        await page.wait_for("document.querySelectorAll('circle title').length > 0")
        tiles = await page.run(
            "[...document.querySelectorAll('.tiles .card')]"
            ".map((card) => [...card.children].map((one) => one.textContent))"
        )
        tables = await page.run(
            "[...document.querySelectorAll('.card.wide h3')].map((head) => [head.textContent, [...head.parentElement"
            ".querySelectorAll('tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))])"
        )
        plots = await page.run(
            "[...document.querySelectorAll('figure')].map((one) => [one.querySelector('h3').textContent,"
            " [...one.querySelectorAll('circle')].map((dot) => [+dot.getAttribute('cx'), +dot.getAttribute('cy'),"
            " dot.textContent])])"
        )
        assert wrong(page) == []
    for (label, value, note), given in zip(tiles, summary["tiles"], strict=True):
        assert (label, plain(note)) == (given["label"], plain(given["note"]))
        found = as_python_shows(given["value"], given["kind"])
        if (between := given.get("interval")) is not None:
            found = as_python_shows([given["value"], *between], given["kind"])
        assert found is None or plain(value) == plain(found).split(" ")[0]
    shown = dict(tables)
    for part in (part for part in parts if part["type"] == "table"):
        kinds = [column["kind"] for column in part["columns"]]
        expected = [
            [as_python_shows(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in part["rows"]
        ]
        for row, cells in zip(shown[part["title"]], expected, strict=True):
            assert [plain(text) for text, cell in zip(row, cells, strict=True) if cell is not None] == [
                plain(cell) for cell in cells if cell is not None
            ]
    dots = dict(plots)
    for part in (
        part for part in parts if part["type"] == "plot" and all(one["kind"] == "line" for one in part["series"])
    ):
        points = [(one["name"], *point) for one in part["series"] for point in one["points"]]
        if not points or len(points) > 60:
            continue
        drawn = dots[part["title"]]
        assert len(drawn) == len(points)
        for place, given in ((0, [point[1] for point in points]), (1, [point[2] for point in points])):
            pixels = [dot[place] for dot in drawn]
            if part["x" if place == 0 else "y"].get("log") or np.ptp(given) == 0:
                continue
            slope, offset = np.polyfit(np.array(given) / max(map(abs, given)), pixels, 1)
            assert np.allclose(slope * np.array(given) / max(map(abs, given)) + offset, pixels, atol=0.5)
        for (name, _, mean, *between), (*_, title) in zip(points, drawn, strict=True):
            if part["y"]["kind"] in ("number", "share"):
                interval = [*between, None, None][:2]
                assert plain(title).startswith(
                    plain(f"{name}: {as_python_shows([mean, *interval], part['y']['kind'])}")
                )


async def test_the_page_formats_numbers_as_python_does(tmp_path: Path) -> None:
    """Also those with an exponent, and those that differ by little."""
    draw = np.random.default_rng(1)
    sizes = 10.0 ** draw.uniform(-9, 14, size=200)
    values = [
        [size * (1 + part * one) for one in draw.normal(size=3)]
        for size, part in zip(sizes, [1, 1e-3] * 100, strict=True)
    ]
    shares = draw.random((50, 3)).tolist() + (draw.random((50, 3)) / 1000).tolist()
    path = write_report(write_run(tmp_path / "run", [group_of_rewards("g0", [1.0])])).path
    async with opened(path.as_uri()) as page:
        found = await page.run(f"{json.dumps(values)}.map((one) => together(one, 'number'))")
        found_shares = await page.run(f"{json.dumps(shares)}.map((one) => together(one, 'share'))")
    assert [[plain(text) for text in one] for one in found] == [as_texts(one) for one in values]
    assert [[plain(text) for text in one] for one in found_shares] == [as_shares(one) for one in shares]
