"""Which environments clients of a server may open, if they are VAGEN's."""

from collections.abc import Mapping
from typing import Any

from asyncrollout.dropin.vagen.registered import find_theirs, is_theirs
from asyncrollout.registry import EnvSpec
from asyncrollout.service.allowed_envs import Admission

_VARIABLES = ("SCRIPT_DIR",)  # no others: an error would show a client their values


class VagenAdmission(Admission):
    """Reads configs of VAGEN's environments as VAGEN does; all else is admitted as before."""

    def admit(self, name: Any, kwargs: Any) -> tuple[EnvSpec, dict[str, Any]]:
        if not isinstance(name, str) or not isinstance(kwargs, Mapping) or not is_theirs(name, kwargs):
            return super().admit(name, kwargs)
        found, options = find_theirs(name, kwargs, variables=_VARIABLES)
        if not isinstance(found, EnvSpec):  # one of ours, whose observations are VAGEN's here
            return super().admit(found, {"explain_invalid": False, **options})
        return found, {key: self.admit_value(key, value) for key, value in options.items()}
