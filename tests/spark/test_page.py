"""docs/spark.md is true: its examples run, from the first to the last, and its table has every option.

What is Python runs in an install that was built, where Spark has to find the format; the other tests have an editable one.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.compat.test_example_project import built_install
from tests.compat.test_readme import READERS_ADDRESS, environment_for, examples, exchanges, type_in
from tests.spark.conftest import ROOT

from ottla.testing import EmbeddedCluster

PAGE = ROOT / "docs" / "spark.md"


@pytest.mark.timeout(1200)
def test_the_examples_do_what_the_page_says(a_spark_to_start: None, cluster: EmbeddedCluster, tmp_path: Path) -> None:
    environment = environment_for(cluster.bootstrap_servers)
    typing = {**environment, "PYTHONPATH": os.pathsep.join([str(ROOT / "services"), str(ROOT)])}
    of_built = {name: value for name, value in environment.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    python = built_install(tmp_path)
    where_it_is = "import pyspark_ottla, sys; sys.exit(not pyspark_ottla.__file__.startswith(sys.prefix))"
    subprocess.run([str(python), "-c", where_it_is], cwd=tmp_path, env=of_built, check=True, timeout=120)
    for number, example in enumerate(examples(PAGE)):
        where = f"docs/spark.md:{example.line}"
        if example.language == "console":
            for exchange in exchanges(example.text):
                type_in(exchange, where, tmp_path, typing)
        elif example.language == "python":
            script = tmp_path / f"example_{number}.py"
            script.write_text(example.text.replace(READERS_ADDRESS, cluster.bootstrap_servers))
            command = [str(python), str(script)]
            done = subprocess.run(command, cwd=tmp_path, env=of_built, capture_output=True, text=True, timeout=900, check=False)
            assert done.returncode == 0, f"{where}\n{done.stdout}{done.stderr[-3000:]}"
        else:
            pytest.fail(f"{where}: nobody checks a block of {example.language}")
