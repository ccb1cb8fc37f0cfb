# Written by tests/tools/make_stubs.py.
from shapes.errors import InputError
from shapes.model import ModelShape
from shapes.workload import Workload
from sizer.answers.advice import pad_vocab
from sizer.answers.advice import round_to_alignment
from sizer.checking import check
from sizer.answers.deploy import deploy
from sizer.answers.diff import diff
from sizer.answers.memory_breakdown import memory
from sizer.answers.mfu import mfu
from sizer.answers.operator_table import ops
from sizer.answers.plan import plan_config as plan
from sizer.readers import Reading
from sizer.readers import read_config
from sizer.checking.findings import Report
from sizer.searching import search
from sizer.searching import swiglu_width

__version__: str

__all__ = ['InputError', 'ModelShape', 'Workload', 'pad_vocab', 'round_to_alignment', 'check', 'deploy', 'diff', 'memory', 'mfu', 'ops', 'plan', 'Reading', 'read_config', 'Report', 'search', 'swiglu_width']
