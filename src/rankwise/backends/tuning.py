"""Every number by which the backends over other engines choose how to do an operation, and where it comes from.

Sizes are in bytes. A size that was measured was measured on 2 cores over the loopback interface, where both ways take
equally long; see benchmarks/RESULTS.md and docs/scaling.md.
"""

GLOO_EAGER = 1 << 15
"""Up to this size a message's data travels in its envelope, copied; more follows once the receive has matched.

Measured: from 32 KiB on a copy takes longer than a second transfer. Every envelope that a rank is ready to receive
takes this much memory.
"""

GLOO_EXCHANGE = 1 << 20
"""Up to this size of all ranks' blocks together an all_gather is an Exchange, above it gloo's ring."""

GLOO_PADDED = 1 << 14
"""Up to this size blocks of different sizes are padded to one, however much that adds: latency counts there."""
