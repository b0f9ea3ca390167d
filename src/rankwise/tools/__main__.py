"""`python -m rankwise.tools`: the `rankwise` command."""

import sys

from rankwise.tools.cli import main

sys.exit(main())
