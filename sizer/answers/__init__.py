"""Answers of the commands other than `check` and `search`, a file each: frozen results that formats only render."""
