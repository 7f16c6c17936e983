"""`ottla spark submit`: a Spark program, with this Python and this package on its workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from ottla.cli.errors import CommandFailed, UsageError

SHIPPED: Final = "flights"  # a program that is run by its name

app = typer.Typer(
    help="Run a Spark program that reads or writes topics.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _group() -> None:
    """Keeps `submit` a command of its own: a Typer app with one command would become that command."""


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def submit(
    job: Annotated[Path, typer.Argument(metavar="JOB.py", help="The program; `flights` comes with Ottla.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGUMENT]...", help="What it is given.")] = None,
    master: Annotated[str, typer.Option("--master", help="Spark's: local[*], spark://host:7077.")] = "local[*]",
    configuration: Annotated[list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="Of Spark; may be repeated.")] = None,
) -> None:
    """Run a program with spark-submit. Its workers run this Python; those of a cluster get this package too.

    What the package stands on (pyarrow, numpy, …) has to be installed where the workers are.

    Examples:

    - `ottla spark submit hourly_counts.py --bootstrap-server 127.0.0.1:9092`
    - `ottla spark submit --master spark://spark:7077 hourly_counts.py`
    - `ottla spark submit flights --help`, jobs on the quickstart's flights that come with Ottla
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise CommandFailed("pyspark is not installed: pip install 'ottla[spark]'")
    if str(job) == SHIPPED and not job.is_file():
        job = Path(__file__).parent.parent / "spark" / f"{SHIPPED}.py"
    if not job.is_file():
        raise UsageError(f"there is no program {job}")
    command = [str(Path(spec.origin).parent / "bin" / "spark-submit"), "--master", master]
    for pair in configuration or ():
        command += ["--conf", pair]
    ours = Path(__file__).parent.parent.parent
    environment = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, **os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ours), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory(prefix="ottla-spark-") as directory:
        if not master.startswith("local"):
            command += ["--py-files", str(_package(ours, Path(directory)))]
        raise typer.Exit(_run([*command, str(job), *(arguments or ())], environment))


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a program that ends when this process is to, and gives the exit code that a shell would."""
    with subprocess.Popen(command, env=environment) as running:
        former = signal.signal(signal.SIGTERM, lambda *_: running.terminate())
        try:
            code = running.wait()
        finally:
            signal.signal(signal.SIGTERM, former)
    return code if code >= 0 else 128 - code


def _package(ours: Path, directory: Path) -> Path:
    """This package as a zip, from which Python imports."""
    path = directory / "ottla.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for name in ("ottla", "pyspark_ottla"):
            for file in sorted((ours / name).rglob("*.py")):
                archive.write(file, file.relative_to(ours))
    return path
