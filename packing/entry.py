"""The main script of the executable."""

import sys

from supervisor.children import launcher_process
from supervisor.cli.ctl import run_ctl
from supervisor.workers import program

if sys.argv[1:2] == [launcher_process.FROZEN_ARGUMENT]:
    launcher_process.main()
    sys.exit(0)

if sys.argv[1:2] == [program.FROZEN_ARGUMENT]:
    program.serve()
    sys.exit(0)

if (code := run_ctl(sys.argv[1:])) is not None:  # without the server's modules
    sys.exit(code)

from run import main

sys.exit(main())
