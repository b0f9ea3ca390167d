"""transformers splits a small Llama, made from scratch, over the ranks (tp_plan="auto"), and generates text.

Arguments: the dtype of the weights, and the number of ranks.
"""

import itertools
import sys
import time
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from small_llama import llama
from transformers import AutoModelForCausalLM

TOKENS = 32

dtype = getattr(torch, sys.argv[1])
with TemporaryDirectory() as folder:  # each rank's own: torch's backend "fake" has no barrier
    llama().to(dtype).save_pretrained(folder)  # which only rank 0 of a group would do
    dist.init_process_group("gloo")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, tp_plan="auto").eval()
prompt = torch.arange(16)[None]
options = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)

# ---- the end of the program, and what must hold ----

from checks import print_times, same_on_all_ranks  # noqa: E402

assert tokens.shape == (1, 16 + TOKENS)
ranks = int(sys.argv[2])
# rankwise rounds a bfloat16 sum of 4 ranks once, gloo after each addition, so that the tokens may differ.
same_on_all_ranks([tokens], ranks, as_on_gloo=(ranks == 2 or dtype == torch.float32))


class Clock:
    """generate calls it with each token."""

    def __init__(self):
        self.times = []

    def put(self, tokens):
        self.times.append(time.perf_counter())

    def end(self):
        pass


passed = []
for _ in range(8):
    clock = Clock()
    model.generate(prompt, attention_mask=torch.ones_like(prompt), streamer=clock, **options)
    passed += [after - before for before, after in itertools.pairwise(clock.times[1:])]  # without the prompt
print_times("token", passed)
dist.destroy_process_group()
