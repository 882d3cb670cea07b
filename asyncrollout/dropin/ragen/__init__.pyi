from asyncrollout.dropin.ragen.collector import TrajectoryCollector as TrajectoryCollector
from asyncrollout.dropin.ragen.config_keys import RAGEN_KEYS as RAGEN_KEYS
from asyncrollout.dropin.ragen.container import EnvironmentContainer as EnvironmentContainer
from asyncrollout.dropin.ragen.container import MultiProcessEnvironmentContainer as MultiProcessEnvironmentContainer
from asyncrollout.dropin.ragen.context import ContextManager as ContextManager
from asyncrollout.dropin.ragen.data import DataProto as DataProto
from asyncrollout.dropin.ragen.envs import REGISTERED_ENV_CONFIGS as REGISTERED_ENV_CONFIGS
from asyncrollout.dropin.ragen.envs import REGISTERED_ENVS as REGISTERED_ENVS
from asyncrollout.dropin.ragen.envs import EnvConfig as EnvConfig
from asyncrollout.dropin.ragen.envs import RagenEnv as RagenEnv
from asyncrollout.dropin.ragen.factory import (
    create_single_environment_for_testing as create_single_environment_for_testing,
)
from asyncrollout.dropin.ragen.factory import get_supported_environment_types as get_supported_environment_types
from asyncrollout.dropin.ragen.factory import make_environments as make_environments
from asyncrollout.dropin.ragen.factory import validate_environment_config as validate_environment_config
from asyncrollout.dropin.ragen.managers import REGISTERED_MANAGERS as REGISTERED_MANAGERS
from asyncrollout.dropin.ragen.managers import BanditEnvironmentManager as BanditEnvironmentManager
from asyncrollout.dropin.ragen.managers import CountdownEnvironmentManager as CountdownEnvironmentManager
from asyncrollout.dropin.ragen.managers import EnvironmentManagerBase as EnvironmentManagerBase
from asyncrollout.dropin.ragen.managers import FrozenLakeEnvironmentManager as FrozenLakeEnvironmentManager
from asyncrollout.dropin.ragen.managers import MetaMathQAEnvironmentManager as MetaMathQAEnvironmentManager
from asyncrollout.dropin.ragen.managers import SokobanEnvironmentManager as SokobanEnvironmentManager
from asyncrollout.dropin.ragen.managers import WebShopEnvironmentManager as WebShopEnvironmentManager
from asyncrollout.dropin.ragen.prompts import PromptTemplates as PromptTemplates
from asyncrollout.dropin.ragen.proxy import LLMAgentProxy as LLMAgentProxy
from asyncrollout.dropin.ragen.states import AsyncEnvStateManager as AsyncEnvStateManager
from asyncrollout.dropin.ragen.states import EnvStateManager as EnvStateManager
from asyncrollout.dropin.ragen.states import EnvStatus as EnvStatus
from asyncrollout.text.projections import create_projection_function as create_projection_function
