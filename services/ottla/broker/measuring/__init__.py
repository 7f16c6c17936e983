"""Collectors: where the values of metrics are in a broker, read by a scrape and not before.

What is counted is counted by plain integers in the objects to which it happens; a collector of an area reads them, in
slices, and never the disk. `collectors` has all of them that a broker has.

Nothing here changes anything of what it looks at.
"""
