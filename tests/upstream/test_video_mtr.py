"""Video-MTR's test of its service, and its configuration of the environment, with our classes; nothing is replaced."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from asyncrollout import UsageError
from asyncrollout.dropin.vagen import REGISTERED_ENV, BaseServiceConfig
from asyncrollout_envs.video.generate import default_config
from tests.upstream.test_vagen import HERE, make_data_set


def test_its_test_of_the_service(upstream: Callable[[str], Path], tmp_path: Path) -> None:
    text = (upstream("video-mtr") / "vagen/env/video/test_service.py").read_text()
    for line in (
        "from vagen.env.video.service import VideoEnvService",
        "from vagen.env.base.base_service_config import BaseServiceConfig",
    ):
        assert line in text
        text = text.replace(line, f"from asyncrollout.dropin.vagen import {line.rpartition(' ')[2]}")
    script = tmp_path / "test_service.py"
    script.write_text(text)
    ran = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(HERE)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert "failed" not in ran.stdout.lower().replace("failed as expected", "")
    assert ran.stdout.count("✓") >= 5


def test_its_configuration_of_the_environment(
    upstream: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is, beside data of ours: its own are not part of its sources."""
    folder = upstream("video-mtr") / "scripts/video_ppo"
    entry = yaml.safe_load((folder / "env_config.yaml").read_text())["env1"]
    config_cls = REGISTERED_ENV[entry["env_name"]]["config_cls"]
    monkeypatch.delenv("SCRIPT_DIR", raising=False)
    with pytest.raises(UsageError, match="SCRIPT_DIR is not set"):
        config_cls(**entry["env_config"])
    monkeypatch.setenv("SCRIPT_DIR", str(folder))  # as its script does
    assert config_cls(**entry["env_config"]).video_data_config_path == str(folder / "data.yaml")

    data = yaml.safe_load((folder / "data.yaml").read_text())
    data["dataset"] = yaml.safe_load(default_config().read_text())["dataset"]
    shutil.copytree(default_config().parent, tmp_path, dirs_exist_ok=True)
    (tmp_path / "data.yaml").write_text(yaml.safe_dump(data))
    monkeypatch.setenv("SCRIPT_DIR", str(tmp_path))
    service = REGISTERED_ENV["video"]["service_cls"](BaseServiceConfig(max_workers=1))
    try:
        service.create_environments_batch({"env": {"env_name": "video", "env_config": entry["env_config"]}})
        assert service.failures == {}
        observation, info = service.reset_batch({"env": 0})["env"]
        assert (info["split"], len(observation["multi_modal_data"]["<image>"])) == ("train", 16)
    finally:
        service.close_batch()

    for package in ("datasets", "torch"):
        pytest.importorskip(package, reason=f"Video-MTR's script imports {package}: pip install datasets torch")
    script = upstream("video-mtr") / "vagen/env/create_dataset.py"
    ran = make_data_set(script, folder / "env_config.yaml", tmp_path, SCRIPT_DIR=str(tmp_path))
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
