"""Ranks that stay: `rw.Pool`, and `rw.local`, the namespace in which a rank keeps what it needs in later calls.

A *call* is a function with its arguments. A *task* is a call that one rank makes, whichever is free (`submit`, `map`);
`run` makes a call on all ranks at once. The *client* is the process that has the pool; it is no rank of the pool.
"""
