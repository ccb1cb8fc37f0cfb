"""What only maintainers run: fits of the devices that ship, on tables that others published.

``reports`` has to be on the path (reports/bench/on_path.py; pytest has it by pyproject.toml).
"""
