"""A user's script as it should be, with an env of its own; it is noisy when imported, as users' scripts are."""

import asyncio
import os
import subprocess
from typing import Any

from asyncrollout import EnvPool, EnvSpec

print("imported")
if "NOISY" in os.environ:
    subprocess.run(["echo", "noise of a child at import"], check=True)


class Own:
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        self.total = seed or 0
        return self.total, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.total += action
        return self.total, 1.0, False, False, {"module": type(self).__module__}


async def main() -> None:
    async with EnvPool(workers=2) as pool, pool.open(EnvSpec(name="own", factory=Own)) as env:
        await env.reset(seed=40)
        outcome = await env.step(2)
        print(f"answer {outcome.observation}")


if __name__ == "__main__":
    asyncio.run(main())
