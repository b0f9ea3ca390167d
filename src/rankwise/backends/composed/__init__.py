"""The whole contract, made of the few moves of bytes that another engine offers."""
