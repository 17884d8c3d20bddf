"""Who serves which layers -> a route; how many layers each part gets -> a partition."""

from meshnet.core.routing.finding import Inventory, NoRoute, find_route
from meshnet.core.routing.partition import check_layers, parse_split, partition

__all__ = ["Inventory", "NoRoute", "check_layers", "find_route", "parse_split", "partition"]
