"""`rankwise run`, where what the ranks still print after the first failure matters."""

from __future__ import annotations

import sys

# On a busy machine that takes them longer than the second that they usually have.
PATIENT_RUN = [
    sys.executable,
    "-c",
    "from rankwise.launch import local; from rankwise.tools.cli import main; local.GRACE = 40.0; exit(main())",
    "run",
]
