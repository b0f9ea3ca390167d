"""The frameworks that `make test-all PART=clients` runs on gloo and on rankwise, and what it runs of each."""

from __future__ import annotations

from dataclasses import dataclass

TORCHRUN = "python -m torch.distributed.run --standalone --nproc-per-node 2"
ACCELERATE = f"{TORCHRUN} -m accelerate.test_utils.scripts"


@dataclass(frozen=True)
class ClientTest:
    """A program on two ranks.

    command: its words; {programs} stands for the folder programs/. seconds: after these it counts as hung.
    by_name: the framework takes the name of any backend. note: why it fails on gloo too, where it does.
    """

    name: str
    command: str
    seconds: int = 300
    by_name: bool = False
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


CLIENTS = (
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
        ("transformers==5.23.0", "accelerate==1.15.0"),
        (ClientTest("Trainer", f"{TORCHRUN} {{programs}}/transformers_trainer.py"),),
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
        ("deepspeed==0.19.8",),
        (
            ClientTest(
                "ZeRO-1",
                f"{TORCHRUN} {{programs}}/deepspeed_zero1.py",
                by_name=True,
                note="at the end torch may free gloo's group in one of its own threads, which aborts the process",
            ),
        ),
        # DeepSpeed compiles this where it is first used.
        prepare="python -c 'import importlib; importlib.import_module(\"deepspeed.comm.torch\").build_shm_op()'",
    ),
)
