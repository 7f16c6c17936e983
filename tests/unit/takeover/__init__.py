"""Taking over what Kafka left: its own files and znodes, unpacked for each test."""
