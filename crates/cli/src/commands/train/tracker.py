"""Logs the steps on standard input, a line each, to wandb or mlflow: `tracker.py PACKAGE PLACE RUN`.

Which run it is there stands in the run's folder, so that a resumed one goes on.
"""

import json
import os
import sys

# The folder here is no place for packages: wandb keeps its runs in one of its own name.
sys.path[:] = filter(None, sys.path)


def known(run, package, id=None):
    """The run's id there, kept in the folder."""
    path = os.path.join(run, "tracking.json")
    try:
        with open(path) as file:
            ids = json.load(file)
    except (OSError, ValueError):
        ids = {}
    if id is not None:
        ids[package] = id
        with open(path + ".new", "w") as file:
            json.dump(ids, file)
        os.replace(path + ".new", path)
    return ids.get(package)


def begin(package, place, run):
    name, id = os.path.basename(os.path.abspath(run)), known(run, package)
    with open(os.path.join(run, "config.json")) as file:
        config = json.load(file)
    if package == "wandb":
        import wandb

        made = wandb.init(project=place, name=name, id=id, resume="allow" if id else None, config=config)
        known(run, package, made.id)
        return lambda step, values: made.log(values, step=step), made.finish
    import mlflow

    mlflow.set_experiment(place)
    made = mlflow.start_run(run_id=id) if id else mlflow.start_run(run_name=name)
    known(run, package, made.info.run_id)
    if not id:
        mlflow.log_dict(config, "config.json")
    return lambda step, values: mlflow.log_metrics(values, step=step), mlflow.end_run


def main():
    log, end = begin(*sys.argv[1:4])
    for line in sys.stdin:
        found = json.loads(line)
        log(found["step"], found["values"])
    end()


main()
