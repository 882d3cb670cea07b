"""An env's pictures, for the camera beside it."""

import inspect
from typing import Any

from asyncrollout.errors import EnvError
from asyncrollout.pool.wire.failure import clip
from asyncrollout.pool.wire.raised import is_own, text_of, type_name
from asyncrollout.protocols import Camera

_LONGEST_COMPLAINT = 300


async def record_frame(env: Any, camera: Camera, action: Any = None, reward: float = 0.0, *, is_async: bool) -> None:
    """Pass what the env renders now to the camera; after a failure the env plays on without being recorded."""
    if not camera.is_recording:
        return
    if not callable(getattr(env, "render", None)):
        camera.fail(f"{type(env).__qualname__} has no render()", for_good=True)
        return
    try:
        picture = env.render()
        if inspect.isawaitable(picture):
            if inspect.iscoroutine(picture) and not is_async:
                picture.close()
                raise EnvError("it is a coroutine, and step() is not")
            picture = await picture
    except BaseException as error:
        if not is_own(error, is_async=is_async):
            raise
        camera.fail(f"render() raised {type_name(error)}: {clip(text_of(error), _LONGEST_COMPLAINT)}")
    else:
        if isinstance(picture, str):
            camera.fail("render() returned text, not an image", for_good=True)
        else:
            camera.shoot(picture, action, reward)
