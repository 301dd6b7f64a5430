"""The matrix products of NumPy (OpenBLAS) or PyTorch (MKL, oneDNN), timed.

    python products.py numpy|torch SECONDS < SHAPES

Each line of standard input is a record of `cpu_bench gemm --json`, of bf16 for PyTorch alone; it is answered with the
best speed of many runs, in GFLOP/s. The number of threads of NumPy is the environment's (OPENBLAS_NUM_THREADS).
"""

import json
import sys
import time


def best(run, seconds):
    run()
    fastest, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        run()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


def views(shape, make):
    """A, B and C of a record; a dimension for the batch where there is more than one product."""
    m, n, k = shape["size"]
    outer, inner = shape["count"]
    for name, rows, columns in [("a", m, k), ("b", k, n), ("c", m, n)]:
        place = shape[name]
        sizes, strides = (rows, columns), (place["row"], place["column"])
        if outer * inner > 1:
            sizes, strides = (outer, inner, *sizes), (place["outer"], place["inner"], *strides)
        yield make(place["len"], place["start"], sizes, strides)


def numpy_product(shape):
    import numpy

    def make(length, start, sizes, strides):
        data = (numpy.arange(length, dtype=numpy.int64) * 7919 % 2003).astype(numpy.float32) / 1001.5 - 1
        return numpy.lib.stride_tricks.as_strided(data[start:], sizes, [stride * 4 for stride in strides])

    a, b, c = views(shape, make)
    return lambda: numpy.matmul(a, b, out=c)


def torch_product(shape):
    import torch

    torch.set_num_threads(shape["threads"])

    def make(length, start, sizes, strides):
        data = (torch.arange(length) * 7919 % 2003).float() / 1001.5 - 1
        return data.to(dtype).as_strided(sizes, strides, start)

    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[shape["dtype"]]
    a, b, c = views(shape, make)
    return lambda: torch.matmul(a, b, out=c)


def main():
    product = {"numpy": numpy_product, "torch": torch_product}[sys.argv[1]]
    seconds = float(sys.argv[2])
    for line in sys.stdin:
        shape = json.loads(line)
        (m, n, k), (outer, inner) = shape["size"], shape["count"]
        print(f"{2 * m * n * k * outer * inner / best(product(shape), seconds) / 1e9:.2f}", flush=True)


if __name__ == "__main__":
    main()
