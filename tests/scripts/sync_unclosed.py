"""A synchronous program with other systems' interfaces, which closes nothing."""

import sys
from pathlib import Path


def main(directory: Path) -> None:
    import numpy as np  # in here, so that workers, which run this file again, do without

    from asyncrollout.dropin.rlinf import create_video_writers, evaluate
    from asyncrollout.dropin.vagen import BatchEnvClient, EnvService
    from tests.envs.evaluation import act

    service = EnvService(max_workers=1)
    service.create_environments_batch({"a": {"env_name": "tests.envs.tiny:Counter"}})
    service.reset_batch({"a": 40})
    print(service.step_batch({"a": 2})["a"][0]["data"].rstrip("."))
    client = BatchEnvClient("http://127.0.0.1:9")
    print(client.check_server_health()["status"])
    chosen = {"total_num_envs": 2, "env_type": "tests.envs.evaluation:Painter", "max_episode_steps": 2}
    config = {"env": {"eval": {**chosen, "video_cfg": {"video_base_dir": str(directory)}}}}
    print([episode.video for episode in evaluate(config, policy=act, allow_import=True).episodes])
    (writer,) = create_video_writers(config | {"env": {"eval": {"video_cfg": {"video_base_dir": f"{directory}/own"}}}})
    writer.write(np.zeros((64, 64, 3), np.uint8))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
