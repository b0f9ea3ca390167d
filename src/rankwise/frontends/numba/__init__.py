"""The engine in functions that Numba compiles; rankwise.numba has the names."""
