"""DeepSpeed splits the layers of a small Llama, made from scratch, over the ranks (AutoTP), and generates text."""

import os

import deepspeed
import torch
import torch.distributed as dist
from small_llama import llama

TOKENS = 16

# DeepSpeed's launcher sets it; without it, its all_reduce crashes.
os.environ["LOCAL_SIZE"] = os.environ["LOCAL_WORLD_SIZE"]
deepspeed.init_distributed("gloo")
model = llama().to(torch.bfloat16).eval()
size = {"tp_size": dist.get_world_size()}
model = deepspeed.init_inference(model, tensor_parallel=size, dtype=torch.bfloat16, replace_with_kernel_inject=False)
prompt = torch.arange(16)[None]


def generate():
    options = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
    return model.generate(prompt, attention_mask=torch.ones_like(prompt), **options)


# ---- the end of the program, and what must hold ----

from checks import same_on_all_ranks, time_of  # noqa: E402

same_on_all_ranks([generate()])
time_of("token", generate, count=TOKENS)
dist.destroy_process_group()
