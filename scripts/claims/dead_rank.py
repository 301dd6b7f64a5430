"""Loses ranks of a training run and measures how long the others take to report it and end.

    python3 dead_rank.py SCRATCH COMMAND...

COMMAND is a finetune of three ranks that would train for minutes. For each kind of job it is started again and again:
once it has trained some steps, one of its processes gets SIGKILL or SIGSTOP. Two times count from there: until the last
of the others has named the lost rank in an error, and until all of them have ended (of MPI: until mpirun has). Prints
`KILLED,STOPPED ok|short`, each the worst seconds of both, `MESSAGE/END`. Called by dead-rank.sh.

mpirun ends all processes when one was killed, with SIGTERM first and SIGKILL a second later. At SIGTERM a finetune
ends after the current step, so that its own message is printed within that second.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RANKS = 3
KILLS, STOPS = 5, 2
# What ranks that share memory and ranks of MPI wait for others by default.
DEADLINE = 30.0
# Most seconds until the message and until the end. A stopped rank is named at the deadline, a killed one long before
# it.
MAX = {signal.SIGKILL: (5.0, 5.0), signal.SIGSTOP: (DEADLINE + 1.0, DEADLINE + 5.0)}


def say(text):
    print(text, file=sys.stderr, flush=True)


class Job:
    """A run of three ranks whose output goes to files."""

    def __init__(self, kind, directory, command):
        self.kind, self.directory = kind, directory
        directory.mkdir()
        self.run = directory / "run"
        command = [*command, "--set", f"output.dir={self.run}"]
        if kind == "mpi":
            root = ["--allow-run-as-root"] if os.getuid() == 0 else []
            launch = ["mpirun", *root, "--oversubscribe", "--output-filename", str(directory / "ranks"), "-n",
                      str(RANKS)]
            self.started = [self.start("mpirun", [*launch, *command, "--comm", "mpi"], {})]
        else:
            port = str(20000 + (os.getpid() * 7 + int(time.time())) % 20000)
            names = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": port}
            own = [{**names, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(RANKS)]
            self.started = [self.start(str(rank), command, own[rank]) for rank in range(RANKS)]

    def start(self, name, command, variables):
        with open(self.directory / name, "wb") as output:
            return subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                                    env={**os.environ, **variables})

    def wait_for_steps(self):
        end = time.monotonic() + 120
        log = self.run / "metrics.jsonl"
        while not (log.exists() and log.read_bytes().count(b"\n") >= 6):
            if time.monotonic() > end or any(process.poll() is not None for process in self.started):
                raise RuntimeError(f"the run did not start:\n{self.text()}")
            time.sleep(0.02)

    def process_of(self, rank):
        if self.kind != "mpi":
            return self.started[rank].pid
        for entry in Path("/proc").iterdir():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
            except (OSError, IndexError):
                continue
            if f"OMPI_COMM_WORLD_RANK={rank}".encode() in variables and parent == str(self.started[0].pid):
                return int(entry.name)
        raise RuntimeError(f"rank {rank} has no process")

    def stderr_of(self, rank):
        if self.kind == "mpi":
            files = list(self.directory.glob(f"ranks/**/rank.{rank}/std*"))
        else:
            files = [self.directory / str(rank)]
        return "".join(file.read_text(errors="replace") for file in files)

    def text(self):
        return "\n".join(f"rank {rank}: {self.stderr_of(rank)}" for rank in range(RANKS)) + (
            (self.directory / "mpirun").read_text(errors="replace") if self.kind == "mpi" else "")

    def end(self):
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


def trial(kind, how, lost, directory, command):
    """Seconds until all others had named the lost rank and until they had ended, and whether they did both."""
    job = Job(kind, directory, command)
    try:
        job.wait_for_steps()
        pid = job.process_of(lost)
        others = job.started if kind == "mpi" else [job.started[rank] for rank in range(RANKS) if rank != lost]
        begin = time.monotonic()
        os.kill(pid, how)
        silent, message, end = [rank for rank in range(RANKS) if rank != lost], None, None
        while end is None and time.monotonic() - begin < DEADLINE + 15:
            # In this order, so that a last look at the messages comes after the end.
            ended = all(process.poll() is not None for process in others)
            silent = [rank for rank in silent if not names(job.stderr_of(rank), lost)]
            now = time.monotonic() - begin
            if message is None and not silent:
                message = now
            if ended:
                end = now
            time.sleep(0.01)
        codes = [process.poll() for process in others]
        ended = all(code not in (None, 0) for code in codes)
        now = time.monotonic() - begin
        message, end = (now if seconds is None else seconds for seconds in (message, end))
        say(f"{kind} {how.name} of rank {lost}: message {message:.2f} s, end {end:.2f} s, exit codes {codes}, silent "
            f"{silent}")
        for line in job.stderr_of((lost + 1) % RANKS).splitlines():
            if "error[" in line:
                say(f"    {line}")
        if silent:
            say(job.text())
        return message, end, ended and not silent
    finally:
        job.end()


def names(text, lost):
    return any("error[" in line and f"rank {lost}" in line for line in text.splitlines())


def main():
    scratch, command = Path(sys.argv[1]), sys.argv[2:]
    worst, good = {how: (0.0, 0.0) for how in MAX}, True
    for kind in ("host", "mpi"):
        for how, trials in ((signal.SIGKILL, KILLS), (signal.SIGSTOP, STOPS)):
            for number in range(trials):
                directory = scratch / f"{kind}-{how.name}-{number}"
                # Every rank has its turn, the first one, which writes, too.
                message, end, well = trial(kind, how, (number + 1) % RANKS, directory, command)
                worst[how] = (max(worst[how][0], message), max(worst[how][1], end))
                good = good and well and message <= MAX[how][0] and end <= MAX[how][1]
    figure = ",".join(f"{worst[how][0]:.1f}/{worst[how][1]:.1f}s" for how in MAX)
    print(f"{figure} {'ok' if good else 'short'}")


if __name__ == "__main__":
    main()
