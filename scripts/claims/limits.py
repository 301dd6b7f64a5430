"""Trains and converts a tiny BERT under limits of the process: on the size of files, on the address space, on the
number of processes and threads. Every trial has to end with exit code 0, or with 5 and the limit's name. Prints `FIGURE
ok|short`, the figure without spaces.

    limits.py BIN WORK

BIN holds the programs, WORK is an empty directory. Called by limits.sh."""

import glob
import os
import shutil
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
GOLDEN = os.path.join(ROOT, "crates", "model-center", "tests", "golden", "bert_a", "nsp")
WORDS = "good bad fine poor the a film was is it in of to and not very plot cast end .".split()
VOCABULARY = 101
MIB = 1 << 20

FILE_SIZES = [0, 1_000, 10_000, 30_000, 60_000, 100_000]
ADDRESSES = [64, 120, 140, 150, 160, 170, 180, 200, 250, 300, 500, 800]
# The threads of a run of two ranks are about ten.
PROCESSES = [1, 2, 4, 7]
REPEATS = 4
SECONDS = 120


def prepare(work):
    """A model, data, and the arguments of a run that saves checkpoints on the way."""
    model = os.path.join(work, "model")
    os.makedirs(model)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(os.path.join(GOLDEN, name), model)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + WORDS
    words += [f"[unused{i}]" for i in range(VOCABULARY - len(words))]
    with open(os.path.join(model, "vocab.txt"), "w", encoding="utf-8") as file:
        file.write("".join(word + "\n" for word in words))
    for name, count in (("train.jsonl", 64), ("eval.jsonl", 8)):
        with open(os.path.join(work, name), "w", encoding="utf-8") as file:
            for i in range(count):
                adjective, label = (("good", "positive"), ("bad", "negative"))[i % 2]
                start = ("the film was", "it is a", "the plot is very")[i % 3]
                file.write(f'{{"text": "{start} {adjective}", "label": "{label}"}}\n')
    return [
        "model.path=model", "data.task=classification", "data.train=train.jsonl", "data.eval=eval.jsonl",
        "data.max_length=16",
        "train.batch_size=4", "train.micro_batch_size=2", "train.steps=20", "train.lr=1e-3", "parallel.zero=3",
        "device.threads=1", "device.name=cpu", "checkpoint.every=4 steps", "eval.every=10 steps", "log.every=1",
    ]


def run(work, command, limit):
    """Exit code, or minus the signal; seconds; standard error."""
    began = os.times().elapsed
    try:
        done = subprocess.run(limit + command, cwd=work, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "timeout", SECONDS, ""
    return done.returncode, os.times().elapsed - began, done.stderr


class Trials:
    def __init__(self):
        self.done, self.refused, self.bad = 0, 0, []

    def judge(self, name, outcome, names):
        """With exit code 5, the output must contain one of `names`."""
        code, seconds, stderr = outcome
        last = stderr.strip().replace("\n", " | ")[-300:]
        print(f"{name}: {code} after {seconds:.1f} s {last if code else ''}", file=sys.stderr)
        if code == 0:
            self.done += 1
        elif code == 5 and any(name in stderr for name in names):
            self.refused += 1
        else:
            self.bad.append(name)


def prlimit(what, amount):
    return ["prlimit", f"--{what}={amount}"]


def starts(work, program, limit):
    """Whether the loader can start the program at all under a limit: with it, help is printed."""
    return run(work, [program, "--help"], limit)[0] == 0


def own_threads():
    """Threads of this user, which a limit on processes counts."""
    threads = 0
    for status in glob.glob("/proc/[0-9]*/status"):
        try:
            with open(status, encoding="utf-8") as file:
                fields = dict(line.split(":", 1) for line in file if ":" in line)
        except OSError:
            continue
        if int(fields["Uid"].split()[0]) == os.getuid():
            threads += int(fields["Threads"])
    return threads


def main():
    programs, work = sys.argv[1], sys.argv[2]
    sets = prepare(work)
    finetune, convert = os.path.join(programs, "finetune"), os.path.join(programs, "convert")
    count = 0

    def output():
        nonlocal count
        count += 1
        return f"out-{count}"

    def training(ranks, out):
        words = [word for each in sets + [f"output.dir={out}"] for word in ("--set", each)]
        return [finetune, "--ranks", str(ranks)] + words

    files, addresses, processes = Trials(), Trials(), Trials()
    for amount in FILE_SIZES:
        limit = prlimit("fsize", amount)
        # With several ranks the memory that they share is the first file.
        ranks = 1 + FILE_SIZES.index(amount) % 2
        files.judge(f"finetune, files of {amount} bytes", run(work, training(ranks, output()), limit), ["RLIMIT_FSIZE"])
        out = output()
        files.judge(f"convert, files of {amount} bytes", run(work, [convert, "model", out, "--dtype", "f32"], limit),
                    ["RLIMIT_FSIZE"])
        if os.path.exists(os.path.join(work, out)) and not os.path.exists(os.path.join(work, out, "model.safetensors")):
            files.bad.append(f"convert, files of {amount} bytes: a partial directory")
    for amount in ADDRESSES:
        limit = prlimit("as", amount * MIB)
        if not starts(work, finetune, limit):
            print(f"address space of {amount} MiB: less than the loader needs", file=sys.stderr)
            continue
        for _ in range(REPEATS):
            outcome = run(work, training(2, output()), limit)
            addresses.judge(f"finetune, address space of {amount} MiB", outcome, ["RLIMIT_AS"])
    # The limit does not bind root, so another user runs the program, who has no other processes.
    user = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"] if os.geteuid() == 0 else []
    used = 0 if user else own_threads()
    os.chmod(work, 0o777)
    for amount in PROCESSES:
        for _ in range(REPEATS):
            outcome = run(work, training(2, output()), prlimit("nproc", used + amount) + user)
            processes.judge(f"finetune, {amount} processes", outcome, ["RLIMIT_NPROC"])

    kinds = {"files": files, "addresses": addresses, "processes": processes}
    parts = [f"{name}:{kind.done}_done,{kind.refused}_refused,{len(kind.bad)}_bad" for name, kind in kinds.items()]
    for kind in kinds.values():
        for name in kind.bad:
            print(f"BAD {name}", file=sys.stderr)
    ok = all(not kind.bad and kind.refused > 0 for kind in kinds.values()) and addresses.done > 0
    print(";".join(parts), "ok" if ok else "short")


if __name__ == "__main__":
    main()
