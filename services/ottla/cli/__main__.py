"""`python -m ottla.cli` is `ottla`, for an interpreter whose scripts are not on the PATH."""

from ottla.cli.main import main

main()
