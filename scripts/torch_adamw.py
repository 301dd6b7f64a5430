"""PyTorch's AdamW step alone on the CPU: the peer our AdamOffload is measured against.

    python torch_adamw.py {default|fused} [--millions 110] [--steps 15] [--threads 2]

Prints one line of JSON: the median and the best seconds of `optimizer.step()` on the given number of million float32
parameters, in matrices of a BERT-base's sizes, after three warm-up steps. Gradients are made once and stay.
"""

import argparse
import json
import statistics
import time

import torch

WARMUP = 3
MATRIX = 768 * 3072


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=("default", "fused"))
    parser.add_argument("--millions", type=float, default=110)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)

    left, parameters = int(arguments.millions * 1e6), []
    while left > 0:
        parameter = torch.nn.Parameter(0.02 * torch.randn(min(left, MATRIX)))
        parameter.grad = parameter.detach().clone()
        parameters.append(parameter)
        left -= parameter.numel()
    options = {"fused": True} if arguments.variant == "fused" else {}
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, weight_decay=0.01, **options)

    times = []
    for _ in range(WARMUP + arguments.steps):
        start = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - start)
    times = times[WARMUP:]
    print(json.dumps({"variant": arguments.variant, "torch": torch.__version__, "threads": torch.get_num_threads(),
                      "parameters": sum(p.numel() for p in parameters), "step_s": statistics.median(times),
                      "best_s": min(times)}))


if __name__ == "__main__":
    main()
