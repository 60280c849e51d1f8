"""Runs before the program: restores the environment, which the launcher and PyInstaller have changed, for children."""

import os

for name in [name for name in os.environ if name.startswith(("_PYI_", "LD_LIBRARY_PATH"))]:
    del os.environ[name]
if (given := os.environ.pop("PILOTHOUSE_LD_LIBRARY_PATH", None)) is not None:
    os.environ["LD_LIBRARY_PATH"] = given
