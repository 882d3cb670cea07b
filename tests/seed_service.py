"""The code of the VideoEnvService document, block by block, as it is written there."""

SETUP = """\
from vagen.env.video.service import VideoEnvService
from vagen.env.base.base_service_config import BaseServiceConfig

# Create service with 4 worker threads
service_config = BaseServiceConfig(max_workers=4)
video_service = VideoEnvService(service_config)
"""

CREATE = """\
env_configs = {
    'env_0': {
        'env_name': 'video',
        'env_config': {
            'dataset_name': 'qvhighlight',
            'video_data_config_path': 'path/to/config.yaml',
            'prompt_format': 'free_think',
            'seed': 42
        }
    },
    'env_1': {
        'env_name': 'video',
        'env_config': {
            'dataset_name': 'qvhighlight',
            'video_data_config_path': 'path/to/config.yaml',
            'prompt_format': 'free_think',
            'seed': 123
        }
    }
}

video_service.create_environments_batch(env_configs)
"""

RESET = """\
# Simple reset with seeds
reset_params = {
    'env_0': 0,
    'env_1': 1
}

# Advanced reset with extra parameters
reset_params = {
    'env_0': {'seed': 0, 'extra_info': {'split': 'train'}},
    'env_1': {'seed': 1, 'extra_info': {'split': 'test'}}
}

reset_results = video_service.reset_batch(reset_params)
"""

STEP = """\
# Simple action format
step_actions = {
    'env_0': 'I need to watch the video. <watch>0-5</watch>',
    'env_1': 'Let me analyze this scene. <watch>0-10</watch>'
}

# Advanced action format with verbose mode
step_actions = {
    'env_0': {
        'llm_raw_response': 'I need to watch the video. <watch>0-5</watch>',
        'verbose': True
    },
    'env_1': {
        'llm_raw_response': 'Let me analyze this scene. <watch>0-10</watch>',
        'verbose': False
    }
}

step_results = video_service.step_batch(step_actions)
"""

ASK = """\
env_ids = ['env_0', 'env_1']

# Get system prompts
prompts = video_service.get_system_prompts_batch(env_ids)

# Get dataset split sizes
train_sizes = video_service.get_split_size_batch(env_ids, split="train")
test_sizes = video_service.get_split_size_batch(env_ids, split="test")

# Initialize embedders for similarity-based rewards
embedder_status = video_service.init_embedder_batch(env_ids, 
                                                   service_url="http://localhost:5000")

# Compute total rewards
rewards = video_service.compute_reward_batch(env_ids)
"""  # noqa: W291

ERRORS = """\
# Example error handling
reset_results = video_service.reset_batch({'env_0': 42, 'invalid_env': 123})

for env_id, (obs, info) in reset_results.items():
    if 'error' in info:
        print(f"Environment {env_id} failed: {info['error']}")
    else:
        print(f"Environment {env_id} reset successfully")
"""

CLOSE = """\
# Close specific environments
video_service.close_batch(['env_0', 'env_1'])

# Close all environments
video_service.close_batch()
"""

MANAGER = """\
# Example integration pattern
class VideoTrainingManager:
    def __init__(self, num_envs=8, max_workers=4):
        self.service = VideoEnvService(BaseServiceConfig(max_workers=max_workers))
        self.setup_environments(num_envs)
    
    def collect_batch_data(self, actions):
        return self.service.step_batch(actions)
    
    def reset_environments(self, seeds):
        return self.service.reset_batch(seeds)
"""  # noqa: W293
