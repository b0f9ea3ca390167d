"""The kinds of failures: those of PeerLostError, MismatchError and CollectiveTimeout, and any other error."""

LOST, MISMATCH, TIMEOUT, ERROR = "lost", "mismatch", "timeout", "error"
