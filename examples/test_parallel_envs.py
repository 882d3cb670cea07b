"""RAGEN's parallel environments, tried out: container, managers, projections, collector. Exits 0 if all is well."""

import logging

from asyncrollout.dropin.ragen import (
    DataProto,
    MultiProcessEnvironmentContainer,
    TrajectoryCollector,
    create_projection_function,
    create_single_environment_for_testing,
    get_supported_environment_types,
)


def test_container() -> None:
    container = MultiProcessEnvironmentContainer(
        env_type="sokoban", env_num=4, group_n=3, seed=42, env_kwargs={"dim_room": (6, 6), "num_boxes": 1}
    )
    observations, infos = container.reset()
    assert (len(observations), len(infos)) == (12, 12)
    assert observations[0] == observations[1] != observations[3]
    _, rewards, dones, _ = container.step([1, 2, 3, 4] * 3)
    print(f"container: 12 rooms, rewards {rewards[:4]}, {sum(dones)} done\n{observations[0]}")
    container.close()


def test_managers() -> None:
    for env_type in get_supported_environment_types():
        manager = create_single_environment_for_testing(env_type)
        observations, _ = manager.reset()
        _, rewards, _, infos = manager.step(["<think>?</think><action>1</action>"])
        print(f"{env_type}: {len(observations['text'][0])} characters, reward {rewards[0]:g}, {infos[0]}")
        manager.close()


def test_projections() -> None:
    actions, valids = create_projection_function("sokoban")(["<action>up</action>", "<action>down</action>", "jump"])
    assert (actions, valids) == ([1, 2, 1], [True, True, False])
    print(f"projection: {actions}, {valids}")


def test_preprocessing() -> None:
    manager = create_single_environment_for_testing("frozen_lake")
    prompts = TrajectoryCollector({}).preprocess_batch(DataProto(meta_info={"do_sample": True}), manager.reset()[0])
    print(f"collector: {prompts.non_tensor_batch['messages_list'][0][0]['content']!r:.80}")
    manager.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    test_container()
    test_managers()
    test_projections()
    test_preprocessing()
    print("all is well")
