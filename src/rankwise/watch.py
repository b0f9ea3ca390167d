"""A roll call for programs that stay on MPI or torch.distributed: `python -m rankwise.watch program.py`.

docs/how-to/watch.md says what it does.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from rankwise.frontends.watch.command import main

    main(sys.argv[1:])
