"""The page of `runs serve` and a report of `runs report` in a browser.

Usage: runs_page.py SCRATCH RUNS COMMAND...

Makes real runs by COMMAND, one of them with a name that is markup, one of them in progress while the page is looked at,
and 500 runs of 10,000 records, copies of one text with different beginnings. `runs_page.js` does the rest in Chromium,
at addresses that this script serves. Prints checks that hold / all, seconds to load 500 runs, seconds to index them.
"""

import json
import math
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

MANY, RECORDS = 500, 10_000
HOSTILE = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>"


def train(command, directory, *sets, wait=True):
    arguments = [*command, "--set", f"output.dir={directory}"]
    for each in sets:
        arguments += ["--set", each]
    process = subprocess.Popen(arguments, stdout=sys.stderr, stderr=sys.stderr)
    if wait:
        assert process.wait() == 0, directory
    return process


def real_runs(command, root):
    """Three finished runs and one that crashed: a learning rate at which it diverges ends it."""
    toml = lambda text: json.dumps(text)
    for name, lr, steps in (("baseline", 5e-5, 120), ("lr-2e-4", 2e-4, 120), ("lr-1e-5", 1e-5, 120)):
        train(command, root / name, f"train.lr={lr}", f"train.steps={steps}", f"run.name={toml('minilm ' + name)}",
              'run.tags=["quickstart", "lr sweep"]')
    train(command, root / "hostile", "train.steps=30", f"run.name={toml(HOSTILE)}", f"run.tags=[{toml(HOSTILE)}]")


def many_runs(root):
    rng = random.Random(1)
    lines = []
    for at in range(1, RECORDS + 1):
        loss = 2 + 6 * math.exp(-at / 1500) + rng.gauss(0, 0.1)
        record = {"kind": "step", "step": at, "epoch": at / 1000, "loss": round(loss, 5),
                  "grad_norm": round(1 + rng.random(), 5), "lr": 3e-4 * (1 - at / RECORDS), "samples": 32 * at,
                  "tokens": 4096 * at, "batch": "0" * 12,
                  "time": {"seconds": at * 0.5, "tokens_per_s": 8000 + round(rng.random() * 400, 2), "peak_share": 0.7,
                           "rss_bytes": 3 << 30, "peak_rss_bytes": 3 << 30, "step_seconds": 0.5, "data_seconds": 0.01,
                           "forward_seconds": 0.15, "backward_seconds": 0.3, "optimizer_seconds": 0.04}}
        lines.append(json.dumps(record, separators=(",", ":")))
    text = "\n".join(lines) + "\n"
    for number in range(MANY):
        run = root / f"{number // 100}" / f"run-{number:03}"
        run.mkdir(parents=True)
        begin = {"kind": "start", "version": "0.1.0",
                 "time": {"unix_seconds": 1.7e9 + number, "threads": 1, "ranks": 1}}
        end = {"kind": "end", "step": RECORDS, "reason": "steps", "time": {"seconds": RECORDS * 0.5}}
        pack = lambda record: json.dumps(record, separators=(",", ":")) + "\n"
        (run / "metrics.jsonl").write_text(pack(begin) + text + pack(end))
        (run / "recipe.toml").write_text(f'[train]\nlr = {number}.0\n\n[run]\ntags = ["sweep-{number % 7}"]\n')


class Server:
    """`runs serve` on a free port; its address and how long its first index took."""

    def __init__(self, runs, root):
        command = [runs, "serve", "--port", "0", "--repo", str(root)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        print(line.rstrip(), file=sys.stderr)
        found = re.match(r"(\d+) runs, (\d+) of them indexed in ([\d.]+) s: (http://\S+)", line)
        self.runs, self.read, self.seconds, self.address = found.groups()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def browse(what, **arguments):
    """What a part of runs_page.js prints: an object of checks and figures."""
    script = Path(__file__).with_suffix(".js")
    done = subprocess.run(["node", str(script), what, json.dumps(arguments)], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return {"checks": {f"{what} ends well": False}}
    return json.loads(done.stdout)


def main():
    scratch, runs, command = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    real, many = scratch / "real", scratch / "many"
    checks = {}
    many_runs(many)
    with Server(runs, many) as server:
        first = float(server.seconds)
        checks["500 runs are found and indexed"] = (server.runs, server.read) == (str(MANY), str(MANY))
    with Server(runs, many) as server:
        checks["an index is used again"] = server.read == "0"
        found = browse("many", address=server.address, runs=MANY)
        checks.update(found["checks"])
        load = found.get("seconds", math.inf) + float(server.seconds)
    real_runs(command, real)
    report = scratch / "report.html"
    subprocess.run([runs, "report", str(real / "baseline"), str(real / "lr-2e-4"), str(real / "hostile"), "--output",
                    str(report)], check=True, stdout=sys.stderr)
    checks["the report is below 1 MB"] = report.stat().st_size < 1_000_000
    live = train(command, real / "live", "train.steps=4000", 'run.name="in progress"', wait=False)
    try:
        while not (real / "live" / "metrics.jsonl").exists():
            assert live.poll() is None
            time.sleep(0.1)
        with Server(runs, real) as server:
            found = browse("real", address=server.address, hostile=HOSTILE, report=str(report),
                           pictures=os.environ.get("PICTURES", ""))
            checks.update(found["checks"])
    finally:
        live.kill()
        live.wait()
    checks["a deleted run is gone"] = not (real / "hostile").exists() and (real / "baseline").exists()
    for name, holds in checks.items():
        print(f"{'ok' if holds else 'FAILED':7} {name}", file=sys.stderr)
    print(f"{sum(checks.values())}/{len(checks)},{load:.2f}s_load,{first:.1f}s_first_index")


if __name__ == "__main__":
    main()
