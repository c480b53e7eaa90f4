"""The overlap processor: fetches the program, streams its data, runs and watches passes."""
