from asyncrollout.config.reading import parse_config as parse_config
from asyncrollout.config.reading import read_config as read_config
from asyncrollout.config.reading import to_redacted_yaml as to_redacted_yaml
from asyncrollout.config.reading import to_yaml as to_yaml
from asyncrollout.config.schema import Config as Config
from asyncrollout.config.tasks import read_tasks as read_tasks
