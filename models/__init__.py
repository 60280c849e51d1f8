"""Values, rules and tables, without event loop, HTTP and network."""

import sys

VERSION = "0.2.0"

_DRIVERS = [name for name in ("psycopg", "psycopg2") if name not in sys.modules]
"""Peewee would import every installed driver, which takes 20 MB and a third of a second."""

for _name in _DRIVERS:
    sys.modules[_name] = None  # type: ignore[assignment]  # makes the import fail as for a missing module
import peewee as peewee  # noqa: E402

for _name in _DRIVERS:
    del sys.modules[_name]
