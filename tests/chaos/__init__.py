"""A cluster of real processes under faults, and a judge of what its clients saw: `make chaos`, docs/chaos.md.

`schedule` decides from a seed what is broken when; `faults` breaks it, on the processes of `cluster` and the wires of
`network`; `producing` and `consuming` are clients in processes of their own that write down all they see in `history`;
`checker` judges that, and knows nothing of how it came about.
"""
