"""What the commands other than `check` and `search` answer, one file each: frozen results that formats only render."""
