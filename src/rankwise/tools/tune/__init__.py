"""`rankwise tune`: measure at which sizes each algorithm is the fastest on this machine."""
