"""The examples run as the documentation says."""

import struct
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def test_custom_env_keeps_the_contract_and_to_40_lines() -> None:
    assert "env 'thermostat' keeps the contract" in run("custom_env.py")
    assert len((EXAMPLES / "custom_env.py").read_text().splitlines()) <= 40


def test_gallery_shows_every_env_that_renders(tmp_path: Path) -> None:
    reported = run("gallery.py", str(tmp_path / "sheet.png"))
    assert "sokoban : 9 pictures" in reported
    assert "household : " in reported
    assert "webshop : renders no pictures" in reported
    png = (tmp_path / "sheet.png").read_bytes()
    width, height = struct.unpack(">II", png[16:24])
    rows = reported.count(" pictures\n") - reported.count("renders no pictures")
    assert (width - 8) // 200 == 8
    assert (height - 8) // 200 == rows == 7


def test_service_example_plays_in_this_process_and_over_http() -> None:
    reported = run("service_example.py")
    assert reported.count("env_0: reward +0.0, 8 pictures") == 2
    assert reported.count("nobody: Environment nobody not found") == 2
    assert reported.count("a pool there: reward ") == 2
