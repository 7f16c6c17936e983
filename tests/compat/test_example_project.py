"""Another project gets a real broker in its tests by `pip install ottla` alone.

Ottla is built into a wheel and installed, without its dependencies, into a virtual environment of the project's own.
The dependencies are those already installed here (a path file shares them, so that nothing is downloaded); Ottla's
source is hidden from it, because the editable installation's path file is not among what is shared.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PROJECT = Path(__file__).parent / "example_project"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that no build directory is left in the checkout."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, source)
    shutil.copytree(REPOSITORY / "services", source / "services", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    target = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(target), str(source)], check=True, timeout=120)
    (built,) = target.glob("ottla-*.whl")
    return built


@pytest.mark.timeout(180)
def test_a_project_with_nothing_but_the_wheel_passes_its_tests(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=60)
    python = environment / "bin" / "python"
    (installed,) = (environment / "lib").glob("python*/site-packages")
    # Files in a directory that a path file names are importable; the path files in it (the editable Ottla's) are not read.
    (installed / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--force-reinstall", "--no-index", str(wheel)], check=True, timeout=120)
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))

    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    where = subprocess.run(
        [python, "-c", "import ottla.testing; print(ottla.testing.__file__)"],
        cwd=project,
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(environment)

    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=project, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
