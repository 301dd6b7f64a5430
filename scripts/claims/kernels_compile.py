"""Compiles CUDA kernel sources and compares what became of them with a ledger. Called by kernels-compile.sh.

Arguments: the toolkit's directory, the directory of sources, the ledger, a directory that caches compilations; --accept
to rewrite the ledger, --all to compile with nvcc to the end, for every architecture. Findings go to stderr, the figure
to stdout; the exit status is 1 if anything is wrong.
"""

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

import kernel_ledger
from kernel_ledger import ARCHITECTURES, architectures_of

# What nvcc compiles for unless it is told --all, and then only to PTX: what follows is the assembler that NVRTC has.
NVCC_ARCHITECTURES = ("sm_90a",)
# What the library compiles with, and the report of the assembler. Part of the key of what was compiled before.
OPTIONS = ("-std=c++17", "--ptxas-options=-v")
REPORTED = ("registers", "stack", "spill_stores", "spill_loads", "shared")
JOBS = 2


def open_nvrtc(toolkit):
    """The run-time compiler; its other half has to be there first, under its bare name."""
    for builtins in sorted((toolkit / "lib").glob("libnvrtc-builtins.so.*")):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(toolkit / "lib" / "libnvrtc.so.13"))


def nvrtc(toolkit, name, text, architecture):
    """The run-time compiler's log, PTX and machine code of a source text; raises with the log if it does not
    compile."""
    library = open_nvrtc(toolkit)
    program = ctypes.c_void_p()
    made = library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    if made != 0:
        raise RuntimeError(f"{name}: NVRTC cannot make a program (error {made})")

    def output(what):
        size = ctypes.c_size_t()
        getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        getattr(library, f"nvrtcGet{what}")(program, content)
        return content.raw

    options = [option.encode() for option in (f"--gpu-architecture={architecture}", *OPTIONS)]
    status = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    log = output("ProgramLog").rstrip(b"\0").decode(errors="replace")
    if status != 0:
        raise RuntimeError(f"{name}: NVRTC for {architecture} (error {status}):\n{log}")
    if "instructions are serialized" in log:
        raise RuntimeError(f"{name}: products of warpgroups for {architecture} wait for each other:\n{log}")
    ptx, cubin = output("PTX").rstrip(b"\0").decode(), output("CUBIN")
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return log, ptx, cubin


def disassembled(toolkit, name, cubin):
    """Machine code as text."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([toolkit / "bin" / "nvdisasm", "--print-code", file.name], capture_output=True, text=True,
                              check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: nvdisasm:\n{done.stderr}")
    return done.stdout


def nvcc(toolkit, name, text, architecture, to="-cubin"):
    """Compiles a source text with nvcc; raises with its output if that fails."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / name
        source.write_text(text)
        command = [toolkit / "bin" / "nvcc", "-std=c++17", to, f"-arch={architecture}", "-o",
                   Path(directory) / "out", source]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: nvcc for {architecture}:\n{done.stderr}{done.stdout}")


def nvcc_to_ptx(toolkit, name, text, architecture):
    """As `nvcc`, but for the assembler."""
    nvcc(toolkit, name, text, architecture, "-ptx")


def kernels_of(log):
    """The assembler's report as {kernel: {column: number}}."""
    kernels, name = {}, None
    for line in log.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            name = found[1]
            kernels[name] = dict.fromkeys(REPORTED, 0)
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
    """One unit by the run-time compiler: its kernels, with what is counted of each."""
    log, ptx, cubin = nvrtc(toolkit, name, text, architecture)
    kernels = kernels_of(log)
    if not kernels:
        raise RuntimeError(f"{name}: the assembler's report for {architecture} names no kernel")
    threads = kernel_ledger.most_threads(ptx)
    counts = kernel_ledger.counts(disassembled(toolkit, name, cubin))
    if not kernels.keys() == threads.keys() == counts.keys():
        raise RuntimeError(f"{name}: report, PTX and machine code for {architecture} have not the same kernels")
    return {kernel: {**numbers, "threads": threads[kernel], **counts[kernel]} for kernel, numbers in kernels.items()}


def processor_seconds():
    """Of this process and the programs it started: a busy machine makes it no longer."""
    mine, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def compiled(job):
    """One unit by one compiler for one architecture, unless it was compiled before; what came of it, and seconds of a
    processor."""
    toolkit, store, compiler, unit, text, architecture = job
    code = (nvrtc, by_nvrtc, kernels_of, nvcc, disassembled, kernel_ledger.counts, kernel_ledger.most_threads)
    how = "".join(map(inspect.getsource, code)) + repr(kernel_ledger.READING)
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


COMPILERS = {"NVRTC": by_nvrtc, "nvcc": nvcc, "nvcc to PTX": nvcc_to_ptx}


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


def measured(done, units):
    """The columns of every kernel, {kernel: {architecture: {column: number}}}, from what the run-time compiler made of
    all units."""
    kernels = {}
    for (compiler, unit, architecture), found in done.items():
        for kernel, numbers in found.items() if compiler == "NVRTC" else ():
            numbers = dict(numbers)
            numbers["shared"] += kernel_ledger.shared_at_launch(units[unit], kernel)
            numbers["blocks"] = kernel_ledger.blocks(architecture, numbers["registers"], numbers["shared"],
                                                     numbers["threads"])
            kernels.setdefault(kernel, {})[architecture] = numbers
    return kernels


def findings(kernels, ledger):
    """What is wrong with kernels, and where they differ from the text of a ledger, one line each."""
    _, reasons = kernel_ledger.read(ledger)
    wrong = kernel_ledger.broken_rules(kernels, reasons)
    now = kernel_ledger.text_of(kernels, reasons)
    if now != ledger:
        wrong += kernel_ledger.changes(ledger, now) or ["kernels/ledger.txt: the values are right, the text is not"]
        wrong.append("if that is meant: scripts/claims/kernels-compile.sh --accept")
    return wrong


def main():
    toolkit, texts, path, store = map(Path, sys.argv[1:5])
    accept, everything = ("--accept" in sys.argv[5:]), ("--all" in sys.argv[5:])
    units = {file.stem: file.read_text() for file in sorted(texts.glob("*.cu"))}
    second = ("nvcc", ARCHITECTURES) if everything else ("nvcc to PTX", NVCC_ARCHITECTURES)
    # The longest first, so that the last to end is a short one.
    order = sorted(units, key=lambda unit: -len(units[unit]))
    jobs = [(toolkit, store, compiler, unit, units[unit], architecture)
            for compiler, architectures in (("NVRTC", ARCHITECTURES), second)
            for unit in order for architecture in architectures if architecture in architectures_of(units[unit])]
    done, wrong = all_compiled(jobs)
    kernels = {} if wrong else measured(done, units)
    figure = f"{len(wrong)}_units_do_not_compile"
    if not wrong:
        ledger = path.read_text() if path.exists() else ""
        if accept:
            ledger = kernel_ledger.text_of(kernels, kernel_ledger.read(ledger)[1])
            path.write_text(ledger)
        wrong = findings(kernels, ledger)
        each = [numbers for values in kernels.values() for numbers in values.values()]
        figure = f"{len(each)}/{sum(numbers['spill_stores'] + numbers['spill_loads'] > 0 for numbers in each)}"
    for line in wrong:
        print(line, file=sys.stderr)
    print(figure)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
