"""The checks of scripts/tidy: each module holds one kind and returns a list of findings."""
