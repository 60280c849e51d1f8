"""The main script of the executable."""

import sys

from supervisor.cli.ctl import run_ctl

if (code := run_ctl(sys.argv[1:])) is not None:  # without the server's modules
    sys.exit(code)

from run import main

sys.exit(main())
