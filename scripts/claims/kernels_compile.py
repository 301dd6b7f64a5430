"""Compiles CUDA kernel sources and compares their resource use with a ledger. Called by kernels-compile.sh.

Arguments: the toolkit's directory, the directory of sources, the ledger, a directory that caches compilations; --accept
to rewrite the ledger, --all to compile with nvcc for every architecture. Findings go to stderr, the figure to stdout;
the exit status is 1 if anything is wrong.
"""

import csv
import ctypes
import hashlib
import inspect
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ARCHITECTURES = ("sm_80", "sm_90", "sm_90a")
# What the library compiles for on the devices it is written for, and so what nvcc compiles for unless it is told --all.
NVCC_ARCHITECTURES = ("sm_90a",)
# What the library compiles with, and the report of the assembler. Part of the key of what was compiled before.
OPTIONS = ("-std=c++17", "--ptxas-options=-v")
COLUMNS = ("unit", "kernel", "architecture", "registers", "stack", "spill_stores", "spill_loads", "shared", "reason")
NUMBERS = COLUMNS[3:8]
JOBS = 2


def open_nvrtc(toolkit):
    """The run-time compiler; its other half has to be there first, under its bare name."""
    for builtins in sorted((toolkit / "lib").glob("libnvrtc-builtins.so.*")):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(toolkit / "lib" / "libnvrtc.so.13"))


def nvrtc(toolkit, name, text, architecture):
    """The run-time compiler's log of a source text; raises with that log if it does not compile."""
    library = open_nvrtc(toolkit)
    program = ctypes.c_void_p()
    made = library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    if made != 0:
        raise RuntimeError(f"{name}: NVRTC cannot make a program (error {made})")
    options = [option.encode() for option in (f"--gpu-architecture={architecture}", *OPTIONS)]
    status = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    log = log.value.decode(errors="replace")
    if status != 0:
        raise RuntimeError(f"{name}: NVRTC for {architecture} (error {status}):\n{log}")
    return log


def nvcc(toolkit, name, text, architecture):
    """Compiles a source text with nvcc; raises with its output if that fails."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / name
        source.write_text(text)
        command = [toolkit / "bin" / "nvcc", "-std=c++17", "-cubin", f"-arch={architecture}", "-o",
                   Path(directory) / "out", source]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: nvcc for {architecture}:\n{done.stderr}{done.stdout}")


def kernels_of(log):
    """The assembler's report as {kernel: {column: number}}."""
    kernels, name = {}, None
    for line in log.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            name = found[1]
            kernels[name] = dict.fromkeys(NUMBERS, 0)
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            # Also of functions that were not inlined: they belong to the kernel before them.
            for column, number in zip(("stack", "spill_stores", "spill_loads"), found.groups()):
                if name is not None:
                    kernels[name][column] += int(number)
        elif name is not None and (found := re.search(r"Used (\d+) registers", line)):
            kernels[name]["registers"] = int(found[1])
            if shared := re.search(r"(\d+) bytes smem", line):
                kernels[name]["shared"] = int(shared[1])
    return kernels


def by_nvrtc(toolkit, name, text, architecture):
    """One unit by the run-time compiler: its kernels."""
    kernels = kernels_of(nvrtc(toolkit, name, text, architecture))
    if not kernels:
        raise RuntimeError(f"{name}: the assembler's report for {architecture} names no kernel")
    return kernels


def processor_seconds():
    """Of this process and the programs it started: a busy machine makes it no longer."""
    mine, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def compiled(job):
    """One unit by one compiler for one architecture, unless it was compiled before; what came of it, and seconds of a
    processor."""
    toolkit, store, compiler, unit, text, architecture = job
    how = "".join(map(inspect.getsource, (nvrtc, by_nvrtc, kernels_of, nvcc)))
    parts = (text, architecture, compiler, *OPTIONS, str(toolkit), how)
    key = hashlib.sha256("|".join(hashlib.sha256(part.encode()).hexdigest() for part
                                  in parts).encode()).hexdigest()[:32]
    kept = store / f"{unit}-{key}.json"
    if kept.exists():
        return json.loads(kept.read_text()), 0.0
    started = processor_seconds()
    result = COMPILERS[compiler](toolkit, f"{unit}.cu", text, architecture)
    store.mkdir(parents=True, exist_ok=True)
    aside = kept.with_suffix(f".{time.monotonic_ns()}.part")
    aside.write_text(json.dumps(result))
    aside.rename(kept)
    return result, processor_seconds() - started


