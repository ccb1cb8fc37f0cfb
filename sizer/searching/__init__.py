"""`search`: faster neighbouring dimensions, predicted for named devices or measured on the one at hand."""

from sizer.searching.ranked import SearchResult
from sizer.searching.run import OBJECTIVES, WHATS, search, swiglu_width

__all__ = ["OBJECTIVES", "WHATS", "SearchResult", "search", "swiglu_width"]
