"""What is true: values, rules and tables. Nothing here knows a loop or HTTP."""

import sys

VERSION = "0.1.0"

_DRIVERS = [name for name in ("psycopg", "psycopg2") if name not in sys.modules]
"""Peewee imports every driver that it finds: 20 MB and a third of a second, for a server that may never be asked."""

for _name in _DRIVERS:
    sys.modules[_name] = None  # type: ignore[assignment]  # Python's own way to say that there is none
import peewee as peewee  # noqa: E402

for _name in _DRIVERS:
    del sys.modules[_name]
