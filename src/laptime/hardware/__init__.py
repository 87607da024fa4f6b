"""What a machine offers: devices, links, storage, prices, with the source of every figure. Never torch."""

from laptime.hardware.device import PRECISIONS, Device, Link, Price, Storage, raid0
from laptime.hardware.lookup import device, devices, gpu_in, link, links, price, storage, storages

__all__ = [
    "PRECISIONS",
    "Device",
    "Link",
    "Price",
    "Storage",
    "device",
    "devices",
    "gpu_in",
    "link",
    "links",
    "price",
    "raid0",
    "storage",
    "storages",
]
