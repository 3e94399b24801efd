"""{about}

    from {package} import ModelNew
"""

from . import _build
from ._drop_in import drop_in

ModelNew = drop_in(_build.kernels())

__all__ = ["ModelNew"]
