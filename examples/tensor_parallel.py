"""A small transformer, split over the ranks, generates tokens: tensor parallelism with torch, on rankwise or on gloo.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py --backend rankwise
    torchrun --nproc-per-node 2 examples/tensor_parallel.py --compare

Each rank holds a part of every layer: some of the attention's heads, and a part of the feed-forward's
width (Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019). A token costs two all_reduces a layer and one all_gather, each of a few KiB and each
waiting for the one before, so their latency counts. The weights are random, and so the tokens mean
nothing; but they must be those that the whole model generates on one rank, which the example checks.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

VOCABULARY, WIDTH, HEADS, LAYERS = 1024, 512, 8, 3
PROMPT, MOST_TOKENS = 16, 1024

# The keys and values of the positions so far, each (rows, heads, positions, width of a head).
Past = tuple[Tensor, Tensor]


class Layer(nn.Module):
    """Attention and feed-forward, with as many heads as the weights of `heads` have: all, or this rank's."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_feed_forward = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, past: Past | None) -> tuple[Tensor, Past]:
        heads = self.heads(self.before_attention(x)).unflatten(-1, (-1, 3 * WIDTH // HEADS))
        query, key, value = heads.transpose(1, 2).chunk(3, -1)
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        y = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=past is None)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        x = x + self.down(nn.functional.gelu(self.up(self.before_feed_forward(x))))
        return x, (key, value)


class Decoder(nn.Module):
    """(rows, positions) tokens -> (rows, VOCABULARY) scores of the token that follows."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(PROMPT + MOST_TOKENS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.scores = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, past: list[Past | None]) -> Tensor:
        """past: a Past for each layer, or None before the first tokens; it is updated in place."""
        start = 0 if past[0] is None else past[0][0].shape[2]
        x = self.tokens(tokens) + self.places(torch.arange(start, start + tokens.shape[1]))
        for number, layer in enumerate(self.layers):
            x, past[number] = layer(x, past[number])
        scores: Tensor = self.scores(x[:, -1])
        return scores


def split(model: Decoder, group: dist.ProcessGroup) -> Decoder:
    """`model`, in place, with this rank's part of each layer and of the scores."""
    plan = {
        "layers.*.heads": ColwiseParallel(),
        "layers.*.out": RowwiseParallel(),
        "layers.*.up": ColwiseParallel(),
        "layers.*.down": RowwiseParallel(),
        "scores": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(model, dist.DeviceMesh.from_group(group, "cpu"), plan)
    return model


@torch.no_grad()
def generate(model: Decoder, prompt: Tensor, count: int) -> Tensor:
    """The `count` tokens that follow each row of `prompt`, each the one with the highest score."""
    past: list[Past | None] = [None] * LAYERS
    found = []
    tokens = prompt
    for _ in range(count):
        tokens = model(tokens, past).argmax(-1, keepdim=True)
        found.append(tokens)
    return torch.cat(found, 1)


def timed(model: Decoder, prompt: Tensor, count: int) -> tuple[Tensor, float]:
    """What `generate` gives, and the tokens a second."""
    begin = time.perf_counter()
    tokens = generate(model, prompt, count)
    return tokens, tokens.numel() / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="rankwise", help="rankwise (the default) or gloo")
    parser.add_argument("--compare", action="store_true", help="measure rankwise and gloo, interleaved")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate")
    parser.add_argument("--rows", type=int, default=1, help="texts to generate at once")
    parser.add_argument("--times", type=int, default=5, help="how often to generate them; the median counts")
    args = parser.parse_args()
    if not 1 <= args.tokens <= MOST_TOKENS:
        parser.error(f"--tokens {args.tokens}: expected 1 to {MOST_TOKENS}")

    dist.init_process_group(args.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    if HEADS % size:
        raise SystemExit(f"{HEADS} heads cannot be split over {size} ranks: expected 1, 2, 4 or 8 ranks")
    torch.manual_seed(0)  # every rank has the same weights and the same prompt
    whole = Decoder()
    prompt = torch.randint(VOCABULARY, (args.rows, PROMPT))
    expected = torch.empty(args.rows, args.tokens, dtype=torch.int64)
    if rank == 0:
        generate(whole, prompt, args.tokens)
        expected, speed = timed(whole, prompt, args.tokens)
        millions = sum(parameter.numel() for parameter in whole.parameters()) / 1e6
        print(f"{millions:.1f} million parameters; {args.tokens} tokens for each of {args.rows} texts", flush=True)
        print(f"on one rank: {speed:.0f} tokens a second", flush=True)
    dist.broadcast(expected, 0)

    backends = ["rankwise", "gloo"] if args.compare else [args.backend]
    models = {name: split(copy.deepcopy(whole), dist.new_group(backend=name)) for name in backends}
    speeds: dict[str, list[float]] = {name: [] for name in backends}
    for _ in range(1 + args.times):
        for name, model in models.items():
            dist.barrier()
            tokens, speed = timed(model, prompt, args.tokens)
            if not tokens.equal(expected):
                raise SystemExit(f"rank {rank}: the tokens on {name} differ from those of one rank")
            speeds[name].append(speed)
    if rank == 0:
        for name in backends:
            speed = statistics.median(speeds[name][1:])  # without the first, which warms up
            print(f"on {name}, {size} ranks: {speed:.0f} tokens a second, the same tokens as on one rank", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
