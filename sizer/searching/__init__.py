"""`search`: faster neighbouring dimensions, predicted for named devices or measured on the one at hand.

``search`` and ``swiglu_width`` take keywords (``entry``); ``run.find`` takes what they make of them: a ``Baseline``,
the name of one of ``SPACES``, one of ``OBJECTIVES``, ``Limits``, devices, and who measures on one.
"""

from .entry import search, swiglu_width

__all__ = ["search", "swiglu_width"]
