"""Runs in trackers: what of docs/runs.md works with Weights & Biases, aim and trackio, and what does not.

Usage: trackers.py SCRATCH RUNS COMMAND...

Starts COMMAND, a run with a record for each step and the name "first try" that writes to SCRATCH/runs/first, kills it
after a checkpoint and starts it again, and gives it a loss that is NaN. Then each way into a tracker is tried, and
what the tracker has afterwards, read by its own package, is compared with the CSV that RUNS, the runs program, exports.
Nothing asks a host. Prints ways that do what the page states, of all.
"""

import csv
import json
import math
import os
import struct
import subprocess
import sys
from datetime import datetime
from pathlib import Path

from event_files import train

TO_TRACKER = Path(__file__).resolve().parent.parent / "to_tracker.py"
PROGRAMS = Path(sys.executable).parent
LOG_BLOCK = 32768


def program(name, *arguments):
    """Exit status and output of a program of the environment."""
    done = subprocess.run([PROGRAMS / name, *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def to_tracker(tracker, run, into=None):
    target = ["--into", into] if into else []
    status, output = program("python", TO_TRACKER, tracker, run, "--project", "claim", *target)
    if status:
        print(output, file=sys.stderr)
    return status == 0


def diverge(metrics):
    """Makes the last loss of training NaN, as in a run that diverges."""
    lines = metrics.read_text().splitlines()
    at = max(at for at, line in enumerate(lines) if json.loads(line)["kind"] == "step")
    lines[at] = json.dumps({**json.loads(lines[at]), "loss": "NaN"}, separators=(",", ":"))
    metrics.write_text("\n".join(lines) + "\n")


def exported(runs, run, scratch):
    """Name and step to value, by the program's CSV; a directory of the exported event files; the CSV."""
    table, events = scratch / "first.csv", scratch / "exported"
    for form, output in (("csv", table), ("tensorboard", events / "first")):
        subprocess.run([runs, "export", run, "--format", form, "--output", output], check=True)
    expected = {}
    with table.open(newline="") as rows:
        for row in csv.DictReader(rows):
            found = {name: float(value) for name, value in row.items() if name not in ("kind", "step") and value}
            expected.update({(name, int(row["step"])): value for name, value in found.items()})
    return expected, events, table


def same(expected, found, f32=False):
    """Whether each scalar was found once, to the last bit of f64 or f32, and no other."""
    def bits(value):
        return struct.pack("f" if f32 else "d", value)

    wrong = [key for key, value in expected.items()
             if len(found.get(key, [])) != 1 or math.isnan(value) != math.isnan(found[key][0])
             or not math.isnan(value) and bits(value) != bits(found[key][0])]
    extra = set(found) - set(expected)
    if wrong or extra:
        print(f"{len(wrong)} of {len(expected)} scalars differ, {len(extra)} are extra: {wrong[:3]}", file=sys.stderr)
    return not wrong and not extra


def gather(entries):
    found = {}
    for name, step, value in entries:
        found.setdefault((name, int(step)), []).append(float(value))
    return found


def of_wandb(into):
    """The records of the one offline run: a log of LevelDB after a header of 7 bytes, in it wandb's messages."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = into.glob("wandb/offline-run-*/*.wandb")
    data, at, message, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        left = LOG_BLOCK - at % LOG_BLOCK
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        message += data[at + 7:at + 7 + length]
        at += 7 + length
        # A whole record, or the last part of one.
        if kind in (1, 4):
            found.append(Record.FromString(message))
            message = b""
    rows = [{(item.key or item.nested_key[0]): float(json.loads(item.value_json)) for item in record.history.item}
            for record in found if record.WhichOneof("record_type") == "history"]
    (run,) = [record.run for record in found if record.WhichOneof("record_type") == "run"]
    settings = {update.key: json.loads(update.value_json) for update in run.config.update}
    return run, settings, rows


def wandb_ways(scratch, run, expected, times):
    into = scratch / "wandb"
    status, output = program("wandb", "sync", "--sync-tensorboard", run / "tensorboard")
    yield "wandb sync --sync-tensorboard is gone", status != 0 and "have been removed" in output
    status, output = program("wandb", "sync", "--yes", run / "tensorboard")
    yield "wandb sync finds no run in event files", "No runs to sync" in output
    assert to_tracker("wandb", run, into)
    copy, settings, rows = of_wandb(into)
    found = gather((name, row["_step"], value) for row in rows for name, value in row.items() if name[0] != "_")
    yield "to_tracker.py wandb: scalars", same(expected, found)
    yield "to_tracker.py wandb: times", {int(row["_step"]): row["_timestamp"] for row in rows} == times
    yield "to_tracker.py wandb: name, tags, settings", (
        copy.display_name, list(copy.tags), settings["data"]["task"]) == ("first try", ["a", "b"], "classification")
    status, output = program("wandb", "sync", "--dry-run", "--yes", *into.glob("wandb/offline-run-*"))
    yield "wandb sync would send it", status == 0 and "Would sync 1 run" in output


def of_aim(repository):
    """Name, step, value and time of the scalars, and the runs."""
    import aim

    status, output = program("aim", "storage", "--repo", repository, "reindex", "-y")
    assert status == 0, output
    repo = aim.Repo(str(repository))
    runs = [aim.Run(name, repo=repo, read_only=True) for name in repo.list_all_runs()]
    tables = [(metric.name, metric.dataframe()) for run in runs for metric in run.metrics()]
    return runs, [(name, *row) for name, table in tables
                  for row in zip(table["step"], table["value"], table["time"].map(lambda time: time.timestamp()))]


def convert(scratch, name, logs):
    repository = scratch / name
    repository.mkdir()
    assert program("aim", "init", "--repo", repository)[0] == 0
    status, output = program("aim", "convert", "--repo", repository, "tensorboard", "--logdir", logs)
    assert status == 0 and "conversion complete" in output, output
    return repository


def aim_ways(scratch, run, events, expected, times):
    _, found = of_aim(convert(scratch, "aim-exported", events))
    yield "aim convert tensorboard: scalars of exported files", same(expected, gather(row[:3] for row in found), True)
    _, found = of_aim(convert(scratch, "aim-whole", run.parent))
    found = gather(row[:3] for row in found)
    yield "aim convert tensorboard has one value of a step that ran twice", (
        set(expected) <= set(found) and all(len(values) == 1 for values in found.values()))
    repository = convert(scratch, "aim-inner", run / "tensorboard")
    yield "aim convert tensorboard passes over files at the top", not list(repository.glob(".aim/meta/chunks/*"))
    into = scratch / "aim"
    assert to_tracker("aim", run, into)
    (copy,), found = of_aim(into)
    yield "to_tracker.py aim: scalars", same(expected, gather(row[:3] for row in found))
    # Time zones are the machine's; the differences are not, and aim keeps microseconds.
    first = min(times)
    shift = {round(at - times[step] - (found[0][3] - times[found[0][1]]), 4) for _, step, _, at in found}
    yield "to_tracker.py aim: times", shift == {0.0} and first in times
    yield "to_tracker.py aim: name, tags, settings", (
        copy.name, sorted(copy.tags), copy["hparams", "data", "task"]) == ("first try", ["a", "b"], "classification")


def of_trackio(project):
    """Names and rows of the runs of a project, by trackio's own command."""
    status, output = program("trackio", "query", "project", "--project", project, "--sql",
                             "SELECT run_name, step, timestamp, metrics FROM metrics", "--json")
    assert status == 0, output
    return json.loads(output)


def trackio_ways(scratch, run, events, table, expected, times, overtaken):
    import trackio

    # Printed by trackio; stdout is for the figure.
    to_stdout, sys.stdout = sys.stdout, sys.stderr
    trackio.import_csv(str(table), project="csv", name="first")
    trackio.import_tf_events(str(events), project="exported")
    trackio.import_tf_events(str(run.parent), project="whole")
    sys.stdout = to_stdout
    names = {name for _, _, _, metrics in rows_of("csv") for name in metrics}
    cut = {name for name, _ in expected} - names
    yield "trackio.import_csv cuts names to ten characters", "validation/accuracy" in cut and max(map(len, names)) <= 13
    found = gather((name, step, value) for _, step, _, metrics in rows_of("exported")
                   for name, value in metrics.items())
    yield "trackio.import_tf_events: scalars of exported files", same(expected, found, True)
    found = gather((name, step, value) for _, step, _, metrics in rows_of("whole") for name, value in metrics.items())
    twice = sum(len(values) == 2 for (name, _), values in found.items() if name == "train/loss")
    # A process that is killed may have written the record of its last step, but not yet the events.
    yield "trackio.import_tf_events has what a resume overtook, too", 0 < twice and overtaken - twice in (0, 1)
    assert to_tracker("trackio", run)
    assert not to_tracker("trackio", run), "a second run of the same name"
    rows = rows_of("claim")
    found = gather((name, step, value) for _, step, _, metrics in rows for name, value in metrics.items())
    yield "to_tracker.py trackio: scalars", same(expected, found)
    seen = {step: datetime.fromisoformat(time).timestamp() for _, step, time, _ in rows}
    yield "to_tracker.py trackio: times", all(abs(seen[step] - at) < 1e-5 for step, at in times.items())
    (copy,) = trackio.Api().runs("claim")
    yield "to_tracker.py trackio: name, tags, settings", (
        copy.name, copy.config["run.tags"], copy.config["data.task"]) == ("first try", ["a", "b"], "classification")


def rows_of(project):
    return [(row["run_name"], row["step"], row["timestamp"], json.loads(row["metrics"]))
            for row in of_trackio(project)["rows"]]


def times_of(events):
    """Step to Unix seconds of its first record, by the exported event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (directory,) = events.glob("*/tensorboard")
    reader = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    reader.Reload()
    times = {}
    for event in (event for tag in reader.Tags()["scalars"] for event in reader.Scalars(tag)):
        times[event.step] = min(event.wall_time, times.get(event.step, math.inf))
    return times


def main():
    scratch, runs, command = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    # No network, no accounts, and nothing of the user's own trackers.
    os.environ.update(HOME=str(scratch / "home"), WANDB_MODE="offline", WANDB_ERROR_REPORTING="false",
                      WANDB_SILENT="false", HF_HUB_OFFLINE="1", TRACKIO_DIR=str(scratch / "trackio"),
                      TF_CPP_MIN_LOG_LEVEL="3")
    (scratch / "home").mkdir()
    run = scratch / "runs" / "first"
    overtaken = train(command, run / "metrics.jsonl")
    diverge(run / "metrics.jsonl")
    expected, events, table = exported(runs, run, scratch)
    times = times_of(events)
    print(f"{len(expected)} scalars, {overtaken} steps were overtaken", file=sys.stderr)
    checks = [*wandb_ways(scratch, run, expected, times), *aim_ways(scratch, run, events, expected, times),
              *trackio_ways(scratch, run, events, table, expected, times, overtaken)]
    for name, holds in checks:
        print(f"{'ok     ' if holds else 'FAILED '} {name}", file=sys.stderr)
    print(f"{sum(holds for _, holds in checks)}/{len(checks)}")


if __name__ == "__main__":
    main()
