"""An env's pictures, for the camera beside it."""

import inspect
from typing import Any

from asyncrollout.errors import EnvError
from asyncrollout.pool.wire.failure import clip
from asyncrollout.pool.wire.raised import is_own, text_of, type_name
from asyncrollout.protocols import Camera

_LONGEST_COMPLAINT = 300


async def film(env: Any, camera: Camera, action: Any = None, reward: float = 0.0, *, is_async: bool) -> None:
    """Show the camera what the env shows now; an env that fails to is not filmed any more, and plays on."""
    if not camera.is_filming:
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
            camera.fail("render() gives a text, and no picture", for_good=True)
        else:
            camera.shoot(picture, action, reward)
