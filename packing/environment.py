"""Run by PyInstaller before the program: children get the environment that we were given, not that of the loaders."""

import os

for name in [name for name in os.environ if name.startswith(("_PYI_", "LD_LIBRARY_PATH"))]:
    del os.environ[name]
if (given := os.environ.pop("PILOTHOUSE_LD_LIBRARY_PATH", None)) is not None:
    os.environ["LD_LIBRARY_PATH"] = given
