"""`python -m dfvg_host.cli` is the command `dfvg`."""

import sys

from dfvg_host.cli.main import main

sys.exit(main())
