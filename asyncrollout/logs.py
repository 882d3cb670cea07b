"""Events for programs that embed the library: through the standard `logging`, or through structlog if configured.

Nothing is configured here and nothing goes to stdout. Without any logging configuration, warnings go to stderr.
"""

import logging
import sys
from collections.abc import Mapping
from typing import Any

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "exception": logging.ERROR}
_LONGEST = 500  # characters of a value


class EventLogger:
    """Logs events with fields: `log.warning("worker_died", worker=3)`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger = logging.getLogger(name)

    def info(self, event: str, **fields: Any) -> None:
        self._log("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._log("warning", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log an error with the traceback of the exception being handled."""
        self._log("exception", event, fields)

    def _log(self, method: str, event: str, fields: dict[str, Any]) -> None:
        structlog = _configured_structlog()
        if structlog is not None:
            getattr(structlog.get_logger(self._name), method)(event, **fields)
        elif self._logger.isEnabledFor(_LEVELS[method]):
            more = {"event": event, "fields": fields}
            getattr(self._logger, method)("%s", event_line(event, fields), extra=more, stacklevel=3)


def get_logger(name: str) -> EventLogger:
    return EventLogger(name)


def _configured_structlog() -> Any:
    """structlog, if the program has configured it; unconfigured, it prints to stdout, which is the program's."""
    structlog: Any = sys.modules.get("structlog")
    if structlog is None:
        return None
    config = structlog.get_config()
    factory, renderer = config["logger_factory"], (config["processors"] or [None])[-1]
    prints = isinstance(factory, structlog.PrintLoggerFactory) and getattr(factory, "_file", None) is None
    return None if prints and isinstance(renderer, structlog.dev.ConsoleRenderer) else structlog


def event_line(event: str, fields: Mapping[str, Any]) -> str:
    """An event on one line, as `worker_died worker=3 cause=SIGKILL`."""
    return " ".join([event, *(f"{name}={_shown(value)}" for name, value in fields.items())])


def _shown(value: Any) -> str:
    """On one line, and quoted if it is not a single word."""
    text = value if isinstance(value, str) and value.isprintable() and value and " " not in value else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"
