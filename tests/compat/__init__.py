"""Real clients against a real broker. Slower than the unit tests; `make compat` runs them."""
