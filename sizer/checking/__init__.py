"""`check`: run the rules over a resolved input and price what they propose."""

from sizer.checking.checks import check_subject
from sizer.checking.entry import check

__all__ = ["check", "check_subject"]
