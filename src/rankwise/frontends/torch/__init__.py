"""rankwise under torch.distributed: a ProcessGroup over a Communicator.

These modules import torch. `rankwise.torch`, which loads them when a group is made, does not.
"""
