"""Communication inside functions that JAX compiles; `rankwise.jax` has its names."""
