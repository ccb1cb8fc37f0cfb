"""Imported for its effect: a script of this folder finds the modules of reports/fit."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
