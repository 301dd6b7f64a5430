"""How programs are held to an instruction set: variables of the environment, by the name that BMTRAIN_CPU has for it.

The gemm crate has no variable; it is built for the set.
"""

import os

HELD = {
    "avx2": dict(BMTRAIN_CPU="avx2", OPENBLAS_CORETYPE="Haswell", MKL_ENABLE_INSTRUCTIONS="AVX2",
                 ATEN_CPU_CAPABILITY="avx2", ONEDNN_MAX_CPU_ISA="AVX2"),
    "avx512": dict(BMTRAIN_CPU="avx512", OPENBLAS_CORETYPE="SkylakeX", MKL_ENABLE_INSTRUCTIONS="AVX512",
                   ATEN_CPU_CAPABILITY="avx512", ONEDNN_MAX_CPU_ISA="AVX512_CORE"),
}


def add_option(parser):
    parser.add_argument("--isa", choices=HELD, help="hold both sides to this instruction set of the processor")


def hold(name):
    """Holds every program that is started from here on to an instruction set, if there is a name."""
    os.environ.update(HELD.get(name, {}))


def used(record):
    """The instruction set of a record of ours, whose device reads like `cpu (2 threads, avx2)`."""
    return record["device"].rstrip(")").split(", ")[-1]
