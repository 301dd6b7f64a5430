"""The ledger of compiled CUDA kernels: what is counted in their machine code, how many blocks a multiprocessor holds,
and the text of kernels/ledger.txt. Imported by kernels_compile.py.

Blocks follow from registers, shared memory and threads by the rules of cuda_occupancy.h in CUDA's run-time package,
with the numbers of "Technical Specifications per Compute Capability" in the CUDA C++ Programming Guide. They are
what fits at once if a block has the most threads that the kernel is compiled for; nothing was measured.
"""

import re
from collections import Counter, namedtuple

# What the library compiles for on A100, on RTX 40 and L40, on Hopper and on Blackwell, in the order of the ledger.
ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_100")


def architectures_of(text):
    """The architectures that a unit is compiled for: one that its first line names, else all."""
    only = re.match(r"// for (\w+) alone\n", text)
    return (only[1],) if only else ARCHITECTURES


# What a multiprocessor holds of warps, of blocks, and of shared memory in bytes. One block may have all the memory.
Multiprocessor = namedtuple("Multiprocessor", "warps blocks shared")
MULTIPROCESSORS = {
    "sm_80": Multiprocessor(64, 32, 164 << 10),
    "sm_89": Multiprocessor(48, 24, 100 << 10),
    "sm_90a": Multiprocessor(64, 32, 228 << 10),
    "sm_100": Multiprocessor(64, 32, 228 << 10),
}
# The same for all of them: registers of a multiprocessor and of a block; the units in which registers of a warp and
# shared memory of a block are allocated; shared memory that the system takes of each block; parts of a multiprocessor,
# each with registers and warps of its own.
REGISTERS, REGISTER_UNIT, SHARED_UNIT, SYSTEM_SHARED, PARTS, WARP = 65536, 256, 128, 1024, 4, 32


def up(number, unit):
    """The next multiple of a unit."""
    return -(-number // unit) * unit


def blocks(architecture, registers, shared, threads):
    """Blocks of `threads` threads that a multiprocessor holds at once, each thread with `registers` registers and each
    block with `shared` bytes of shared memory; 0 if a block cannot be launched."""
    limits = MULTIPROCESSORS[architecture]
    warps = up(threads, WARP) // WARP
    registers_of_warp = up(registers * WARP, REGISTER_UNIT)
    shared_of_block = up(shared + SYSTEM_SHARED, SHARED_UNIT)
    # A launch is checked as if a block had equally many warps in every part.
    if registers_of_warp * up(warps, PARTS) > REGISTERS:
        return 0
    by_registers = REGISTERS // PARTS // registers_of_warp * PARTS // warps
    return min(limits.blocks, limits.warps // warps, by_registers, limits.shared // shared_of_block)


INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z]\w*)(\.[\w.]*)?")
# A wait for groups of products of a warpgroup, and how many may be under way after it.
PRODUCTS_WAIT = re.compile(r"\sWARPGROUP\.DEPBAR\.LE gsb0, 0x(\d)")
SECTION = re.compile(r"\.text\.(\w+):$")
# Instructions that are counted whatever their modifiers are, and those that are counted by the bits they access.
COUNTED = {"HMMA", "HGMMA", "UTMALDG", "LDSM", "LDGSTS", "MUFU", "BAR", "LDL", "STL", "LD", "ST"}
BY_WIDTH = {"LDG", "STG"}
WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}
# Instructions in which all lanes of a warp have to take part: never under a predicate.
COLLECTIVE = ("HMMA", "HGMMA", "LDSM")
# What decides how machine code is read, for the key of what was compiled before.
READING = (INSTRUCTION.pattern, SECTION.pattern, PRODUCTS_WAIT.pattern, sorted(COUNTED), sorted(BY_WIDTH), WIDTHS,
           COLLECTIVE)


