"""Kills ranks of a start at random moments and starts them again under the same name.

    python3 start_again.py SCRATCH MODEL FINETUNE [TRIALS [SEED]]

MODEL is the directory of a tiny BERT without a vocabulary. In turn both ranks get SIGKILL, or one of them after both
were seen to hold their ranks: a rank whose program has not begun is one that never comes, for which the other waits.
They are told of their job by RANK, WORLD_SIZE and MASTER_PORT or by Slurm's variables. Half of the moments are in the
0.15 s in which ranks join, half in the first second. Prints `TRAINED/ALL,SECONDS ok|short`: starts after a kill that
trained to their end and left nothing in /dev/shm, and the longest time from a kill until the other rank had ended.
Called by start-again.sh.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

JOINING, FIRST = 0.15, 1.0
# Longer than the 30 s for which ranks wait for silent ones.
LONGEST = 60.0
# A rank that was left ends long before that.
SOON = 5.0
SHARED = Path("/dev/shm")

RECIPE = """[model]
path = "model"
[data]
task = "classification"
train = "train.jsonl"
max_length = 16
[train]
steps = 200
batch_size = 4
micro_batch_size = 2
lr = 1e-3
[output]
dir = "run"
[device]
threads = 1
"""


def say(text):
    print(text, file=sys.stderr, flush=True)


def prepare(directory, model):
    shutil.copytree(model, directory / "model")
    vocabulary = "[PAD] [UNK] [CLS] [SEP] [MASK] the film was good bad".split()
    vocabulary += [f"[unused{number}]" for number in range(101 - len(vocabulary))]
    (directory / "model" / "vocab.txt").write_text("".join(f"{token}\n" for token in vocabulary))
    lines = [json.dumps({"text": f"the film was {label}", "label": label}) for label in ["good", "bad"] * 8]
    (directory / "train.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (directory / "recipe.toml").write_text(RECIPE)


def variables(launcher, number, rank):
    if launcher == "slurm":
        return {"SLURM_JOB_ID": str(number), "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": str(rank),
                "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}
    return {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(number)}


class Start:
    """Two ranks."""

    def __init__(self, directory, program, launcher, number, output):
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PMI"))}
        self.name = f"bmtrain-plain-{number}" if launcher == "plain" else f"bmtrain-slurm-{number}-0"
        self.texts = [directory / f"{output}-{rank}" for rank in range(2)]
        self.ranks = []
        for rank, text in enumerate(self.texts):
            with open(text, "wb") as file:
                self.ranks.append(subprocess.Popen(
                    [program, "--recipe", "recipe.toml", "--set", f"output.dir={output}"], cwd=directory, stdout=file,
                    stderr=file,
                    stdin=subprocess.DEVNULL, env={**outside, **variables(launcher, number, rank)}))

    def wait_for_ranks(self):
        end = time.monotonic() + LONGEST
        while not all((SHARED / f"{self.name}@{rank}").exists() for rank in range(2)):
            if any(process.poll() is not None for process in self.ranks) or time.monotonic() >= end:
                break
            time.sleep(0.002)

    def wait(self):
        """Exit codes; a rank that does not end is killed."""
        end = time.monotonic() + LONGEST
        for process in self.ranks:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return [process.returncode for process in self.ranks]

    def text(self):
        return "\n".join(text.read_text(errors="replace") for text in self.texts)


def trial(number, directory, program, job, chance):
    """Seconds until the rank that was left had ended, and whether it and the next start ended as they should."""
    launcher, killed = ("plain", "slurm")[number % 2], ((0, 1), (0,), (1,))[number // 2 % 3]
    moment = chance.uniform(0, JOINING if chance.random() < 0.5 else FIRST)
    first = Start(directory, program, launcher, job, f"run{number}")
    if len(killed) == 1:
        first.wait_for_ranks()
    time.sleep(moment)
    for rank in killed:
        first.ranks[rank].send_signal(signal.SIGKILL)
    begin = time.monotonic()
    codes = first.wait()
    seconds = time.monotonic() - begin if len(killed) == 1 else 0.0
    # A run that was over before the kill has the code 0 on both ranks.
    left = [codes[rank] for rank in range(2) if rank not in killed]
    is_noticed = seconds < SOON and (codes == [0, 0] or all(code == 6 for code in left))
    output = first.text()
    second = Start(directory, program, launcher, job, f"run{number}")
    again = second.wait()
    there = sorted(path.name for path in SHARED.glob("bmtrain-*") if str(job) in path.name)
    is_well = is_noticed and again == [0, 0] and not there
    say(f"{number}: {launcher}, killed {killed} after {moment:.3f} s, codes {codes} in {seconds:.2f} s; then {again} "
        f"{there}")
    if not is_well:
        say(output)
        say(second.text())
    shutil.rmtree(directory / f"run{number}", ignore_errors=True)
    return seconds, is_well


def main():
    directory, model, program = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    trials = int(sys.argv[4]) if len(sys.argv) > 4 else 200
    seed = int(sys.argv[5]) if len(sys.argv) > 5 else time.time_ns() % 1_000_000
    say(f"seed {seed}")
    prepare(directory, model)
    chance, job = random.Random(seed), 20000 + os.getpid() % 20000
    results = [trial(number, directory, program, job, chance) for number in range(trials)]
    good, longest = sum(is_well for _, is_well in results), max(seconds for seconds, _ in results)
    print(f"{good}/{trials},{longest:.1f}s {'ok' if good == trials else 'short'}")


main()
