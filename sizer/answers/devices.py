"""What `sizer devices` answers."""

from __future__ import annotations

from collections.abc import Sequence

from shapes.cost.explain import expected_errors
from shapes.device import Device, list_devices, load_device
from shapes.frozen import Values, frozen
from sizer.printing import Printable


@frozen
class Devices(Printable):
    """Accelerators; ``in_full``: they were named, so all that is known of each is asked for."""

    COMMAND = "devices"

    devices: tuple[Device, ...]
    in_full: bool

    def to_dict(self) -> Values:
        return {"devices": [{**device.to_dict(), "expected_errors": _errors(device)} for device in self.devices]}


def _errors(device: Device) -> list[Values]:
    return [
        {
            "kernel": one.kernel,
            "dtype": one.dtype,
            "class": one.regime,
            "tier": one.expected.tier,
            "error": one.expected.error,
            "error_p95": one.expected.p95,
        }
        for one in expected_errors(device)
    ]


def devices(names: Sequence[str] = ()) -> Devices:
    """The devices named, or all that are known; InputError for a name that is not."""
    return Devices(tuple(load_device(name) for name in names or list_devices()), bool(names))
