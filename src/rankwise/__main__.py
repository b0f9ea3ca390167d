"""`python -m rankwise`: the `rankwise` command."""

import sys

from rankwise.tools.cli import main

sys.exit(main())
