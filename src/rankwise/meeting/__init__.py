"""How ranks find each other: a store in which each leaves what the others need, and the one over a TCP port."""
