"""Will it fit: the memory that a training needs, computed before its first step from the model's own code."""

from .advice import find_fitting, report_memory
from .forecast import Forecast, Untraceable, forecast_training, room_on
from .peak import PeakMemory
from .shapes import Shapes

__all__ = [
    "Forecast",
    "PeakMemory",
    "Shapes",
    "Untraceable",
    "find_fitting",
    "forecast_training",
    "report_memory",
    "room_on",
]