COMPILERS = {"NVRTC": by_nvrtc, "nvcc": nvcc}


def read_ledger(path):
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {tuple(row[column] for column in COLUMNS[:3]): row for row in rows}


def write_ledger(path, measured, ledger):
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for key in sorted(measured):
            reason = ledger.get(key, {}).get("reason", "")
            writer.writerow([*key, *(measured[key][column] for column in NUMBERS), reason])


def findings(measured, ledger):
    """What is wrong, one line each."""
    wrong = []
    fix = "if that is meant: scripts/claims/kernels-compile.sh --accept"
    for key in sorted(measured.keys() | ledger.keys()):
        name = " ".join(key)
        if key not in measured:
            wrong.append(f"{name}: the ledger has it, the units have not; {fix}")
            continue
        now = measured[key]
        spilled = now["spill_stores"] + now["spill_loads"]
        if spilled > 0 and not ledger.get(key, {}).get("reason", "").strip():
            wrong.append(f"{name}: {spilled} bytes of registers are spilled, and the ledger gives no reason")
        if key not in ledger:
            wrong.append(f"{name}: not in the ledger; {fix}")
            continue
        for column in NUMBERS:
            before = int(ledger[key][column])
            if now[column] > before:
                wrong.append(f"{name}: {column} rose from {before} to {now[column]}; {fix}")
    return wrong


def all_compiled(jobs):
    """What came of each job that was done, by (compiler, unit, architecture), and the errors of the failed ones."""
    done, broken, total, started = {}, [], 0.0, time.monotonic()
    with ProcessPoolExecutor(JOBS) as pool:
        for (_, _, compiler, unit, _, architecture), future in [(job, pool.submit(compiled, job)) for job in jobs]:
            try:
                done[compiler, unit, architecture], seconds = future.result()
            except RuntimeError as error:
                broken.append(str(error))
                continue
            total += seconds
            if seconds > 0:
                print(f"{unit} by {compiler} for {architecture}: {seconds:.1f} s of a processor", file=sys.stderr)
    print(f"{len(jobs)} compilations: {total:.0f} s of a processor, {time.monotonic() - started:.0f} s elapsed",
          file=sys.stderr)
    return done, broken


def main():
    toolkit, texts, path, store = map(Path, sys.argv[1:5])
    accept, everything = ("--accept" in sys.argv[5:]), ("--all" in sys.argv[5:])
    units = {file.stem: file.read_text() for file in sorted(texts.glob("*.cu"))}
    plan = {"NVRTC": ARCHITECTURES, "nvcc": ARCHITECTURES if everything else NVCC_ARCHITECTURES}
    # The longest first, so that the last to end is a short one.
    order = sorted(units, key=lambda unit: -len(units[unit]))
    jobs = [(toolkit, store, compiler, unit, units[unit], architecture)
            for compiler, architectures in plan.items() for unit in order for architecture in architectures]
    done, broken = all_compiled(jobs)
    measured = {(unit, kernel, architecture): numbers for (compiler, unit, architecture), kernels in done.items()
                if compiler == "NVRTC" for kernel, numbers in kernels.items()}
    ledger = read_ledger(path)
    if accept and not broken:
        write_ledger(path, measured, ledger)
        ledger = read_ledger(path)
    wrong = broken + ([] if broken else findings(measured, ledger))
    for line in wrong:
        print(line, file=sys.stderr)
    fewer = sum(any(now[c] < int(ledger[key][c]) for c in NUMBERS) for key, now in measured.items() if key in ledger)
    if fewer:
        print(f"{fewer} kernels take less than in the ledger; --accept keeps that", file=sys.stderr)
    spilling = sum(now["spill_stores"] + now["spill_loads"] > 0 for now in measured.values())
    print(f"{len(measured)}/{spilling}" if not broken else f"{len(broken)}_units_do_not_compile")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
