"""Many devices behind the seam of ``shapes.measure.executor``: one process an accelerator, on whatever node it is.

* ``leases``: which device has which jobs, which job is to blame for a lost device, which devices to use (pure).
* ``device``: what runs in a device's process, what it sends, and who starts such processes (``Pool``).
* ``fleet.Fleet``: the executor; gives jobs out to a pool's processes, takes them back, starts lost ones again.
* ``ray_cluster``: Ray's actors as a pool, and a cluster's devices as fleets. Nothing else imports ray.

The driver alone keeps what is measured: no device's process opens a store.
"""
