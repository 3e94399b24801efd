"""What verifiers and prime-rl find by the taskset id `warpsmith-taskset`."""

from warpsmith.taskset import KernelTaskset

__all__ = ["KernelTaskset"]
