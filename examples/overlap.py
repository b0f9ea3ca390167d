"""How much of the gradients' communication time the backward pass hides.

    rankwise run -n 2 examples/overlap.py

A model of some layers trains for a few steps in three ways:

    alone       the computation only, with communication removed
    after       no overlap: the gradients are reduced after the backward pass
    behind      overlap: each bucket is reduced while the layers before it are still computing

The extra time of "after" and "behind" over "alone" is the exposed communication. It is measured for
two kinds of computation:

    sleeping    a layer's computation is a sleep, as if a device computed: the cores are free for
                communication. All sleeps together are 1.2 times as long as the communication.
    computing   each rank computes matrix products of one sample on one core, the least computation
                for so many gradients, and communication uses the same cores. Overlap can only save
                fetching the gradients into the caches again, so the layers are small, their
                gradients fit in a core's L2 cache, and each rank's only thread reduces them as soon
                as it has computed them: async_op=False

If torch is installed, torch modules are measured as well, with gradients reduced by
`rw.overlap.data_parallel` and by torch's DistributedDataParallel over gloo. The steps of all ways are
interleaved, so that a noisy machine favours none; the fastest step counts, and the median is shown.

The timeline of one step of each kind, "after" and "behind", with lanes for each rank's computation
and communication, is drawn (with matplotlib) and written to a file for https://ui.perfetto.dev or
chrome://tracing. `rankwise run --trace FILE` records the same for `rankwise trace FILE`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import rankwise as rw

Floats = NDArray[np.float32]
WAYS = ("alone", "after", "behind")
HEAD = """\
{ranks} ranks; ms per step: the fastest of {args.steps}, and the median

