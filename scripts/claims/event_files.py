"""Event files of a run against the package tensorboard.

Usage: event_files.py SCRATCH RUNS COMMAND...

Starts COMMAND, a run with a record for each step that writes to SCRATCH/run, kills it some steps after its first
checkpoint, and starts it again. Then the package reads the event files, which must have every scalar of metrics.jsonl
that the resume did not overtake and no other, at the same steps, to the last bit of f32; and the same of what RUNS, the
runs program, exports. Prints scalars that agree, of all.
"""

import json
import math
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

# Steps of the first process: three after its second checkpoint.
KILL_AT = 23
LIMIT_SECONDS = 600


def records(path):
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


def train(command, metrics):
    """Two processes; the first one is killed. Returns the steps that the second one overtook."""
    process = subprocess.Popen(command, stdout=sys.stderr, stderr=sys.stderr)
    until = time.monotonic() + LIMIT_SECONDS
    while not any(record.get("step", 0) >= KILL_AT for record in records(metrics)):
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < until, "the run is too slow"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = max(record.get("step", 0) for record in records(metrics))
    subprocess.run(command, check=True, stdout=sys.stderr, stderr=sys.stderr)
    resumes = [record["step"] for record in records(metrics) if record["kind"] == "resume"]
    assert len(resumes) == 1 and resumes[0] < before, (resumes, before)
    return before - resumes[0]


def kept(metrics):
    """Records without those that a resume overtook."""
    found = []
    for record in records(metrics):
        if record["kind"] == "resume":
            found = [each for each in found if each.get("step", 0) <= record["step"]]
        found.append(record)
    return found


def f32(value):
    return math.nan if value == "NaN" else struct.unpack("f", struct.pack("f", float(value)))[0]


def expected(metrics):
    """Step and value of each scalar, by tag."""
    scalars = {}
    contexts = {"step": ("train", "time"), "eval": ("validation",) * 2, "test": ("test",) * 2}
    for record in kept(metrics):
        if record["kind"] not in contexts:
            continue
        context, of_time = contexts[record["kind"]]
        members = {(context, name): value for name, value in record.items()
                   if name not in ("kind", "step", "batch", "best", "time", "metrics")}
        members.update({(context, name): value for name, value in record.get("metrics", {}).items()})
        members.update({(of_time, name): value for name, value in record["time"].items()})
        for (context, name), value in members.items():
            scalars.setdefault(f"{context}/{name}", []).append((record["step"], f32(value)))
    return scalars


def read(directory):
    """The same by the package, and what it has of hyper-parameters and text."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    events = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    scalars = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    text = events.Tensors("recipe")[-1].tensor_proto.string_val[0].decode()
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    settings = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    return scalars, text, settings


def agree(ours, theirs):
    same = lambda a, b: a == b or (math.isnan(a[1]) and math.isnan(b[1]) and a[0] == b[0])
    count = 0
    for tag, values in ours.items():
        others = theirs.get(tag, [])
        if len(others) != len(values):
            print(f"{tag}: {len(values)} values, and the package reads {len(others)}", file=sys.stderr)
        count += sum(same(a, b) for a, b in zip(values, others))
    extra = {tag: len(values) - len(ours.get(tag, [])) for tag, values in theirs.items()}
    extra = {tag: number for tag, number in extra.items() if number > 0}
    assert not extra, f"the package reads scalars that metrics.jsonl has not: {extra}"
    return count


def main():
    scratch, runs, command = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    run = scratch / "run"
    overtaken = train(command, run / "metrics.jsonl")
    print(f"{overtaken} steps were overtaken", file=sys.stderr)
    exported = scratch / "exported"
    shutil.rmtree(exported, ignore_errors=True)
    subprocess.run([runs, "export", str(run), "--format", "tensorboard", "--output", str(exported)], check=True)
    ours = expected(run / "metrics.jsonl")
    total, count = 0, 0
    for directory in (run / "tensorboard", exported / "tensorboard"):
        theirs, text, settings = read(directory)
        total += sum(len(values) for values in ours.values())
        count += agree(ours, theirs)
        assert "[train]" in text, text
        assert settings["train.lr"].number_value > 0 and settings["data.task"].string_value, settings
    print(f"{count}/{total}")


if __name__ == "__main__":
    main()
