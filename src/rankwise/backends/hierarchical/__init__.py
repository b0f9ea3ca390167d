"""hierarchical: shared memory within each host, another engine between hosts."""