alone      the computation, with communication removed
after      the gradients reduced after the backward pass: no overlap
behind     each bucket reduced while the next layers are computing
exposed    what communication adds to a step: after - alone, behind - alone; ratio: second / first
sleeping   {sleeping}: computing is a sleep,
           1.2 times as long as the communication (DDP: as data_parallel's): the cores are free
computing  {computing}: computing takes one core per rank,
           and communication runs in the same thread: async_op=False (DDP: buckets of 25 MiB, its own thread)
"""
Step = Callable[[], None]


@dataclass
class Span:
    """What a rank did from begin to end, in seconds of a clock that all ranks share."""

    rank: int
    lane: str
    name: str
    begin: float
    end: float


class Recorder:
    """Keeps the spans of this rank while `on`."""

    def __init__(self, rank: int) -> None:
        self.rank, self.on, self.spans = rank, False, list[Span]()

    @contextmanager
    def span(self, lane: str, name: str) -> Iterator[None]:
        begin = time.time_ns()
        yield
        if self.on:
            end = time.time_ns()
            self.spans.append(Span(self.rank, lane, name, begin / 1e9, end / 1e9))
            if lane == "compute":  # the job's trace has the operations already
                rw.trace.add(name, begin, end, lane)

    def reduce(self, bucket: rw.overlap.Bucket, group: rw.Group) -> None:
        """A reducer's hook: reduces as the reducer would without a hook, and records when."""
        with self.span("communication", f"all_reduce of bucket {bucket.index}"):
            group.all_reduce(bucket.flat, "mean")


class Layers:
    """A model as the reducer sees it: gradients, computed one layer after the other, the last one first."""

    layers, width, bucket_mib = 0, 0, 0.0  # the defaults
    async_op = True

    def __init__(self, args: argparse.Namespace, group: rw.Group) -> None:
        self.recorder, self.group = Recorder(group.rank), group
        layers, self.width, bucket_mib = self.size(args)
        self.bucket_bytes = int(bucket_mib * 2**20)
        random, scale = np.random.default_rng(0), np.float32(self.width**-0.5)
        self.weights: list[Floats] = [
            random.standard_normal((self.width, self.width), np.float32) * scale for _ in range(layers)
        ]
        self.reducer = self.make_reducer()

    @classmethod
    def size(cls, args: argparse.Namespace) -> tuple[int, int, float]:
        """The number of layers, their width, and the MiB of a bucket."""
        return args.layers or cls.layers, args.width or cls.width, args.bucket_mib or cls.bucket_mib

    @classmethod
    def words(cls, args: argparse.Namespace) -> str:
        layers, width, bucket_mib = cls.size(args)
        total = layers * width**2 * 4 / 2**20
        return f"{layers} layers, {total:.0f} MiB of gradients, in buckets of {bucket_mib:g} MiB"

    def make_reducer(self, hook: rw.overlap.BucketHook | None = None) -> rw.overlap.GradientReducer:
        return rw.overlap.GradientReducer(
            self.weights, self.group, self.bucket_bytes, hook=hook, async_op=self.async_op
        )

    def gradients(self, into: list[Any]) -> Iterator[int]:
        """Compute each layer's gradient into its place, and yield the layer."""
        raise NotImplementedError

    def trace(self) -> None:
        """Replace the reducer by one that records when it reduces."""
        del self.reducer  # two reducers would take twice the memory
        self.reducer = self.make_reducer(self.recorder.reduce)

    def step(self, way: str) -> None:
        reducer = self.reducer
        views = reducer.views
        ready = []
        for layer in self.gradients(views):
            ready.append(layer)
            if way == "behind":
                reducer.mark_ready(layer, views[layer])
        if way == "after":
            for layer in ready:
                reducer.mark_ready(layer, views[layer])
        if way != "alone":
            reducer.wait_and_unpack()

    def communication(self) -> None:
        """The communication of a step, without the computation."""
        views = self.reducer.views
        for layer in reversed(range(len(views))):  # as in every step: the reducer learns the order from the first
            self.reducer.mark_ready(layer, views[layer])
        self.reducer.wait_and_unpack()


class Sleeping(Layers):
    """A layer's computation is a sleep of `seconds`."""

    layers, width, bucket_mib = 24, 2048, 25.0
    seconds = 0.0

    def gradients(self, into: list[Any]) -> Iterator[int]:
        for layer in reversed(range(len(self.weights))):
            with self.recorder.span("compute", f"layer {layer}"):
                time.sleep(self.seconds)
            yield layer


class Computing(Layers):
    """Layers of tanh over matrix products, forward and backward, on one sample."""

    layers, width, bucket_mib = 768, 360, 0.5
    async_op = False

    def gradients(self, into: list[Any]) -> Iterator[int]:
        values = [np.ones(self.width, np.float32)]
        with self.recorder.span("compute", "forward"):
            for weights in self.weights:
                values.append(np.tanh(values[-1] @ weights))
        slope = values[-1]
        for layer in reversed(range(len(self.weights))):
            with self.recorder.span("compute", f"layer {layer}"):
                slope = slope * (1 - values[layer + 1] ** 2)
                before = self.weights[layer] @ slope
                # Last, so that it is in the cache when it is marked. np.matmul takes five times as long.
                np.multiply(values[layer][:, None], slope, out=into[layer])
                slope = before
            yield layer


def seconds_of(step: Step, group: rw.Group) -> float:
    """A step's time, from the moment all ranks begin it until the last one has finished."""
    group.barrier()
    begin = time.perf_counter()
    step()
    return float(group.all_reduce(time.perf_counter() - begin, "max"))


def best_of(count: int, step: Step, group: rw.Group) -> float:
    return min(seconds_of(step, group) for _ in range(count))


def balance(model: Sleeping, communication: Step, group: rw.Group) -> None:
    """Make the sleeps together 1.2 times as long as the communication."""
    target = 1.2 * best_of(10, communication, group)
    model.seconds = max(target / len(model.weights) - 60e-6, 100e-6)  # a sleep takes slightly longer than requested


def measure(name: str, steps: dict[str, Step], count: int, group: rw.Group) -> None:
    """Time the three ways, interleaved, and print a line."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for way in WAYS:
        steps[way]()  # warm up; after the first step buckets are packed in the order of readiness
        steps[way]()
    for _ in range(count):
        for way in WAYS:
            times[way].append(1e3 * seconds_of(steps[way], group))
    if group.rank:
        return
    alone, after, behind = (min(times[way]) for way in WAYS)
    medians = " / ".join(f"{statistics.median(times[way]):.1f}" for way in WAYS)
    exposed, left = after - alone, behind - alone
    share = f"{100 * left / exposed:5.0f} %" if exposed > 0 else "      -"
    print(f"{name:36}{alone:8.1f}{after:8.1f}{behind:8.1f}{exposed:10.1f}{left:8.1f} {share}   {medians}", flush=True)


# ---- the same for torch modules ----


def torch_model(model: Layers) -> Any:
    """A torch module of the same layers, and of the same kind of computation."""
    import torch

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any, weights: Any, gradient: Any) -> Any:
            context.gradient = gradient
            return x + 0.0

        @staticmethod
        def backward(context: Any, slope: Any) -> Any:
            assert isinstance(model, Sleeping)
            time.sleep(model.seconds)
            return slope, context.gradient.detach(), None  # a new tensor, which autograd need not copy

    class Layer(torch.nn.Module):
        def __init__(self, weights: Floats) -> None:
            super().__init__()
            self.weights = torch.nn.Parameter(torch.tensor(weights))
            if isinstance(model, Sleeping):
                self.gradient = torch.zeros(weights.shape)  # where a device would store it

        def forward(self, x: Any) -> Any:
            if isinstance(model, Sleeping):
                return Sleep.apply(x, self.weights, self.gradient)  # type: ignore[no-untyped-call]
            return torch.tanh(x @ self.weights)

    return torch.nn.Sequential(*map(Layer, model.weights))


def torch_steps(model: Layers, group: rw.Group, ddp: bool) -> dict[str, Step]:
    import torch
    import torch.distributed as dist

    x = torch.ones(1, model.width)
    inner = torch_model(model)
    if ddp:
        wrapped: Any = torch.nn.parallel.DistributedDataParallel(inner, gradient_as_bucket_view=True)
    else:
        wrapped = rw.overlap.data_parallel(inner, group, model.bucket_bytes, async_op=model.async_op)
    parameters = list(inner.parameters())

    def backward() -> None:
        wrapped.zero_grad()
        wrapped(x).sum().backward()

    def alone() -> None:
        with wrapped.no_sync():
            backward()

    def communication() -> None:
        if ddp:
            step = max(1, (25 << 20) // parameters[0].nbytes)  # as many as one of its buckets holds
            for first in range(0, len(parameters), step):
                gradients = [parameter.grad for parameter in parameters[first : first + step]]
                flat = torch.cat([gradient.view(-1) for gradient in gradients]) if step > 1 else gradients[0]
                dist.all_reduce(flat, dist.ReduceOp.AVG)
                if step > 1:
                    for gradient, mean in zip(gradients, flat.split(gradients[0].numel()), strict=True):
                        gradient.view(-1).copy_(mean)
        else:
            for number in reversed(range(len(parameters))):
                wrapped.reducer.mark_ready(number, parameters[number].grad, lend=True)
            wrapped.reducer.wait_and_unpack()

    def after() -> None:
        alone()
        communication()

    alone()  # so that there are gradients
    if isinstance(model, Sleeping) and not ddp:
        balance(model, communication, group)
    return {"alone": alone, "after": after, "behind": backward}


@contextmanager
def gloo(group: rw.Group) -> Iterator[bool]:
    """torch.distributed over gloo for these ranks, if torch is installed."""
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        yield False
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        store = group.broadcast_object(os.path.join(folder, "store"))
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=group.rank, world_size=group.world_size)
        try:
            yield True
        finally:
            group.barrier()
            dist.destroy_process_group()


# ---- the timeline ----


def timeline(model: Layers, group: rw.Group) -> dict[str, list[Span]]:
    """The spans of all ranks in one step "after" and one "behind"; on rank 0 alone."""
    found = {}
    model.trace()
    for way in ("after", "behind"):
        for last in (False, False, True):
            group.barrier()
            model.recorder.on, model.recorder.spans = last, []
            model.step(way)
        every = group.gather_object([vars(span) for span in model.recorder.spans])
        found[way] = [Span(**span) for spans in every or () for span in spans]
    model.recorder.on = False
    return found


def write_timeline(timelines: dict[str, dict[str, list[Span]]], folder: Path) -> list[Path]:
    """Chrome's trace format; and a picture, if matplotlib is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    events: list[dict[str, object]] = []
    for kind, ways in timelines.items():
        for way, spans in ways.items():
            start = min(span.begin for span in spans)
            for span in spans:
                begin, length = 1e6 * (span.begin - start), 1e6 * (span.end - span.begin)
                place = {"pid": f"{kind}, {way}", "tid": f"rank {span.rank} {span.lane}"}
                events.append({"name": span.name, "ph": "X", "ts": begin, "dur": length, **place})
    path = folder / "overlap.json"
    path.write_text(json.dumps({"traceEvents": events}))
    try:
        return [path, draw(timelines, folder / "overlap.png")]
    except ImportError:
        return [path]


def draw(timelines: dict[str, dict[str, list[Span]]], path: Path) -> Path:
    import matplotlib

    matplotlib.use("Agg")  # pictures to files, no screen needed
    from matplotlib import pyplot

    figure, rows = pyplot.subplots(len(timelines), 2, figsize=(13, 3 * len(timelines)), squeeze=False, sharex="row")
    colours = {"compute": "#1f77b4", "communication": "#d62728"}
    for axes, (kind, ways) in zip(rows, timelines.items(), strict=True):
        for axis, (way, spans) in zip(axes, ways.items(), strict=True):
            start = min(span.begin for span in spans)
            lanes = sorted({(span.rank, span.lane) for span in spans}, key=lambda lane: (-lane[0], lane[1]))
            for span in spans:
                at, length = 1e3 * (span.begin - start), 1e3 * (span.end - span.begin)
                lane = lanes.index((span.rank, span.lane))
                axis.barh(lane, length, left=at, color=colours[span.lane], edgecolor="white", linewidth=0.2)
            axis.set_yticks(range(len(lanes)), [f"rank {rank} {lane}" for rank, lane in lanes])
            axis.set(title=f"{kind}, reduced {way} the backward pass", xlabel="ms")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="How much of the communication is hidden behind the backward pass.")
    parser.add_argument("--layers", type=int, help="layers of either model")
    parser.add_argument("--width", type=int, help="each has width x width float32 parameters")
    parser.add_argument("--bucket-mib", type=float, help="how much is reduced at once")
    parser.add_argument("--steps", type=int, default=24, help="steps of each way")
    parser.add_argument("--no-torch", action="store_true", help="rankwise alone")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the timeline")
    args = parser.parse_args()

    group = rw.init()
    if group.rank == 0:
        words = {"sleeping": Sleeping.words(args), "computing": Computing.words(args)}
        print(HEAD.format(args=args, ranks=group.world_size, **words))
        print(f"{'':36}{'alone':>8}{'after':>8}{'behind':>8}{'exposed: after':>15}{'behind':>8} {'ratio':>7}   medians")
    timelines = {}
    with nullcontext(False) if args.no_torch else gloo(group) as with_torch:
        for name, kind in (("sleeping", Sleeping), ("computing", Computing)):
            model = kind(args, group)
            if isinstance(model, Sleeping):
                balance(model, model.communication, group)
            steps: dict[str, Step] = {way: partial(model.step, way) for way in WAYS}
            measure(f"{name}: GradientReducer", steps, args.steps, group)
            if with_torch:
                measure(f"{name}: data_parallel", torch_steps(model, group, False), args.steps, group)
                measure(f"{name}: torch DDP on gloo", torch_steps(model, group, True), args.steps, group)
            timelines[name] = timeline(model, group)
    if group.rank == 0:
        print("the timeline is in", " and ".join(map(str, write_timeline(timelines, args.out))))


if __name__ == "__main__":
    main()
