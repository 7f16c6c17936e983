"""Spark looks for formats in top-level packages named `pyspark_…` that `pkgutil` sees: ours is one, installed in place and built."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from setuptools import find_packages

ROOT = Path(__file__).parents[3]


def test_the_package_that_spark_looks_for_is_installed_and_goes_into_a_wheel() -> None:
    """Method: what Spark does (`pyspark.sql.worker.lookup_data_sources`), and what pyproject.toml has setuptools pack."""
    assert "pyspark_ottla" in {found.name for found in pkgutil.iter_modules()}
    assert "pyspark_ottla" in find_packages(str(ROOT / "services"))


def test_neither_the_command_nor_the_package_imports_spark_or_arrow_before_it_has_to() -> None:
    imports = "import sys, ottla.cli.app, ottla.spark.settings, ottla.spark.offsets"
    program = f"{imports}; print({{'pyspark', 'pyarrow', 'deltalake'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_what_a_load_imports_comes_with_its_extra() -> None:
    """After `pip install 'ottla[spark]'`, as the page has it, `ottla load` ended with "prometheus_client is not installed".

    Method: what is loaded of all that extras name, by the distribution that it is from.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {extra: {re.split(r"[<>=\[]", one)[0] for one in wanted} for extra, wanted in project["optional-dependencies"].items()}
    imports = "import sys, ottla.cli.load, ottla.serving.http, ottla.spark.loading.statistics"
    program = f"{imports}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    distributions = packages_distributions()
    loaded = {name.replace("_", "-") for module in done.stdout.split() for name in distributions.get(module, ())}
    assert loaded & (extras["server"] | extras["registry"] | extras["audit"]) <= extras["spark"] | extras["columns"]
