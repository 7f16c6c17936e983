"""Real Spark sessions against a real broker, and real Delta tables. `make spark-test` runs them; they need Java 17 and `ottla[spark]`."""
