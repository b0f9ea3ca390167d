"""The Tcl front-end: the commands torch::distributed_gather and so on, over the array level.

Words: a *command* is one row of the table in commands.py; a *host* is what runs the script: Tcl
inside Python (interpreter.py) or a stock tclsh that talks to a child (serve.py); a *session* is what
one interpreter knows: its tensors by handle, its groups, its mode.
"""
