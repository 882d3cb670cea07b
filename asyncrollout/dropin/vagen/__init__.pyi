from asyncrollout.dropin.vagen.client import BatchEnvClient as BatchEnvClient
from asyncrollout.dropin.vagen.service import EnvService as EnvService
from asyncrollout.dropin.vagen.service import VideoEnvService as VideoEnvService
from asyncrollout.service.config import BaseServiceConfig as BaseServiceConfig
