"""Many devices behind the seam of ``shapes.measure.executor``: one process an accelerator, on whatever node it is.

* ``leases``: which device has which jobs, and which job is to blame when one is lost (pure).
* ``watch``: whose control shape drifts or throttles (pure).
* ``messages``: what crosses between a device's process and the driver, and how rounds are made of bursts again.
* ``fleet.Fleet``: the executor; drives a ``Pool`` of device processes, gives jobs out, takes them back.
* ``placement``: ``--on H100:2,A100:1`` against what a cluster has (pure).
* ``ray_pool``, ``ray_cluster``: Ray's actors as a pool, and a cluster's devices as fleets. Nothing else imports ray.

The driver alone keeps what is measured: no device's process opens a store.
"""
