"""The chart, by what `helm template` makes of it; no cluster."""
