"""`check`: run the rules over a resolved input and price what they propose."""

from sizer.checking.checks import check, check_subject

__all__ = ["check", "check_subject"]
