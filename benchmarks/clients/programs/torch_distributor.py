"""Two processes of PyTorch that train one model on executors: ``torch_distributor.py``."""

from __future__ import annotations

import json
from typing import Any

from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession


def train(steps: int) -> dict[str, Any]:
    """Each process fits its half of the data; gradients are shared at every step."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.linspace(-1, 1, 64, dtype=torch.float64).reshape(-1, 1)[rank::world]
    weight = torch.zeros((1, 1), dtype=torch.float64, requires_grad=True)
    for _ in range(steps):
        loss = ((x @ weight - 3 * x) ** 2).mean()
        (gradient,) = torch.autograd.grad(loss, weight)
        dist.all_reduce(gradient)
        weight = (weight - 0.4 * gradient / world).detach().requires_grad_()
    result = {"world": world, "weight": float(weight)}
    dist.destroy_process_group()
    return result


def main() -> None:
    """Train, and show what the first process found."""
    spark = SparkSession.builder.getOrCreate()
    distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
    answer = distributor.run(train, 60)
    spark.stop()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
