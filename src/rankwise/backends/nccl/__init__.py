"""nccl: NVIDIA's library between GPUs, through nccl4py."""
