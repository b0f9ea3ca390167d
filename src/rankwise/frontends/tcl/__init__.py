"""The Tcl front-end: torch::distributed_gather and so on over the array level, and training commands over torch.

Terms: a *command* is one row of the table in commands.py; a *host* runs the script: Tcl inside Python
(interpreter.py), or a stock tclsh with a Python child process (serve.py); a *session* is the state of
one interpreter: its objects by handle, its groups, its mode.
"""
