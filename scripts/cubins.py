"""Compiles every unit of CUDA kernels with NVRTC to KERNELS/ARCHITECTURE/UNIT.cubin. Called by gpu_bundle.sh.

Arguments: the toolkit's directory, the directory of sources, the directory of the results, a directory that caches
compilations, and the architectures in one argument, such as "sm_80 sm_90a". No GPU is needed.
"""

import hashlib
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "claims"))

import kernels_compile  # noqa: E402
from kernel_ledger import ARCHITECTURES, architectures_of  # noqa: E402


def cubin(job):
    """The file in the cache with a unit's machine code, compiled unless it is there."""
    toolkit, store, unit, text, architecture = job
    key = "|".join((text, architecture, *kernels_compile.OPTIONS, str(toolkit)))
    kept = store / f"{unit}-{architecture}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.cubin"
    if not kept.exists():
        code = kernels_compile.nvrtc(toolkit, f"{unit}.cu", text, architecture)[2]
        aside = kept.with_suffix(f".{time.monotonic_ns()}.part")
        aside.write_bytes(code)
        aside.rename(kept)
    return kept


def main():
    toolkit, texts, results, store = map(Path, sys.argv[1:5])
    architectures = sys.argv[5].split()
    unknown = [architecture for architecture in architectures if architecture not in ARCHITECTURES]
    if unknown or not architectures:
        return f"error: unknown architectures {unknown}\n  reason: kernels are compiled for {ARCHITECTURES}\n" \
               "  fix: name some of these"
    units = {file.stem: file.read_text(encoding="utf-8") for file in sorted(texts.glob("*.cu"))}
    store.mkdir(parents=True, exist_ok=True)
    jobs = [(toolkit, store, unit, text, architecture)
            for architecture in architectures for unit, text in units.items()
            if architecture in architectures_of(text)]
    with ProcessPoolExecutor(kernels_compile.JOBS) as pool:
        try:
            for (_, _, unit, _, architecture), made in zip(jobs, pool.map(cubin, jobs)):
                (results / architecture).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(made, results / architecture / f"{unit}.cubin")
        except RuntimeError as error:
            return f"error: kernels do not compile\n  reason: {error}\n  fix: see scripts/claims/kernels-compile.sh"
    print(f"{len(jobs)} compilations of {len(units)} units for {len(architectures)} architectures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
