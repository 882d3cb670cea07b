"""The pictures of the README, from a real demo: `python docs/make_pictures.py`. Needs tmux and Chromium."""

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from tests.chromium import Page, opened  # noqa: E402

SESSION = "asyncrollout-pictures"
COLUMNS, LINES = 94, 26
AT_BATCH = " 7/12 batches"
LONGEST = 180.0
REPORTS = "runs/*/report.html"
TERMINAL = """<!doctype html><meta charset="utf-8"><body style="margin: 0; background: #0c0c0c">
<pre style="margin: 0; padding: 18px 22px; display: inline-block; color: #d8dee9; background: #0c0c0c;
font: 15px/1.28 'DejaVu Sans Mono', monospace">{code}</pre></body>"""


def tmux(*arguments: str) -> str:
    return subprocess.run(["tmux", *arguments], check=True, capture_output=True, text=True).stdout


def play_demo(home: Path) -> str:
    """The terminal in the middle of a demo, with its colours; the demo then runs to its end."""
    command = f"exec {sys.executable} -m asyncrollout demo"
    tmux("new-session", "-d", "-s", SESSION, "-c", str(home), "-x", str(COLUMNS), "-y", str(LINES), command)
    tmux("set-option", "-t", SESSION, "remain-on-exit", "on")
    seen = ""
    try:
        deadline = time.monotonic() + LONGEST
        while not [*home.glob(REPORTS)]:
            shown = tmux("capture-pane", "-t", SESSION, "-e", "-p")
            if AT_BATCH in Text.from_ansi(shown).plain:
                seen = seen or shown
            if time.monotonic() > deadline:
                raise SystemExit(f"the demo did not end:\n{shown}")
            time.sleep(0.1)
    finally:
        tmux("kill-session", "-t", SESSION)
    if not seen:
        raise SystemExit(f"the live view never showed{AT_BATCH}")
    return seen


def as_html(terminal: str) -> str:
    """The terminal as HTML."""
    console = Console(record=True, width=COLUMNS, file=Path("/dev/null").open("w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi(terminal.rstrip()), end="")
    return console.export_html(theme=MONOKAI, inline_styles=True, code_format=TERMINAL)


async def picture(page: Page, name: str, width: int, height: int) -> None:
    await page.resize(width, height)
    await page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")
    (HERE / name).write_bytes(await page.picture())
    print(HERE / name)


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        (home / "terminal.html").write_text(as_html(play_demo(home)))
        async with opened((home / "terminal.html").as_uri()) as page:
            box = "document.querySelector('pre').getBoundingClientRect()"
            width, height = await page.run(f"[{box}.width, {box}.height]")
            await picture(page, "live.png", round(width), round(height))
        (report,) = home.glob(REPORTS)
        async with opened(report.as_uri()) as page:
            await page.run("setTheme('light')")
            await picture(page, "report.png", 1280, 1060)
            await page.run("setTheme('dark'); document.getElementById('time').scrollIntoView()")
            await picture(page, "report-time.png", 1280, 1060)
            await page.run("openTrajectory(groups.find((one) => one.env === 'sokoban').members[0].uid)")
            await page.wait_for("dialog.open")
            await picture(page, "report-trajectory.png", 1280, 1060)


if __name__ == "__main__":
    asyncio.run(main())
