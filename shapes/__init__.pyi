# Written by tests/tools/make_stubs.py.
from shapes.model import ModelShape
from shapes.workload import Workload
from shapes.cost.gemm import predict_gemm
from shapes.cost import Timing
from shapes.cost import predict
from shapes.cost import predict_many
from shapes.device import Device
from shapes.device import list_devices
from shapes.device import load_device
from shapes.errors import InputError

__all__ = ['ModelShape', 'Workload', 'predict_gemm', 'Timing', 'predict', 'predict_many', 'Device', 'list_devices', 'load_device', 'InputError']