def counts(disassembly):
    """What nvdisasm printed of a unit as {kernel: {instruction: number}}; functions that were not inlined belong to
    the kernel they are a part of."""
    kernels, kernel, is_beside = {}, None, False
    for line in disassembly.splitlines():
        if found := SECTION.match(line):
            kernel, is_beside = kernels.setdefault(found[1], Counter()), False
        elif kernel is not None and (found := PRODUCTS_WAIT.search(line)):
            is_beside = found[1] != "0"
        elif kernel is not None and (found := INSTRUCTION.match(line)):
            predicate, name, modifiers = found.groups()
            if name in COUNTED:
                kernel[name] += 1
                if name == "MUFU" and is_beside:
                    kernel["MUFU_beside"] += 1
                if predicate and name in COLLECTIVE:
                    kernel[f"predicated {name}"] += 1
            elif name in BY_WIDTH:
                bits = [WIDTHS[part] for part in (modifiers or "").split(".") if part in WIDTHS]
                kernel[f"{name}.{bits[0] if bits else 32}"] += 1
    return {kernel: dict(found) for kernel, found in kernels.items()}


def most_threads(ptx):
    """The most threads of a block, by kernel, from the text before assembly."""
    found = re.findall(r"\.entry (\w+)\([^)]*\)\s*((?:\.\w+ [^\n]*\n)*)", ptx)
    return {kernel: int(re.search(r"\.maxntid (\d+)", directives)[1]) for kernel, directives in found}


def shared_at_launch(text, kernel):
    """Bytes of shared memory that a launch of a kernel adds to its own: of attention on tensor cores, by `Plan` in its
    source. The others have at most 16 KiB, for blocks of at most 256 threads (norm_backward), or none."""
    if found := re.match(r"attention_wgmma_forward_(\d+)_", kernel):
        # Queries, two tiles of keys and of values, of 128 rows each, and room to begin at a multiple of 1024.
        return 5 * 128 * int(found[1]) * 2 + 1024
    found = re.match(r"attention_mma_(forward|backward_queries|backward_keys|wide_queries|wide_keys)_[a-z]+_(\d+)_",
                     kernel)
    if not found:
        return 0
    step, head = found[1], int(found[2])

    def plan(name):
        value = re.search(rf"constexpr int {name} = ([^;]+);", text)[1]
        if choice := re.fullmatch(r"Head <= (\d+)( \|\| Wide)? \? (\d+) : (\d+)", value):
            wide = choice[2] and step.startswith("wide")
            return int(choice[3] if head <= int(choice[1]) or wide else choice[4])
        if padded := re.fullmatch(r"Head \+ (\d+)", value):
            return head + int(padded[1])
        return int(value)

    # Bands of 16 rows for each of four warps; two buffers of two tiles that are streamed.
    bands, streamed, own = {"forward": ("kForwardBands", "kForwardKeys", 1),
                            "queries": ("kBackwardBands", "kQueryKeys", 2),
                            "keys": ("kBackwardBands", "kKeyQueries", 2)}[step.split("_")[-1]]
    return (own * 64 * plan(bands) + 4 * plan(streamed)) * plan("kRow") * 2


# The order of a line. What is 0 for every architecture is left out.
WIDE = (256, 128, 64, 32, 16, 8)
COLUMNS = ("threads", "registers", "blocks", "shared", "stack", "spill_stores", "spill_loads", "LDL", "STL", "HMMA",
           "HGMMA", "UTMALDG", "LDSM", "LDGSTS", "MUFU", "MUFU_beside", "BAR", *(f"LDG.{bits}" for bits in WIDE),
           *(f"STG.{bits}" for bits in WIDE), "LD", "ST")
# What takes local memory, and so a reason.
LOCAL = ("stack", "spill_stores", "spill_loads", "LDL", "STL")
HEADER = f"""\
# What NVRTC 13.0 makes of every CUDA kernel for {", ".join(ARCHITECTURES)}, in this order, once if all are equal;
# of attention_wgmma for sm_90a, which alone has its instructions.
# Written by scripts/claims/kernels-compile.sh --accept (docs/claims.md), but for the reasons, which it keeps.
#
# threads: the most of a block. registers: of a thread. blocks: how many a multiprocessor holds at once, computed.
# shared: bytes of a block, of attention_mma and attention_wgmma with those that the launch adds. stack, spill_*: bytes
# of a thread. The others are instructions in the machine code. HMMA: products on tensor cores, HGMMA: of a warpgroup;
# UTMALDG: copies of boxes of tensors; LDSM: ldmatrix; LDGSTS: cp.async; MUFU: powers of two, logarithms, reciprocals;
# MUFU_beside: MUFU while a product of a warpgroup is under way; BAR: barriers; LDG, STG: accesses to global memory, by
# bits; LD, ST: accesses to memory that is told apart at run time; LDL, STL: accesses to local memory. What is 0 is left
# out.

"""
DTYPES = re.compile(r"(.*)_(bf16|f16|f32|mixed)$")


