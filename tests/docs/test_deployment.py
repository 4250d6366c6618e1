"""The files of configs/deploy are what the systems that run them take: by their schemas, and by the shell."""

import copy
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from bridge_data.configs import DataConfig
from recipes.demo.compare import read_run
from tests.docs.pages import ROOT
from tests.recipes.vlm_job import arguments as job_arguments
from tests.recipes.vlm_job import make_inputs

DEPLOY = ROOT / "configs" / "deploy"

SBATCH = {
    "job-name",
    "nodes",
    "ntasks-per-node",
    "gpus-per-node",
    "cpus-per-task",
    "mem",
    "time",
    "signal",
    "requeue",
    "open-mode",
    "output",
}
"""Options of `sbatch` that a script may have."""


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def schema(name: str) -> Any:
    return json.loads((ROOT / "tests" / "docs" / "schemas" / f"{name}.json").read_text())


def settings(script: str) -> list[tuple[str, str]]:
    """The settings of the data that a script gives on its command lines."""
    return re.findall(r"--data\.([a-z_]+)=([\w/:.-]+)", script)


def scripts() -> dict[str, str]:
    """What a shell runs of each file."""
    skypilot = read("skypilot.yaml")
    return {
        "torchrun.sh": (DEPLOY / "torchrun.sh").read_text(),
        "slurm.sbatch": (DEPLOY / "slurm.sbatch").read_text(),
        "skypilot.yaml setup": skypilot["setup"],
        "skypilot.yaml run": skypilot["run"],
    }


def test_scripts_are_bash() -> None:
    for name, script in scripts().items():
        checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, ""), name


def test_slurm_knows_the_directives() -> None:
    script = (DEPLOY / "slurm.sbatch").read_text()
    head, _, body = script.partition("\nset -euo pipefail\n")
    directives = re.findall(r"^#SBATCH --([\w-]+)(?:=\S+)?$", head, re.MULTILINE)
    assert len(directives) == head.count("#SBATCH ") >= 8  # each of the right form, before the first command
    assert set(directives) <= SBATCH
    assert "#SBATCH" not in body


STAND_INS = {
    "srun": 'trap "echo saved; exit 1" TERM; echo $$ > step; echo "$NNODES at $MASTER"; while sleep 0.1; do :; done',
    "scancel": 'echo "scancel $*"; kill -TERM "$(cat step)"',
    "scontrol": 'if [ "$1" = show ]; then echo node0; else echo "scontrol $*"; fi',
}
"""What the script calls of Slurm, as far as it needs it."""


def test_slurm_job_saves_and_is_queued_again(tmp_path: Path) -> None:
    for name, body in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[0-1]"}
    environment = {**os.environ, **slurm, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", str(DEPLOY / "slurm.sbatch")]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "2 at node0\n"
        job.send_signal(signal.SIGUSR1)
        assert job.stdout.read() == "scancel --signal=TERM 7\nsaved\nscontrol requeue 7\n"
    assert job.returncode == 0


@pytest.mark.parametrize(("file", "name"), [("pytorchjob.yaml", "pytorchjob"), ("skypilot.yaml", "skypilot_task")])
def test_file_has_its_schema(file: str, name: str) -> None:
    jsonschema.Draft202012Validator(schema(name)).validate(read(file))


def test_schemas_notice_mistakes() -> None:
    job, task = read("pytorchjob.yaml"), read("skypilot.yaml")
    container = copy.deepcopy(job)
    container["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    mode = copy.deepcopy(task)
    mode["file_mounts"]["/checkpoints"]["mode"] = "READ"
    for wrong, name in [(container, "pytorchjob"), (mode, "skypilot_task"), ({**task, "nodes": 2}, "skypilot_task")]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema(name)).validate(wrong)


def test_parts_of_the_job_fit_together() -> None:
    """What no schema says: names that must agree, and numbers that must fit."""
    job = read("pytorchjob.yaml")
    spec = job["spec"]
    worker = spec["pytorchReplicaSpecs"]["Worker"]
    pod = worker["template"]["spec"]
    (container,) = pod["containers"]
    assert (job["apiVersion"], job["kind"], container["name"]) == ("kubeflow.org/v1", "PyTorchJob", "pytorch")
    elastic = spec["elasticPolicy"]
    assert elastic["minReplicas"] <= worker["replicas"] <= elastic["maxReplicas"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == spec["nprocPerNode"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_recipe_takes_the_settings() -> None:
    given = [*settings(" ".join(scripts().values())), *settings(" ".join(pod_command()))]
    assert {name for name, _ in given} == {"path", "num_lanes"} and len(given) >= 4
    config = DataConfig.read(ROOT / "configs" / "llava.yaml", [f"{name}={value}" for name, value in given])
    assert config.run_options.get("num_lanes") == 1536


def pod_command() -> list[str]:
    worker = read("pytorchjob.yaml")["spec"]["pytorchReplicaSpecs"]["Worker"]
    return worker["template"]["spec"]["containers"][0]["command"]


@pytest.mark.slow
def test_script_trains_on_two_ranks_and_resumes(tmp_path: Path) -> None:
    inputs = make_inputs(tmp_path)
    config, run, *arguments = job_arguments(inputs, tmp_path / "run", data_global_batch_size=2)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "CONFIG": config,
        "DATA": "data/blend.yaml",
        "RUN": run,
        "PROGRAM": "recipes.demo.on_cpu",
        "GPUS": "2",
        "RESTARTS": "0",
        "PORT": str(port),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }

    for steps in (1, 2):
        command = [str(DEPLOY / "torchrun.sh"), *arguments, f"--train_steps={steps}"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
    assert list(read_run(Path(run))) == [1, 2]
