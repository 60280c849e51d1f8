"""The main script of the executable."""

import sys

from run import main

sys.exit(main())
