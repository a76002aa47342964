"""Ways between ranks. A new one is a module here, with a class that follows ``transport.Transport``, and a name in
``TRANSPORTS``."""

from course_kernels.distributed.transports.all_to_all import AllToAll
from course_kernels.distributed.transports.symmetric import Symmetric
from course_kernels.distributed.transports.transport import Transport

# The argument ``transport`` of ``ExpertParallel`` → class.
TRANSPORTS: dict[str, type[Transport]] = {"auto": AllToAll, "all_to_all": AllToAll, "symmetric": Symmetric}

__all__ = ["TRANSPORTS", "Transport"]
