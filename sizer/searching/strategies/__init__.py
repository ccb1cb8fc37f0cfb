"""How candidates are tried; one file each, chosen by name."""
