"""`python -m pilothouse`."""

import sys

from . import main

sys.exit(main())
