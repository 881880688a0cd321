"""The parts of scripts/planted."""
