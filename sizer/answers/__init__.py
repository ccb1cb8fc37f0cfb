"""What the commands beside `check` and `search` answer, one file each: frozen results that formats only render."""
