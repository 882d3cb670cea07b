"""Questions about videos, and moments to be found in them: real MP4 files, decoded where they are watched."""

from asyncrollout.registry import EnvSpec
from asyncrollout.splits import SPLITS
from asyncrollout_envs.video.env import VideoEnv
from asyncrollout_envs.video.generate import make_videos
from asyncrollout_envs.video.text import VideoText

__all__ = ["SPEC", "VideoEnv", "VideoText", "make_videos"]

SPEC = EnvSpec(
    name="video",
    factory="asyncrollout_envs.video:VideoEnv",
    text="asyncrollout_envs.video:VideoText",
    runs="cpu",
    summary="watch parts of a video, then answer or locate a moment",
    actions="watch 0-5, answer B",
    splits=SPLITS,
)
