"""Attacks on a broker: what a hostile client, neighbour or file may try, and must not achieve.

`python -m tests.security` runs every attack against a broker of its own on 127.0.0.1 and fails when one succeeds; each is written
so that it succeeds on the revision that it was found in. `fuzz_wire` looks for what no one has thought of.

Everything here is bounded in time and memory, and ends the broker that it started by its own pid.
"""
