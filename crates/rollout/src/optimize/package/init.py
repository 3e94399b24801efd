"""{about}

    from {package} import ModelNew
"""

from . import _build

with _build.provided():
    from .model_new import ModelNew

__all__ = ["ModelNew"]
