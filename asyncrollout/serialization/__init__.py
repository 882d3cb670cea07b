"""Any value of a record as JSON and back, without pickle.

JSON's own types stay as they are. Anything else is an object whose key `"$"` names its kind: `{"$": "tuple", "items":
[1, 2]}`, `{"$": "Turn", "observation": ...}`. Only the kinds in `kinds.py` can be read from a file. Their values are
read back exactly, those of subclasses (a Counter, a named tuple, an IntEnum) as their base. Anything else in an env's
`info`, or in an error, becomes a text: `{"$": "text", "type": "datetime.date", "text": "2024-05-01"}`.
"""

from asyncrollout.serialization.kinds import KIND
from asyncrollout.serialization.reading import from_plain
from asyncrollout.serialization.writing import to_plain

__all__ = ["KIND", "from_plain", "to_plain"]
