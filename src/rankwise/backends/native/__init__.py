"""The backends over the native engine: solo, shm and threads."""
