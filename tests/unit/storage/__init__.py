"""The log on disk: real files in a directory of each test's own."""
