"""The checks of scripts/tidy: each module has one kind of check and returns a list of findings."""
