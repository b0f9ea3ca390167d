"""A pool of two ranks keeps a model whose layers are split over them, and generates text by calls.

    python examples/serve.py

A server would take the requests from its clients; this program makes them itself, and kills a rank between two of
them. It needs torch, and cloudpickle to send its functions to the ranks.
"""

import os
import signal

import torch
import torch.distributed as dist

import rankwise as rw
from tensor_parallel import Decoder, generate, split


def load() -> None:
    """Take this rank's part of the model; on every rank, and again after a loss."""
    if dist.is_initialized():
        dist.destroy_process_group()  # the group of which a rank was lost
    rw.init().barrier()  # a new rank that is early would meet rank 0 in the old group's store
    dist.init_process_group("rankwise")
    torch.manual_seed(0)  # a real model reads its part of the weights from a file
    rw.local.model = split(Decoder(), dist.new_group())


def answer(prompt: list[int]) -> list[int]:
    return generate(rw.local.model, torch.tensor([prompt]), 8)[0].tolist()


with rw.Pool(2) as pool:  # between two calls, its ranks sleep
    pool.run(load)
    for request in range(4):
        prompt = list(range(request, request + 16))
        if request == 2:
            os.kill(pool.run(os.getpid)[1], signal.SIGKILL)
        try:
            tokens = pool.run(answer, prompt)[0]  # every rank has the same tokens
        except rw.PeerLostError as error:
            print(f"request {request}: {error}; its rank is replaced, and the model loaded again", flush=True)
            pool.run(load)
            tokens = pool.run(answer, prompt)[0]
        print(f"request {request}: {len(tokens)} tokens, {tokens}", flush=True)
