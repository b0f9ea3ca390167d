"""The kinds of failures: PeerLostError's, MismatchError's and CollectiveTimeout's, and any other error's."""

LOST, MISMATCH, TIMEOUT, ERROR = "lost", "mismatch", "timeout", "error"
