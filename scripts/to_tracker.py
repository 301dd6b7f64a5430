"""Copies runs into a tracker: Weights & Biases, aim or trackio.

    python3 to_tracker.py wandb|aim|trackio RUN... --project NAME [--into DIR]

RUN is the output directory of a run, which may still be in progress. A call copies what metrics.jsonl has by then,
without what resumes overtook, as a new run of the tracker: each scalar under its name on the page of runs, such as
train/loss, in 64-bit floats; the settings of recipe.toml, such as train.lr; name and tags. The records
of a step become one row. Sample texts are not copied.

--into is the directory that the tracker keeps runs in: for wandb the one in which it makes `wandb/`, for aim the
repository; by default the current directory. trackio takes it from TRACKIO_DIR alone.

The tracker's package has to be installed, nothing else: wandb 0.31.0, aim 3.29.1 and trackio 0.43.0 are tried by
`scripts/claims.sh trackers`. No host is asked: wandb writes an offline run, and `wandb sync` sends it.
"""

import argparse
import json
import math
import sys
import uuid
from datetime import datetime, timezone
from pathlib import Path

# Context of a record's members, and of its time's.
CONTEXTS = {"step": ("train", "time"), "eval": ("validation",) * 2, "test": ("test",) * 2}
NOT_SCALARS = ("kind", "step", "batch", "best", "time", "metrics")
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def fail(place, reason, fix):
    """Ends the program with an error."""
    sys.exit(f"error: {place}\n  reason: {reason}\n  fix: {fix}")


def records(path):
    """The records without those that a resume overtook. A last line that is still being written is none."""
    found = []
    for line in path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            # A process that was cut off leaves a part of a line, which the next one ends.
            continue
        if record.get("kind") == "resume":
            found = [each for each in found if each.get("step", 0) <= record.get("step", 0)]
        found.append(record)
    return found


def scalars(record):
    """Names and values of a record's numbers."""
    context, of_time = CONTEXTS[record["kind"]]
    members = [(context, name, value) for name, value in record.items() if name not in NOT_SCALARS]
    members += [(context, name, value) for name, value in record.get("metrics", {}).items()]
    members += [(of_time, name, value) for name, value in record.get("time", {}).items()]
    for context, name, value in members:
        # Anything else, such as a list, is not a scalar.
        if isinstance(value, str):
            value = NOT_FINITE.get(value)
        if isinstance(value, (bool, int, float)):
            yield f"{context}/{name}", float(value)


def flat(table, prefix=""):
    """The settings by their keys, with dots between the names of tables."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


class Run:
    """What is copied: name, tags, settings by table, and of each step the Unix seconds and the scalars."""

    def __init__(self, directory):
        try:
            import tomllib

            found = records(directory / "metrics.jsonl")
            recipe = tomllib.loads((directory / "recipe.toml").read_text(encoding="utf-8"))
        except ImportError:
            fail("to_tracker.py needs Python 3.11 or later", f"this is {sys.version.split()[0]}", "use a newer Python")
        except (OSError, ValueError) as fault:
            fail(directory, fault, "name the output directory of a run")
        self.settings = recipe
        self.name = recipe.get("run", {}).get("name") or directory.resolve().name
        self.tags = recipe.get("run", {}).get("tags", [])
        begun, rows = 0.0, {}
        for record in found:
            time = record.get("time", {})
            begun = time.get("unix_seconds", begun)
            if record.get("kind") in CONTEXTS:
                at, values = rows.setdefault(record.get("step", 0), (begun + time.get("seconds", 0.0), {}))
                values.update(scalars(record))
        # Trackers want steps in order; the test of the best checkpoint comes after later steps.
        self.rows = [(step, at, values) for step, (at, values) in sorted(rows.items())]
        if not self.rows:
            fail(directory / "metrics.jsonl", "it has no scalars yet", "wait for the first record of a step")


def to_wandb(run, project, into):
    import wandb

    # Nothing about this machine or this script belongs to the run.
    settings = wandb.Settings(console="off", disable_code=True, disable_git=True, x_disable_meta=True,
                              x_disable_stats=True)
    into.mkdir(parents=True, exist_ok=True)
    copy = wandb.init(project=project, name=run.name, tags=run.tags, config=run.settings, dir=into, mode="offline",
                      settings=settings)
    for step, at, values in run.rows:
        copy.log({**values, "_timestamp": at}, step=step)
    copy.finish()


def to_aim(run, project, into):
    import aim

    into.mkdir(parents=True, exist_ok=True)
    copy = aim.Run(repo=str(into), experiment=project, system_tracking_interval=None, log_system_params=False,
                   capture_terminal_logs=False)
    copy.name = run.name
    for tag in run.tags:
        copy.add_tag(tag)
    copy["hparams"] = run.settings
    # Run.track gives each value the present time; what aim's own converters call takes times.
    for step, at, values in run.rows:
        for name, value in values.items():
            copy._tracker._track(value, at, name, step)
    copy.close()
    print(f"{into}: aim's SDK sees the run after `aim storage --repo {into} reindex` or `aim up`", file=sys.stderr)


def to_trackio(run, project, _):
    # trackio.log gives each row the present time; what trackio's own importers call takes times.
    from trackio.sqlite_storage import SQLiteStorage

    if run.name in SQLiteStorage.get_runs(project):
        fail(f"--project {project}", f"it has a run {run.name}, with which trackio would join this one",
             "name another project, or set run.name in recipe.toml")
    times = [datetime.fromtimestamp(at, timezone.utc).isoformat() for _, at, _ in run.rows]
    SQLiteStorage.bulk_log(project, run.name, [values for *_, values in run.rows], [step for step, *_ in run.rows],
                           times, config={**dict(flat(run.settings)), "_Created": times[0]}, run_id=uuid.uuid4().hex)


TRACKERS = {"wandb": to_wandb, "aim": to_aim, "trackio": to_trackio}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tracker", choices=TRACKERS)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="output directory of a run")
    parser.add_argument("--project", required=True)
    parser.add_argument("--into", type=Path, help="where wandb or aim keep runs (default: the current directory)")
    arguments = parser.parse_args()
    if arguments.into and arguments.tracker == "trackio":
        fail("--into", "trackio takes its directory from the environment", "set TRACKIO_DIR")
    for run in [Run(directory) for directory in arguments.runs]:
        try:
            TRACKERS[arguments.tracker](run, arguments.project, arguments.into or Path())
        except ImportError as fault:
            fail(f"the package {arguments.tracker}", fault, f"pip install {arguments.tracker}")
        print(f"{run.name}: {sum(len(values) for *_, values in run.rows)} scalars of {len(run.rows)} steps")


if __name__ == "__main__":
    main()
