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

REPOSITORY = Path(__file__).parents[2]
PROJECT = Path(__file__).parent / "example_project"


def built_install(directory: Path) -> Path:
    """The Python of such an environment, which is made below the directory."""
    # Built from a copy, so that no build directory is left in the checkout.
    source = directory / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, source)
    shutil.copytree(REPOSITORY / "services", source / "services", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory), str(source)]
    subprocess.run(build, check=True, timeout=300)
    (wheel,) = directory.glob("ottla-*.whl")
    environment = directory / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=300)
    python = environment / "bin" / "python"
    (installed,) = (environment / "lib").glob("python*/site-packages")
    # Files in a directory that a path file names are importable; the path files in it (the editable Ottla's) are not read.
    (installed / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    install = [*pip, "--python", str(python), "install", "--quiet", "--no-deps", "--force-reinstall", "--no-index", str(wheel)]
    subprocess.run(install, check=True, timeout=300)
    return python


def test_a_project_with_nothing_but_the_wheel_passes_its_tests(tmp_path: Path) -> None:
    python = built_install(tmp_path)
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))

    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    where = [str(python), "-c", "import ottla.testing; print(ottla.testing.__file__)"]
    found = subprocess.check_output(where, cwd=project, env=variables, text=True)
    assert Path(found.strip()).is_relative_to(python.parents[1])

    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"], cwd=project, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
