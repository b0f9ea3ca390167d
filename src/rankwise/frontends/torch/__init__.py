"""rankwise in torch: a ProcessGroup over a Communicator, and operations of a Group that autograd follows.

These modules import torch. `rankwise.torch` and `rankwise.autograd`, which load them when they are used, do not.
"""
