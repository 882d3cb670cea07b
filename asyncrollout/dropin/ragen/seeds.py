"""Seeds of resets in training, which never meet those of validation."""

from asyncrollout.dropin.ragen.settings import Mode, Settings


def reserved_seeds(settings: Settings, mode: Mode) -> range:
    """What a mode leaves out: training, the seeds of validation."""
    if mode == "val" or settings.es_manager.val is None:
        return range(0)
    first = settings.base_seed("val")
    return range(first, first + settings.es_manager.val.env_groups)


def first_free(first: int, count: int, reserved: range) -> int:
    """The first of so many seeds in a row, from `first` on, none of which is reserved."""
    meets = first < reserved.stop and reserved.start < first + count
    return reserved.stop if meets else first