def cells(values):
    """The columns of a kernel as text, from its numbers by architecture."""
    line = {}
    for column in COLUMNS:
        numbers = [values[architecture].get(column, 0) for architecture in ARCHITECTURES if architecture in values]
        if any(numbers):
            line[column] = "/".join(map(str, numbers if len(set(numbers)) > 1 else numbers[:1]))
    return line


def grouped(lines):
    """(name, line) of {kernel: line}, where kernels that differ only in their dtype and have equal lines are one:
    `norm_{bf16,f16}`."""
    forms = {}
    for kernel in sorted(lines):
        stem, dtype = DTYPES.match(kernel).groups() if DTYPES.match(kernel) else (kernel, "")
        forms.setdefault((stem, lines[kernel]), []).append(dtype)
    for (stem, line), dtypes in sorted(forms.items(), key=lambda form: (form[0][0], form[1])):
        if len(dtypes) > 1:
            yield f"{stem}_{{{','.join(dtypes)}}}", line
        else:
            yield f"{stem}_{dtypes[0]}" if dtypes[0] else stem, line


def text_of(kernels, reasons):
    """The ledger: a line for each kernel, and below it the reason of one that takes local memory.

    `kernels` is {kernel: {architecture: {column: number}}}, `reasons` {kernel: text}."""
    lines = {}
    for kernel, values in kernels.items():
        line = cells(values)
        reason = reasons.get(kernel) if any(column in line for column in LOCAL) else None
        lines[kernel] = ", ".join(f"{column} {value}" for column, value in line.items())
        lines[kernel] += f"\n    reason: {reason}" if reason else ""
    return HEADER + "".join(f"{name}: {line}\n" for name, line in grouped(lines))


def read(text):
    """A ledger's columns and reasons: {kernel: {column: text}}, {kernel: text}."""
    lines, reasons, names = {}, {}, []
    for line in text.splitlines():
        if line.startswith("    reason: "):
            reasons.update(dict.fromkeys(names, line.removeprefix("    reason: ").strip()))
        elif found := re.match(r"(\w+)(?:\{([\w,]+)\})?: (.*)", line):
            names = [found[1] + dtype for dtype in (found[2] or "").split(",")]
            line = dict(cell.split(" ", 1) for cell in found[3].split(", "))
            lines.update(dict.fromkeys(names, line))
    return lines, reasons


def changes(before, after):
    """What differs between two ledgers, one line for each kernel."""
    (before, _), (after, _) = read(before), read(after)
    lines = {}
    for kernel in before.keys() | after.keys():
        if kernel not in after:
            lines[kernel] = "in the ledger, but no unit has it"
        elif kernel not in before:
            lines[kernel] = "not in the ledger"
        else:
            old, new = before[kernel], after[kernel]
            lines[kernel] = ", ".join(f"{column} was {old.get(column, 0)} and is {new.get(column, 0)}"
                                      for column in COLUMNS if old.get(column) != new.get(column))
    return [f"{name}: {line}" for name, line in grouped({kernel: line for kernel, line in lines.items() if line})]


def broken_rules(kernels, reasons):
    """What no ledger may have, one line each."""
    wrong = []
    for kernel, values in sorted(kernels.items()):
        for architecture, numbers in values.items():
            for name in COLLECTIVE:
                if number := numbers.get(f"predicated {name}", 0):
                    wrong.append(f"{kernel} for {architecture}: {number} {name} under a predicate, but all lanes of a "
                                 "warp have to take part in it")
            if numbers["blocks"] == 0:
                wrong.append(f"{kernel} for {architecture}: a block of {numbers['threads']} threads does not fit")
        local = [column for column in LOCAL if column in cells(values)]
        if local and not reasons.get(kernel):
            wrong.append(f"{kernel}: it takes local memory ({', '.join(local)}) and the ledger gives no reason; add a "
                         "line `    reason: TEXT` below it")
    return wrong
